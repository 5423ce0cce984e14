"""Which models are found to answer each row as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from backends.batching.row_independence import find_dependence, row_dependence
from backends.completion import complete
from backends.model_config import FileSignature, FileTensor
from backends.onnxruntime.session import OnnxFile
from clients.model_files.config_text import Message
from tests.support.models import onnx_models

Array = np.ndarray[Any, Any]


def against(
    function: Callable[..., Any],
    inputs: Mapping[str, tuple[Any, ...]],
    outputs: Sequence[str] = ("y",),
    data_type: str = "FP32",
    most: int = 4,
) -> str:
    """Try a function of arrays, which returns one array for each output."""
    signature = FileSignature(
        tuple(FileTensor(name, f"TYPE_{data_type}", shape) for name, shape in inputs.items()),
        tuple(FileTensor(name, "TYPE_FP32", (-1,)) for name in outputs),
    )

    def run(tensors: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        made = function(*tensors.values())
        arrays = made if isinstance(made, tuple) else (made,)
        return {n: a for n, a in zip(outputs, arrays, strict=True) if n in names}

    return row_dependence(signature, run, most)


X = {"x": (-1, 3)}


def normal(x: Array) -> Array:
    return (x - x.mean(0)) / (x.std(0) + 1)


INDEPENDENT: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: x + 1,
    "along the row": lambda x: x / (1 + np.abs(x).max(1, keepdims=True)),
    "kernels that round otherwise": lambda x: x * np.float32(1 + 1e-6 * len(x)),
    "nothing but NaN for some": lambda x: np.where(x > 50, np.nan, x),
    "infinite for zeros": lambda x: np.log(np.abs(x)),
}
DEPENDENT: dict[str, Callable[..., Any]] = {
    "softmax down the rows": lambda x: np.exp(x) / np.exp(x).sum(0),
    "the rows before": lambda x: np.cumsum(x, axis=0),
    "the mean of the batch": normal,
    "one scale for all": lambda x: np.round(x / np.abs(x).max() * 127) * np.abs(x).max() / 127,
    "another order": lambda x: x[::-1],
    "sorted": lambda x: np.sort(x, axis=0),
    "how many there are": lambda x: x + len(x),
    "the neighbour is infinite": lambda x: x + (np.inf if len(x) > 2 else 0),
    "NaN beside others": lambda x: x * (np.nan if len(x) > 1 else 1),
    "only whole batches": lambda x: x.mean(0, keepdims=True),
    "rows that are found": np.argwhere,
    "a scalar": lambda x: x.sum(),
    "columns beside others": lambda x: np.repeat(x, len(x), axis=1),
    "near ones": lambda x: np.stack([x[np.abs(x - row).max(1) < 0.5].mean(0) for row in x]),
    "those that are alike": lambda x: x / np.array([[(x == row).all(1).sum()] for row in x]),
    "negative ones": lambda x: x + np.minimum(x.min(0), -50),
    "small rows beside small ones": lambda x: x**4 + np.minimum(x.max(0), 3),
    "small rows alone": lambda x: x + np.where(np.abs(x).max() > 10, np.float32(0.01), 0),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("what", INDEPENDENT)
def test_rows_that_are_independent(what: str) -> None:
    assert against(INDEPENDENT[what], X) == ""


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("what", DEPENDENT)
def test_rows_that_change_each_other(what: str) -> None:
    assert against(DEPENDENT[what], X).startswith("output 'y' ")


def test_as_many_rows_are_run_together_as_there_may_be() -> None:
    def behind_five(x: Array) -> Array:
        return np.concatenate([x[:5], x[5:] - x[:-5]])

    assert against(behind_five, X, most=4) == ""
    assert "differs by" in against(behind_five, X, most=8)


def test_a_model_that_would_take_too_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row takes 5 s here: six alone, two batches of two; three more would end at 65 s."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def slow(x: Array) -> Array:
        clock[0] += 5 * len(x)
        return x

    assert against(slow, X) == "the test of its rows would take longer than 60 s"
    assert clock == [50]


def test_every_output_is_compared() -> None:
    def both(x: Array) -> tuple[Array, Array]:
        return x + 1, np.cumsum(x, axis=0)

    assert against(both, X, ("good", "bad")).startswith("output 'bad' differs")


def test_what_says_nothing_shows_nothing() -> None:
    said = "output 'y' is the same, whatever it was tried with"
    assert against(lambda x: np.ones((len(x), 1), np.float32), X) == said
    assert against(lambda x: np.full((len(x), 1), np.nan), X) == said
    both = against(lambda x: (x, np.ones((len(x), 1), np.float32)), X, ("varies", "y"))
    assert both == said, "another output says nothing of this one"


def test_what_cannot_be_run_shows_nothing() -> None:
    def fails(x: Array) -> Array:
        raise ValueError("not so\nlong")

    assert against(fails, X) == "it could not be run with made-up inputs (not so long)"


@pytest.mark.parametrize("side", [8, 32, 224, 3])
def test_a_size_is_found_that_the_model_takes(side: int) -> None:
    def of_that_size(x: Array) -> Array:
        if x.shape[1:] != (side, side):
            raise ValueError(x.shape)
        return x.sum((1, 2))[:, None]

    assert against(of_that_size, {"x": (-1, -1, -1)}) == ""


@pytest.mark.parametrize("data_type", ["BOOL", "UINT8", "INT8", "INT32", "INT64", "UINT64"])
def test_whole_numbers_are_tried_as_well(data_type: str) -> None:
    assert against(lambda x: x.astype(np.float64) + 1, X, data_type=data_type) == ""
    mixed = against(lambda x: np.cumsum(x.astype(np.float64), 0), X, data_type=data_type)
    assert "differs by" in mixed


@pytest.mark.parametrize("data_type", ["INT16", "INT32", "INT64"])
def test_each_input_is_tried_with_large_numbers_as_well(data_type: str) -> None:
    """Those of a sound by its loudest one; one input alone, for the other takes 0 and 1."""

    def normalised(sound: Array, flag: Array) -> Array:
        kept = np.array([[0.5], [0.25]])[flag][..., 0]  # an IndexError beyond 1
        return sound / max(1, np.abs(sound.astype(np.int64)).max()) * kept

    sounds = {"sound": (-1, 3), "flag": (-1, 3)}
    assert "differs by" in against(normalised, sounds, data_type=data_type)
    fitting = against(lambda sound, flag: sound / 2**15 + flag, sounds, data_type=data_type)
    assert fitting == ""


def test_token_ids_and_masks_are_such_as_every_model_knows() -> None:
    def looked_up(ids: Array, mask: Array) -> Array:
        return np.array([[0.5], [0.25]])[ids][..., 0] * mask

    assert against(looked_up, {"ids": (-1, -1), "mask": (-1, -1)}, data_type="INT64") == ""


def test_texts_are_tried_as_well() -> None:
    assert against(lambda x: np.char.add(x.astype(str), "!"), X, data_type="STRING") == ""
    beside = against(lambda x: x[::-1], X, data_type="STRING")
    assert beside == "output 'y' has other values where a row is run beside others"


def products(file: Path) -> Path:
    """Write x [n, 8] @ W + b, with weights that were drawn by chance."""
    numbers = np.random.default_rng(7)
    w, b = (numbers.standard_normal(shape).astype(np.float32) for shape in ((8, 8), 8))
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Add", ["h", "B"], ["y"]),
    ]
    x, y = ((name, TensorProto.FLOAT, ["n", 8]) for name in "xy")
    return onnx_models.save(file, nodes, [x], [y], W=w, B=b)


def test_a_dynamically_quantized_model_is_found_and_its_original_is_not(tmp_path: Path) -> None:
    original, quantized = products(tmp_path / "model.onnx"), tmp_path / "quantized.onnx"
    quantize_dynamic(original, quantized, weight_type=QuantType.QInt8)
    assert complete({}, Message(), OnnxFile(original)).fields["dynamic_batching"] == {}
    done = complete({}, Message(), OnnxFile(quantized))
    assert "dynamic_batching" not in done.fields
    assert "max_batch_size" not in done.fields
    assert done.warning
    assert "quantizes its activations while it runs" in done.warning[0]


def test_a_quantized_model_whose_outputs_may_hide_it_is_found_all_the_same(tmp_path: Path) -> None:
    """Of the best class alone only one in hundreds differs."""
    file = products(tmp_path / "model.onnx")
    model = onnx.load(file)
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["best"], axis=1))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT64, ["n", 1]))
    onnx.save(model, file)
    quantize_dynamic(file, tmp_path / "q.onnx", weight_type=QuantType.QUInt8)
    assert "dynamic_batching" in complete({}, Message(), OnnxFile(file)).fields
    assert "dynamic_batching" not in complete({}, Message(), OnnxFile(tmp_path / "q.onnx")).fields


class TestRemembered:
    def test_one_trial_for_each_content_of_the_files(self, tmp_path: Path) -> None:
        file, made = tmp_path / "model.onnx", iter(["first", "second", "third"])
        file.write_bytes(b"a")

        def ask(edition: str = "1") -> str:
            return find_dependence(tmp_path / "kept", [file], edition, lambda: next(made))

        assert [ask(), ask()] == ["first", "first"]
        file.write_bytes(b"b")
        assert [ask(), ask()] == ["second", "second"]
        file.write_bytes(b"a")
        assert ask() == "first"
        assert ask("2") == "third"

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"against": 1}', b"\xff"])
    def test_a_damaged_one_is_made_again(self, tmp_path: Path, damage: bytes) -> None:
        kept = tmp_path / "kept"
        assert find_dependence(kept, [], "1", lambda: "found") == "found"
        (file,) = kept.iterdir()
        file.write_bytes(damage)
        assert find_dependence(kept, [], "1", lambda: "found again") == "found again"
        assert find_dependence(kept, [], "1", lambda: "not asked") == "found again"

    def test_where_nothing_can_be_written_it_is_tried_each_time(self, tmp_path: Path) -> None:
        (tmp_path / "kept").write_text("a file, not a folder")
        assert find_dependence(tmp_path / "kept", [], "1", lambda: "found") == "found"
        assert find_dependence(None, [], "1", lambda: "found") == "found"
