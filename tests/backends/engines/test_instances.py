"""Runs of one instance: how many there are at a time, the cores of each, and what they keep."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic

from backends.onnxruntime import session as module
from backends.onnxruntime.session import OnnxSession
from backends.onnxruntime.session_settings import session_settings
from backends.openvino.properties import properties
from backends.openvino.session import OpenVinoSession
from tests.backends.conftest import cpu_config
from tests.support.models import onnx_models, openvino_models

CPU = [("CPUExecutionProvider", {})]
X = np.random.default_rng(1).normal(size=(2, openvino_models.WIDTH)).astype(np.float32)
EXPECTED = np.maximum(X @ openvino_models.FIRST, 0) @ openvino_models.SECOND


@pytest.fixture
def model(tmp_path: Path) -> Path:
    openvino_models.two_layers(tmp_path / "m" / "1" / "model.onnx")
    return tmp_path / "m" / "1" / "model.onnx"


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of each run's session, in the order in which they began."""
    noted: list[int] = []
    run = onnxruntime.InferenceSession.run

    def noting(self: Any, *arguments: Any) -> Any:
        noted.append(self.get_session_options().intra_op_num_threads)
        return run(self, *arguments)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", noting)
    return noted


def at_once(
    session: OnnxSession, monkeypatch: pytest.MonkeyPatch, count: int, x: Any = X
) -> list[Any]:
    """Return the answers of runs that are all begun before one of them ends."""
    all_run = threading.Barrier(count)
    run = onnxruntime.InferenceSession.run

    def waiting(self: Any, *arguments: Any) -> Any:
        all_run.wait(30)
        return run(self, *arguments)

    with monkeypatch.context() as patch, ThreadPoolExecutor(count) as pool:
        patch.setattr(onnxruntime.InferenceSession, "run", waiting)
        asked = [pool.submit(session.run, {"x": x}, ["y"]) for _ in range(count)]
        return [one.result()["y"] for one in asked]


def test_a_lone_run_has_all_cores_and_others_their_share(
    model: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    session = OnnxSession(model, session_settings(cpu_config(1), cpus=4), CPU)
    assert session.at_once == 4
    np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)
    for answer in at_once(session, monkeypatch, 3):
        np.testing.assert_allclose(answer, EXPECTED, atol=1e-4)
    session.run({"x": X}, ["y"])
    assert (widths[0], sorted(widths[1:4]), widths[4]) == (4, [1, 1, 4], 4)


