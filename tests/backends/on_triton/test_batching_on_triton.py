"""Dynamic batching by the onnxruntime backend, as a client of the real Triton sees it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from clients.triton.client import Triton as OwnTriton
from clients.triton.server import Hints, Padding
from tests.conftest import PATIENCE_S
from tests.support.models import onnx_repository
from tests.support.triton import process as triton_process
from tests.support.triton.calls import ROW, ask, ask_together, counted, counts
from tests.support.triton.process import Triton

SAID = {
    "padding": [
        '{"inputs": {"x": 0.5}, "outputs": []}',
        '{"inputs": {"x": 0}}',
        '{"inputs": {"x": 0}, "outputs": "same"}',
        '{"inputs": {"x": 0}, "outputs": ["sane"]}',
        '{"inputs": {"x": 0, "z": 0}, "outputs": []}',
        '{"inputs": ["x"], "outputs": []}',
    ],
    "rows": [f'{{"same": {one}}}' for one in ("[3]", "[-1]", '["0"]', "0")],
    "rows_above": [
        f'{{"same": {one}}}' for one in ("[3, 1]", "[-1, 1]", "[0, -1]", f"[0, 1{'0' * 400}]", "0")
    ],
}
"""Of the model; and none of these says anything: 0, a list, and what is no JSON."""
REFUSED = [
    (parameter, text)
    for parameter, said in SAID.items()
    for text in [*(f'{{"columns_beside": {one}}}' for one in (*said, "0", "[0]")), "[0]", "{"]
]


def test_concurrent_requests_share_one_run(triton: Triton) -> None:
    rows_before, runs_before = counts(triton, "batch_size")
    requests = [{"x": np.zeros((rows, 1), np.float32)} for rows in (1, 2, 1)]
    answers = ask_together(triton, "batch_size", requests)
    assert [answer.as_numpy("rows").tolist() for answer in answers] == [[[4]], [[4], [4]], [[4]]]
    rows, runs = counted(triton, "batch_size", rows_before + 4)
    assert (rows - rows_before, runs - runs_before) == (4, 1)


def test_plain_dynamic_batching_joins_no_rows_of_fixed_sizes_unmeasured(triton: Triton) -> None:
    """Triton hands it over as if the configuration preferred batches of the largest size."""
    requests = [{"x": np.zeros((1, 1), np.float32)}] * 12
    answers = ask_together(triton, "batch_size_measured", requests)
    assert [answer.as_numpy("rows").item() for answer in answers] == [1] * 12


def test_requests_of_unequal_shapes_are_handed_over_together(triton: Triton) -> None:
    """Triton's own batches have one shape; this one waits for two requests, twenty seconds."""
    assert_handed_over_together(triton)


@pytest.mark.slow
def test_so_they_are_on_one_core(tmp_path: Path) -> None:
    onnx_repository.write_repository(tmp_path / "models")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with triton_process.running(tmp_path, ["total"], compares=False) as server:
            assert_handed_over_together(server)
    finally:
        os.sched_setaffinity(0, cores)


def assert_handed_over_together(triton: Triton) -> None:
    rows_before, runs_before = counts(triton, "total")
    requests = [{"x": np.ones((1, length), np.float32)} for length in (3, 5)]
    answers = ask_together(triton, "total", requests)
    assert [answer.as_numpy("total").tolist() for answer in answers] == [[[3]], [[5]]]
    rows, runs = counted(triton, "total", rows_before + 2)
    assert (rows - rows_before, runs - runs_before) == (2, 1)


def test_whoever_shares_or_has_another_run_gets_their_own_answer(triton: Triton) -> None:
    generator = np.random.default_rng(0)
    requests = [
        {"index": generator.integers(0, 3, (rows, 1)) + 7 * (number % 10 == 9)}
        for number, rows in enumerate(generator.integers(1, 5, 300).tolist())
    ]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda inputs: ask(triton, "lookup_beside", **inputs), requests))
    for number, (inputs, answer) in enumerate(zip(requests, answers, strict=True)):
        if number % 10 == 9:
            assert "out of data bounds" in answer.message()
        else:
            assert answer.as_numpy("value").tolist() == (10 + 10 * inputs["index"]).tolist()


