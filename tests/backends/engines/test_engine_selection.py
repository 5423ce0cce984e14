"""The trial of engines: who runs a model, by its answers and its speed.

What OpenVINO answers in bf16, and how fast, is put there: it is another thing on each processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image

from backends import engine_choice
from backends.engine_choice import (
    AUTO,
    BF16,
    EXACT,
    F32,
    ONNXRUNTIME,
    OPENVINO,
    EngineChoice,
    EnginePreference,
)
from backends.engines import selection
from backends.engines.runs import openvino_run
from backends.measure_runs import Busy, MeasuredRuns
from backends.model_config import FileTensor
from backends.onnxruntime.session import OnnxFile
from clients.tensors.agreement import Agreement
from container.trouble import Trouble
from tests.support.models import onnx_models, onnx_repository, openvino_models

Array = NDArray[Any]

TIE = np.array([10, 10.01, 0, 0], np.float32)
"""In bf16 both of the largest are 10, and the first of these is another.

The logits themselves differ by a thousandth of their spread alone."""
SECOND_FIRST = "the first is 0:a, not 1:b"
CLEAR = np.array([1, 3, 0, 0], np.float32)

WITH_BF16 = "A CPU fpu avx512_bf16"


def in_bf16(array: Array) -> Array:
    """Round to the nearest number with 8 bits of fraction, to an even one in the middle."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def classifier(folder: Path, logits: Array, *, by_light: float = 0.0) -> None:
    """Write a model with these logits, of which the first is larger the lighter a picture is."""
    file = folder / "1" / "model.onnx"
    matrix = np.zeros((3, 4), np.float32)
    matrix[:, 0] = by_light
    nodes = [
        helper.make_node("GlobalAveragePool", ["in"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "matrix", "logits"], ["out"]),
    ]
    pixels, scores = [("in", TensorProto.FLOAT, ["n", 3, 8, 8])], [("out", 1, ["n", 4])]
    onnx_models.save(file, nodes, pixels, scores, matrix=matrix, logits=logits)
    (folder / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 4\n'
        + onnx_repository.tensor("input", "in", "FP32", "3, 8, 8")
        + onnx_repository.tensor("output", "out", "FP32", "4")
    )
    toml = 'family = "classification"\nlabels = "labels.txt"\nsoftmax = true\n'
    (folder / "dispatch.toml").write_text(toml)
    (folder / "labels.txt").write_text("a\nb\nc\nd\n")


