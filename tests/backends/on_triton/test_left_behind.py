"""What failed is forgotten: nothing of it stays in memory, least of all where all models share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from backends.batching.item import Item, PaddedTensors
from backends.batching.length_buckets import run_in_buckets
from backends.batching.run_items import run_items
from tests.support.triton import process as triton_process

Array = np.ndarray[Any, Any]

MIB = 2**20


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Python's search for circles, which comes by after some hundred new objects that stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _fails(*_: Any) -> Any:
    raise ArithmeticError("13 brings bad luck.")


def _answers_too_few(inputs: Any, outputs: Sequence[str]) -> Any:
    return dict.fromkeys(outputs, np.zeros((1, 3), np.float32))


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("run", [_fails, _answers_too_few])
@pytest.mark.parametrize("run_all", [run_items, run_in_buckets])
@pytest.mark.parametrize("largest", [0, 1, 8])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("padding", [PaddedTensors({}, ()), PaddedTensors({"x": 0}, ("y",))])
def test_answers_keep_no_tensors_of_those_that_failed(
    run: Any, run_all: Callable[..., Any], largest: int, count: int, padding: PaddedTensors
) -> None:
    def answers() -> tuple[Any, list[weakref.ref[Array]]]:
        x = np.array([[1.0, 2, 0], [1, 0, 0]], np.float32)
        arrays = [x.copy() for _ in range(count)]
        items = [Item({"x": array}, ("y",), padding=padding) for array in arrays]
        came = run_all(items, run, max_batch_size=largest)
        return came, [weakref.ref(array) for array in arrays]

    came, arrays = answers()
    failed = [one for one in came if isinstance(one, Exception)]
    assert len(failed) == (0 if largest == 0 and run is _answers_too_few else count)
    assert [array() for array in arrays] == [None] * count


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"deadline_us": 1}, "the caller does not wait"),
        ({"deadline_us": "soon"}, "soon"),
        ({"padding": "[]"}, "padding"),
        ({"rows": "{"}, "rows"),
        ({"rows_above": "{"}, "rows_above"),
        ({}, "the model expects"),
    ],
    ids=["late", "no_deadline", "no_padding", "no_rows", "no_column", "no_such_shape"],
)
def test_shared_memory_is_free_again(
    triton: triton_process.Triton, parameters: dict[str, Any], said: str
) -> None:
    """One MiB each: of forty not even eight lie there together."""
    model = "loose"
    x = grpc_client.InferInput("x", [1, MIB // 4], "FP32")
    x.set_data_from_numpy(np.zeros((1, MIB // 4), np.float32))

    def ask(times: int) -> int:
        for _ in range(times):
            with pytest.raises(InferenceServerException, match=said):
                triton.client.infer(model, [x], parameters=parameters)
        return triton_process.region_size(triton, model)

    assert ask(40) <= 8 * MIB