def test_requests_of_unequal_lengths_share_a_run_and_get_their_own_answers(
    client: OwnTriton,
) -> None:
    """Filled up with zeros, which add nothing to a total; `width` says how long it was run."""
    generator = np.random.default_rng(0)
    rows = [
        generator.integers(-9, 10, size).astype(np.float32)
        for size in generator.integers(1, [3, 6], (300, 2)).tolist()
    ]

    def ask_padded(x: np.ndarray[Any, Any]) -> Any:
        padding = Padding({"x": np.int64(0)}, ["same"])
        return client.infer("columns_beside", {"x": x}, hints=Hints(padding=padding), timeout=60)

    until, widened = time.monotonic() + PATIENCE_S, False
    with ThreadPoolExecutor(16) as pool:
        while not widened:
            assert time.monotonic() < until, "no request was ever filled up"
            for x, answer in zip(rows, pool.map(ask_padded, rows), strict=True):
                np.testing.assert_array_equal(answer["same"], x)
                np.testing.assert_array_equal(answer["total"], x.sum(1, keepdims=True))
                widened |= bool((answer["width"] > x.shape[1]).any())
        for x, answer in zip(
            rows,
            pool.map(lambda x: client.infer("columns_beside", {"x": x}, timeout=60), rows),
            strict=True,
        ):
            np.testing.assert_array_equal(answer["width"], np.full((len(x), 1), x.shape[1]))


def test_short_rows_of_a_request_are_not_run_as_long_as_the_longest(client: OwnTriton) -> None:
    """Beside others and alone; rows of zeros only are what was sent."""
    x = np.zeros((5, 40), np.float32)
    x[0, :2], x[1], x[2, :4], x[4, :39] = 5, 1, 2, 3

    def ask_padded(model: str) -> Any:
        padding = Padding({"x": 0}, ["same"])
        return client.infer(model, {"x": x}, hints=Hints(padding=padding), timeout=60)

    with ThreadPoolExecutor(8) as pool:
        beside = pool.map(ask_padded, ["columns_beside"] * 50)
        for answer in [ask_padded("columns_beside"), *beside]:
            assert answer["width"].tolist() == [[4], [40], [4], [40], [40]]
            assert answer["total"].tolist() == [[10], [40], [8], [0], [117]]
            np.testing.assert_array_equal(answer["same"], x)
    as_it_came = client.infer("columns_beside", {"x": x}, timeout=60)
    assert as_it_came["width"].tolist() == [[40]] * 5


@pytest.mark.parametrize(("parameter", "text"), REFUSED)
def test_parameters_that_say_nothing_are_refused(triton: Triton, parameter: str, text: str) -> None:
    x = grpc_client.InferInput("x", [1, 2], "FP32").set_data_from_numpy(ROW)
    with pytest.raises(InferenceServerException, match=parameter.partition("_")[0]) as caught:
        triton.client.infer("columns_beside", [x], parameters={parameter: text})
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("padding", '{"inputs": {"x": 0}, "outputs": ["total"]}'),
        ("rows", '{"same": [1]}'),
        ("rows_above", '{"same": [0, 100]}'),
    ],
)
def test_those_of_another_model_are_no_matter(triton: Triton, parameter: str, said: str) -> None:
    """An ensemble hands its parameters on to all of its steps."""
    x = grpc_client.InferInput("x", [1, 2], "FP32").set_data_from_numpy(ROW)
    asked = {parameter: f'{{"other": {said}}}'}
    answer = triton.client.infer("columns_beside", [x], parameters=asked)
    assert answer.as_numpy("width").tolist() == [[2]]
    assert answer.as_numpy("same").tolist() == ROW.tolist()


def test_padding_with_what_is_no_whole_number_is_not_asked_for(client: OwnTriton) -> None:
    hints = Hints(padding=Padding({"x": 0.5}, []))  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        client.infer("columns_beside", {"x": ROW}, hints=hints, timeout=60)


def test_a_wrong_shape_is_the_senders_error(triton: Triton) -> None:
    error = ask(triton, "loose", x=np.zeros((1, 2), np.float32))
    assert error.status() == "StatusCode.INVALID_ARGUMENT"
    assert "input 'x' has shape [1, 2], but the model expects [-1, 3]." in error.message()
    answer = ask(triton, "loose", x=np.zeros((1, 3), np.float32))
    assert answer.as_numpy("y").tolist() == [[1, 1, 1]]


def test_only_the_outputs_asked_for_are_sent(triton: Triton) -> None:
    answer = ask(triton, "lookup_alone", "echo", index=np.array([[2]]))
    assert answer.as_numpy("echo").tolist() == [[2]]
    assert answer.as_numpy("value") is None
    answer = ask(triton, "lookup_alone", index=np.array([[2]]))
    assert answer.as_numpy("value").tolist() == [[30]]
    assert answer.as_numpy("echo").tolist() == [[2]]