def choose(folder: Path, engine: str = AUTO, precision: str = EXACT) -> EngineChoice:
    """Return the choice for the model in a folder."""
    file = folder / "1" / "model.onnx"
    return selection.select_engine(folder, file, EnginePreference(engine, precision))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which precisions of OpenVINO were tried; bf16 is twice as fast as f32, on any processor."""
    tried: list[str] = []
    fast = {}

    def run_by_openvino(file: Path, precision: str = F32) -> Any:
        tried.append(precision)
        run = openvino_run(file)

        def rounded(given: Mapping[str, Array]) -> dict[str, Array]:
            return {name: in_bf16(array) for name, array in run(given).items()}

        made = rounded if precision == BF16 else run
        fast[made] = 2.4 if precision == BF16 else 1.2
        return made

    monkeypatch.setattr(selection, "openvino_run", run_by_openvino)
    monkeypatch.setattr(selection, "faster", lambda _exact, run, _given: fast[run])
    monkeypatch.setattr(engine_choice, "processor", lambda: WITH_BF16)
    return tried


def test_bf16_is_taken_where_callers_see_the_same(tmp_path: Path, asked: list[str]) -> None:
    classifier(tmp_path, CLEAR)
    found = choose(tmp_path, precision=AUTO)
    assert (found.engine, found.precision, found.speedup) == (OPENVINO, BF16, 2.4)
    assert found.reason == ""
    assert found.signature is not None
    assert found.signature.outputs == (FileTensor("out", "TYPE_FP32", (-1, 4)),)


@pytest.mark.parametrize(
    ("logits", "precision", "processor", "tried", "reason"),
    [
        (TIE, AUTO, WITH_BF16, [BF16, F32], "OpenVINO in bf16 has other answers: " + SECOND_FIRST),
        (CLEAR, EXACT, WITH_BF16, [F32], ""),
        (CLEAR, AUTO, "A CPU fpu avx512f", [F32], "this processor has no bf16"),
    ],
    ids=["another class is first", "it is not asked for", "the processor has none"],
)
def test_otherwise_it_is_f32(
    tmp_path: Path,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    logits: Array,
    precision: str,
    processor: str,
    tried: list[str],
    reason: str,
) -> None:
    monkeypatch.setattr(engine_choice, "processor", lambda: processor)
    classifier(tmp_path, logits)
    found = choose(tmp_path, precision=precision)
    assert (found.engine, found.precision, found.speedup) == (OPENVINO, F32, 1.2)
    assert found.reason == reason
    assert asked == tried


def test_samples_are_tried_beside_the_example(tmp_path: Path, asked: list[str]) -> None:
    """The first class wins on every picture but a black one."""
    classifier(tmp_path, TIE, by_light=9.0)
    assert choose(tmp_path, precision=AUTO).precision == BF16
    (tmp_path / "samples").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "samples" / "black.png")
    found = choose(tmp_path, precision=AUTO)
    assert found.precision == F32
    assert SECOND_FIRST in found.reason


def test_a_sample_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    classifier(tmp_path, CLEAR)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "letter.png").write_text("no picture")
    with pytest.raises(Trouble, match=r"refuses the sample letter\.png"):
        choose(tmp_path, precision=AUTO)


def test_where_samples_show_nothing_no_precision_is_taken_for_them(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Agreement(passes=True, worst="there is no object", difference=0.0, shows="")
    monkeypatch.setattr(selection, "difference", lambda *_: nothing)
    classifier(tmp_path, CLEAR)
    found = choose(tmp_path, precision=AUTO)
    assert (found.engine, found.precision) == (OPENVINO, F32)
    said = "OpenVINO in bf16 was not compared: no compared sample has an object; put others into"
    assert found.reason.startswith(said)


@pytest.mark.parametrize(
    ("speed", "engine", "expected"),
    [(0.96, AUTO, ONNXRUNTIME), (0.98, AUTO, OPENVINO), (0.5, OPENVINO, OPENVINO)],
)
def test_the_slower_engine_is_taken_only_where_it_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, engine: str, expected: str
) -> None:
    openvino_models.two_layers(tmp_path / "1" / "model.onnx")
    monkeypatch.setattr(selection, "faster", lambda *_: speed)
    found = choose(tmp_path, engine)
    assert found.engine == expected
    said = "OpenVINO in f32 is 0.96 times as fast" if expected == ONNXRUNTIME else ""
    assert found.reason == said


@pytest.mark.parametrize("engine", [ONNXRUNTIME, OPENVINO])
def test_how_runs_share_the_cores_is_measured_on_the_engine_that_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Not where others need the cores; the measurement itself is put there."""

    def measured(in_turn: Any, beside: Any, *_: int) -> MeasuredRuns:
        in_turn(1)
        beside(16)
        return runs

    runs, file = MeasuredRuns(2, 2, 1, joined=True, gain=1.2), tmp_path / "1" / "model.onnx"
    openvino_models.two_layers(file)
    for measuring, expected in ((measured, 1.2), (Mock(side_effect=Busy), None)):
        monkeypatch.setattr("backends.schedule.measure_runs", measuring)
        found = selection.select_engine(
            tmp_path, file, EnginePreference(engine), measures_runs=True
        )
        assert (found.engine, found.runs and found.runs.gain) == (engine, expected)


def test_who_has_no_example_is_tried_with_made_up_inputs(tmp_path: Path) -> None:
    file = tmp_path / "1" / "model.onnx"
    openvino_models.two_layers(file)
    known = selection.answers(tmp_path, file, OnnxFile(file).signature)
    assert known.client is None
    assert len(known.given) > 1
    for given, outputs in zip(known.given, known.outputs, strict=True):
        assert given["x"].shape == (1, openvino_models.WIDTH)
        hidden = np.maximum(given["x"] @ openvino_models.FIRST, 0)
        expected = hidden @ openvino_models.SECOND
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-3, atol=1e-3)


def odd(file: Path) -> None:
    """x [n, m] -> y [n, 1001], where m is 1001 as well"""
    nodes = [helper.make_node("Reshape", ["x", "dims"], ["y"])]
    sides = [("x", TensorProto.FLOAT, ["n", "m"])], [("y", TensorProto.FLOAT, ["n", 1001])]
    onnx_models.save(file, nodes, *sides, dims=np.array([-1, 1001]))