def test_an_answer_that_depends_on_the_threads_is_the_same_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    """ONNX Runtime shares the rows out, and takes a scale for each thread's."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(2, 64, 16)).astype(np.float32) for name in "wr"}
    node = helper.make_node(
        "LSTM", ["x", "w", "r"], ["y"], hidden_size=16, direction="bidirectional"
    )
    sides = [("x", TensorProto.FLOAT, [9, "n", 16])], [("y", TensorProto.FLOAT, None)]
    onnx_models.save(tmp_path / "float.onnx", [node], *sides, **weights)
    file = tmp_path / "m" / "model.onnx"
    file.parent.mkdir()
    quantize_dynamic(tmp_path / "float.onnx", file, op_types_to_quantize=["LSTM"])
    x = np.stack([X[:1].repeat(9, 0), 10 * X[1:].repeat(9, 0)], 1)  # [9, 2, 16]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    (expected,) = onnxruntime.InferenceSession(file, options).run(None, {"x": x})
    options.intra_op_num_threads = 2
    (other,) = onnxruntime.InferenceSession(file, options).run(None, {"x": x})
    assert np.abs(other - expected).max() > 1e-3, "ONNX Runtime has mended it"

    session = OnnxSession(file, session_settings(cpu_config(1), cpus=4), CPU)
    answers = [session.run({"x": x}, ["y"])["y"], *at_once(session, monkeypatch, 3, x)]
    np.testing.assert_array_equal(answers, [expected] * 4)
    assert widths[2:] == [1] * 4


def test_one_that_fails_is_no_longer_counted(model: Path, widths: list[int]) -> None:
    session = OnnxSession(model, session_settings(cpu_config(1), cpus=4), CPU)
    for _ in range(3):
        with pytest.raises(Exception, match="Got invalid dimensions"):
            session.run({"x": X[:, :5]}, ["y"])
    session.run({"x": X}, ["y"])
    assert widths == [4] * 4


def test_a_large_model_has_one_run_at_a_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", model.stat().st_size - 1)
    session = OnnxSession(model, session_settings(cpu_config(1), cpus=4), CPU)
    assert session.at_once == 1
    np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "on_cpu"),
    [
        ({**cpu_config(2), "dynamic_batching": {}}, True),
        ({**cpu_config(2), "sequence_batching": {}}, True),
        (cpu_config(2, intra_op_thread_count="4"), True),
        (cpu_config(2, session__intra_op__allow_spinning="1"), True),
        (cpu_config(2), False),
    ],
    ids=["Triton makes the batches", "in sequence", "threads are configured", "they spin", "a GPU"],
)
def test_where_others_see_to_the_cores_there_is_one_run_at_a_time(
    config: dict[str, Any], on_cpu: bool
) -> None:
    assert session_settings(config, cpus=4, on_cpu=on_cpu).at_once == 1


@pytest.mark.parametrize(
    ("count", "cpus", "at_once", "threads"),
    [
        (1, 1, 1, 1),
        (1, 2, 2, 2),
        (2, 2, 2, 2),
        (1, 8, 8, 8),
        (2, 8, 4, 4),
        (3, 8, 4, 4),
        (2, 16, 8, 8),
        (3, 16, 5, 5),
        (1, 32, 8, 32),
        (9, 32, 4, 4),
    ],
)
def test_otherwise_there_are_as_many_as_cores_and_eight_at_most(
    count: int, cpus: int, at_once: int, threads: int
) -> None:
    """Instances share many cores, and each has all of few."""
    settings = session_settings(cpu_config(count), cpus=cpus)
    assert (settings.at_once, settings.intra_op_threads) == (at_once, threads)


def own_memory() -> int:
    """The bytes of this process that no other shares, as Linux counts them."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kb) * 1024 for kb in re.findall(r"Private_Dirty: *(\d+) kB", text))


@pytest.mark.parametrize(("engine", "side"), [("onnxruntime", 512), ("openvino", 1024)])
@pytest.mark.parametrize("larger", [1, 9], ids=["one larger run", "many"])
def test_what_larger_runs_need_is_given_back(
    engine: str, side: int, larger: int, tmp_path: Path
) -> None:
    """A picture in 64 channels has 64 MiB, or 256: OpenVINO's session keeps up to 128."""
    size = ["n", 1, "h", "w"]
    weights = np.ones((64, 1, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["wide"], pads=[1] * 4),
        helper.make_node("ReduceMax", ["wide"], ["y"], axes=[1, 2, 3], keepdims=0),
    ]
    sides = [("x", TensorProto.FLOAT, size)], [("y", TensorProto.FLOAT, ["n"])]
    file = tmp_path / "m" / "model.onnx"
    onnx_models.save(file, nodes, *sides, weights=weights)
    session = (
        OnnxSession(file, session_settings(cpu_config(1), cpus=2), CPU)
        if engine == "onnxruntime"
        else OpenVinoSession(file, properties(cpu_config(1), cpus=2))
    )

    def run(side: int) -> None:
        x = np.ones((1, 1, side, side), np.float32)
        assert session.run({"x": x}, ["y"])["y"] == [9]

    run(64)
    before = own_memory()
    for each in [side] * larger + [64] * (0 if larger == 1 else 40):
        run(each)
    assert own_memory() - before < 64 * 4 * side**2 / 2