def doubles(file: Path) -> None:
    sides = [("x", TensorProto.DOUBLE, ["n"])], [("y", TensorProto.DOUBLE, ["n"])]
    onnx_models.save(file, [helper.make_node("Neg", ["x"], ["y"])], *sides)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (doubles, "it has tensors in double precision"),
        (onnx_models.words, "it has tensors of text"),
        (openvino_models.scaled, "OpenVINO in f32 cannot: OpenVINO cannot open"),
        (odd, "it has no samples, and cannot be run with made-up inputs"),
    ],
)
@pytest.mark.parametrize("engine", [AUTO, OPENVINO])
def test_onnx_runtime_keeps_what_openvino_cannot_run(
    tmp_path: Path, write: Callable[[Path], None], reason: str, engine: str
) -> None:
    write(tmp_path / "1" / "model.onnx")
    found = choose(tmp_path, engine)
    assert (found.engine, found.precision) == (ONNXRUNTIME, F32)
    assert found.reason.startswith(reason)


@pytest.mark.parametrize("bits", [32, 64])
def test_whole_numbers_of_more_than_32_bits_keep_a_model_at_onnx_runtime(
    tmp_path: Path, bits: int
) -> None:
    """To OpenVINO 2^40 + 5 is 5, and its remainder by 1000 is 5 and not 781."""
    number = TensorProto.INT64 if bits == 64 else TensorProto.INT32
    nodes = [helper.make_node("Mod", ["x", "thousand"], ["y"])]
    sides = [("x", number, ["n", 2])], [("y", number, ["n", 2])]
    thousand = np.array(1000, np.int64 if bits == 64 else np.int32)
    onnx_models.save(tmp_path / "1" / "model.onnx", nodes, *sides, thousand=thousand)
    found = choose(tmp_path, OPENVINO)
    assert found.engine == (ONNXRUNTIME if bits == 64 else OPENVINO)
    assert ("OpenVINO in f32 has other answers: `y`" in found.reason) == (bits == 64)


def test_numbers_of_words_do_not(tmp_path: Path) -> None:
    """There is no word of such a number, and no answer to be compared."""
    onnx_models.lookup(tmp_path / "1" / "model.onnx")
    found = choose(tmp_path, OPENVINO)
    assert (found.engine, found.reason) == (OPENVINO, "")


Y = np.array([[0, 1, 2, 4]], np.float32)  # 4 is its spread


@pytest.mark.parametrize(
    ("off", "is_exact", "is_int8", "passes"),
    [
        (0.0039, True, False, True),
        (0.0041, True, False, False),
        (0.039, True, True, True),
        (0.041, True, True, False),
        (0.039, False, False, True),
        (0.041, False, False, False),
    ],
)
def test_without_a_client_tensors_are_compared_by_their_spread(
    tmp_path: Path, off: float, is_exact: bool, is_int8: bool, passes: bool
) -> None:
    """A thousandth of 4 in f32; a hundredth in less, or where engines round each in its way."""
    further = Y + np.array([0, off, 0, 0], np.float32)
    known = selection.Reference(lambda _: {}, None, (), [{}], [{"y": Y}], Mock(), is_int8)
    found = selection.compare_with(known, lambda _: {"y": further}, tmp_path, is_exact=is_exact)
    assert found.passes is passes


def test_weights_in_int8_are_seen(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["matrix"]),
        helper.make_node("MatMul", ["x", "matrix"], ["y"]),
    ]
    sides = [("x", TensorProto.FLOAT, ["n", 2])], [("y", TensorProto.FLOAT, ["n", 2])]
    weights = np.array([[100, -7], [3, 50]], np.int8)
    file = tmp_path / "int8.onnx"
    onnx_models.save(file, nodes, *sides, weights=weights, scale=np.float32(0.1)[...])
    assert selection.has_int8(file)
    openvino_models.two_layers(tmp_path / "f32.onnx")
    assert not selection.has_int8(tmp_path / "f32.onnx")
    openvino_models.scaled(tmp_path / "no_operator.onnx")
    assert not selection.has_int8(tmp_path / "no_operator.onnx")
