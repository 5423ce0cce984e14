"""The onnxruntime backend as a client of the real Triton sees it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_models
import pytest
import triton_process
import tritonclient.grpc as grpc_client
from triton_process import Triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from clients.errors import ModelFailed, UnknownModel
from clients.triton.client import Triton as OwnTriton
from clients.triton.server import Hints, Padding

ROW = np.zeros((1, 2), np.float32)


def ask(triton: Triton, model: str, *outputs: str, **inputs: np.ndarray[Any, Any]) -> Any:
    """Send one request and return its answer, or the error as a value."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(
            grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        )
        tensors[-1].set_data_from_numpy(array)
    wanted = [grpc_client.InferRequestedOutput(name) for name in outputs]
    try:
        return triton.client.infer(model, tensors, outputs=wanted or None, client_timeout=20)
    except InferenceServerException as error:
        return error


def ask_together(triton: Triton, model: str, requests: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda inputs: ask(triton, model, **inputs), requests))


def configuration(triton: Triton, model: str) -> dict[str, Any]:
    answer: dict[str, Any] = triton.client.get_model_config(model, as_json=True)["config"]
    return answer


def counts(triton: Triton, model: str) -> tuple[int, int]:
    """Return how many rows were inferred, and in how many executions."""
    stats = triton.client.get_inference_statistics(model).model_stats[0]
    return stats.inference_count, stats.execution_count


def counted(triton: Triton, model: str, rows: int) -> tuple[int, int]:
    """Return the counts when there are so many rows: Triton counts after it has answered."""
    until = time.monotonic() + 5
    while (came := counts(triton, model))[0] < rows and time.monotonic() < until:
        time.sleep(0.02)
    return came


def test_every_model_that_should_load_is_ready(triton: Triton) -> None:
    states = triton.states()
    assert {name: states[name] for name in onnx_models.SERVED} == dict.fromkeys(
        onnx_models.SERVED, ("READY", "")
    )


class TestCompletion:
    def test_a_file_without_configuration_batches_by_four(self, triton: Triton) -> None:
        config = configuration(triton, "bare")
        assert config["max_batch_size"] == 4
        assert "dynamic_batching" in config
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}]
        assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": ["3"]}]
        answer = ask(triton, "bare", x=np.array([[1, 2, 3], [4, 5, 6]], np.float32))
        assert answer.as_numpy("y").tolist() == [[2, 3, 4], [5, 6, 7]]

    def test_a_written_0_is_obeyed(self, triton: Triton) -> None:
        config = configuration(triton, "plus_zero")
        assert config.get("max_batch_size", 0) == 0
        assert "dynamic_batching" not in config
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]}]

    def test_a_scalar_per_row_is_declared_as_one_and_reshaped(self, triton: Triton) -> None:
        config = configuration(triton, "scalar_rows")
        assert config["max_batch_size"] == 2
        assert config["input"] == [
            {"name": "x", "data_type": "TYPE_FP32", "dims": ["1"], "reshape": {}}
        ]
        answer = ask(triton, "scalar_rows", x=np.array([[1], [2]], np.float32))
        assert answer.as_numpy("y").tolist() == [[2], [3]]

    def test_a_scalar_without_batching_is_declared_as_one(self, triton: Triton) -> None:
        config = configuration(triton, "scalar")
        assert config.get("max_batch_size", 0) == 0
        assert config["input"][0]["dims"] == ["1"]
        answer = ask(triton, "scalar", x=np.array([1], np.float32))
        assert answer.as_numpy("y").tolist() == [2]

    @pytest.mark.parametrize(
        ("model", "shape"),
        [
            ("unknown_ranks", [3, 2]),
            ("unknown_rank_rows", [4, 2]),
            ("unknown_rank_out", [5]),
        ],
    )
    def test_of_unknown_ranks_those_of_the_configuration_count(
        self, triton: Triton, model: str, shape: list[int]
    ) -> None:
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        answer = ask(triton, model, x=x)
        assert answer.as_numpy("y").tolist() == (2 * x).tolist()

    @pytest.mark.parametrize("shape", [[6], [3, 2], [1, 6, 1]])
    def test_an_output_of_unknown_rank_has_the_shape_that_comes(
        self, triton: Triton, shape: list[int]
    ) -> None:
        x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
        answer = ask(triton, "reshaped", x=x, dims=np.array(shape))
        assert answer.as_numpy("y").shape == tuple(shape)
        assert answer.as_numpy("y").ravel().tolist() == [1, 2, 3, 4, 5, 6]

    def test_what_is_given_is_kept(self, triton: Triton) -> None:
        config = configuration(triton, "half_given")
        assert config["max_batch_size"] == 16
        assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": ["3"]}]


@pytest.mark.parametrize("model", onnx_models.REFUSED)
def test_refusal_says_what_is_wrong(triton: Triton, model: str) -> None:
    state, reason = triton.states()[model]
    assert state == "UNAVAILABLE"
    for part in onnx_models.REFUSED[model][2]:
        assert part in reason


class TestRowsThatChangeEachOther:
    """A softmax down the rows: of one row of zeros it is 1, of two 0.5 each."""

    @pytest.mark.parametrize("model", ["shares_bare", "shares_configured", "shares_eight"])
    def test_requests_share_no_run(self, triton: Triton, model: str) -> None:
        zeros = {"x": np.zeros((1, 2), np.float32)}
        answers = ask_together(triton, model, [zeros] * 12)
        assert [answer.as_numpy("y").tolist() for answer in answers] == [[[1, 1]]] * 12
        assert "dynamic_batching" not in configuration(triton, model)

    @pytest.mark.parametrize("model", ["shares_bare", "shares_configured", "shares_eight"])
    def test_rows_of_one_request_are_run_as_they_came(self, triton: Triton, model: str) -> None:
        answer = ask(triton, model, x=np.zeros((4, 2), np.float32))
        assert answer.as_numpy("y").tolist() == [[0.25, 0.25]] * 4

    def test_the_log_says_so_and_how_to_say_otherwise(self, triton: Triton) -> None:
        begin = "model 'shares_bare': requests"
        said = [line for line in triton.log().splitlines() if begin in line]
        assert len(said) == 1
        assert "run one by one: output 'y' differs by" in said[0]
        assert "`dynamic_batching { }`" in said[0]
        assert "model 'bare': requests share runs: in a trial" in triton.log()


def test_what_mends_a_model_is_the_hint(triton: Triton) -> None:
    client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
    with pytest.raises(ModelFailed) as caught:
        client.load("zipmap", timeout=20)
    assert caught.value.message.endswith(
        "is a sequence of maps (ZipMap), which Triton cannot carry."
    )
    assert caught.value.hint.startswith("convert the model again with skl2onnx.to_onnx(")


class TestBatching:
    def test_concurrent_requests_share_one_run(self, triton: Triton) -> None:
        rows_before, runs_before = counts(triton, "batch_size")
        requests = [{"x": np.zeros((rows, 1), np.float32)} for rows in (1, 2, 1)]
        answers = ask_together(triton, "batch_size", requests)
        assert [answer.as_numpy("rows").tolist() for answer in answers] == [
            [[4]],
            [[4], [4]],
            [[4]],
        ]
        rows, runs = counted(triton, "batch_size", rows_before + 4)
        assert (rows - rows_before, runs - runs_before) == (4, 1)

    def test_requests_of_unequal_shapes_are_handed_over_together(self, triton: Triton) -> None:
        """Triton's own batches have one shape; this one waits for two requests, ten seconds."""
        self.assert_handed_over_together(triton)

    def test_so_they_are_on_one_core(self, tmp_path: Path) -> None:
        onnx_models.write_repository(tmp_path / "models")
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            with triton_process.running(tmp_path, ["total"]) as server:
                self.assert_handed_over_together(server)
        finally:
            os.sched_setaffinity(0, cores)

    @staticmethod
    def assert_handed_over_together(triton: Triton) -> None:
        rows_before, runs_before = counts(triton, "total")
        requests = [{"x": np.ones((1, length), np.float32)} for length in (3, 5)]
        answers = ask_together(triton, "total", requests)
        assert [answer.as_numpy("total").tolist() for answer in answers] == [[[3]], [[5]]]
        rows, runs = counted(triton, "total", rows_before + 2)
        assert (rows - rows_before, runs - runs_before) == (2, 1)

    @pytest.mark.parametrize("shapes", [[(1, 3), (2, 3)], [(3, 5), (4, 3)]])
    def test_each_sender_gets_its_own_rows(
        self, triton: Triton, shapes: list[tuple[int, int]]
    ) -> None:
        requests = [{"x": np.full((1, length), fill, np.float32)} for fill, length in shapes]
        answers = ask_together(triton, "total", requests)
        assert [answer.as_numpy("total").tolist() for answer in answers] == [
            [[fill * length]] for fill, length in shapes
        ]

    def test_a_failing_request_fails_alone(self, triton: Triton) -> None:
        requests = [{"index": np.array([[index]])} for index in (0, 7, 2)]
        good, bad, other = ask_together(triton, "lookup", requests)
        assert isinstance(bad, InferenceServerException)
        assert "out of data bounds" in bad.message()
        assert good.as_numpy("value").tolist() == [[10]]
        assert other.as_numpy("value").tolist() == [[30]]

    def test_whoever_shares_or_has_another_run_gets_their_own_answer(self, triton: Triton) -> None:
        generator = np.random.default_rng(0)
        requests = [
            {"index": generator.integers(0, 3, (rows, 1)) + 7 * (number % 10 == 9)}
            for number, rows in enumerate(generator.integers(1, 5, 300).tolist())
        ]
        with ThreadPoolExecutor(16) as pool:
            answers = list(
                pool.map(lambda inputs: ask(triton, "lookup_beside", **inputs), requests)
            )
        for number, (inputs, answer) in enumerate(zip(requests, answers, strict=True)):
            if number % 10 == 9:
                assert "out of data bounds" in answer.message()
            else:
                assert answer.as_numpy("value").tolist() == (10 + 10 * inputs["index"]).tolist()

    def test_requests_of_unequal_lengths_share_a_run_and_get_their_own_answers(
        self, triton: Triton
    ) -> None:
        """Filled up with zeros, which add nothing to a total; `width` says how long it was run."""
        client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
        generator = np.random.default_rng(0)
        rows = [
            generator.integers(-9, 10, size).astype(np.float32)
            for size in generator.integers(1, [3, 6], (300, 2)).tolist()
        ]

        def ask_padded(x: np.ndarray[Any, Any]) -> Any:
            padding = Padding({"x": np.int64(0)}, ["same"])
            return client.infer(
                "columns_beside", {"x": x}, hints=Hints(padding=padding), timeout=20
            )

        until, widened = time.monotonic() + 20, False
        with ThreadPoolExecutor(16) as pool:
            while not widened:
                assert time.monotonic() < until, "no request was ever filled up"
                for x, answer in zip(rows, pool.map(ask_padded, rows), strict=True):
                    np.testing.assert_array_equal(answer["same"], x)
                    np.testing.assert_array_equal(answer["total"], x.sum(1, keepdims=True))
                    widened |= bool((answer["width"] > x.shape[1]).any())
            for x, answer in zip(
                rows,
                pool.map(lambda x: client.infer("columns_beside", {"x": x}, timeout=20), rows),
                strict=True,
            ):
                np.testing.assert_array_equal(answer["width"], np.full((len(x), 1), x.shape[1]))

    def test_short_rows_of_a_request_are_not_run_as_long_as_the_longest(
        self, triton: Triton
    ) -> None:
        """Beside others and alone; rows of zeros only are what was sent."""
        client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
        x = np.zeros((5, 40), np.float32)
        x[0, :2], x[1], x[2, :4], x[4, :39] = 5, 1, 2, 3

        def ask_padded(model: str) -> Any:
            padding = Padding({"x": 0}, ["same"])
            return client.infer(model, {"x": x}, hints=Hints(padding=padding), timeout=20)

        with ThreadPoolExecutor(8) as pool:
            beside = pool.map(ask_padded, ["columns_beside"] * 50)
            for answer in [ask_padded("columns_beside"), *beside]:
                assert answer["width"].tolist() == [[4], [40], [4], [40], [40]]
                assert answer["total"].tolist() == [[10], [40], [8], [0], [117]]
                np.testing.assert_array_equal(answer["same"], x)
        as_it_came = client.infer("columns_beside", {"x": x}, timeout=20)
        assert as_it_came["width"].tolist() == [[40]] * 5

    @pytest.mark.parametrize(
        "padding",
        [
            '{"columns_beside": {"inputs": {"x": 0.5}, "outputs": []}}',
            '{"columns_beside": {"inputs": {"x": 0}}}',
            '{"columns_beside": {"inputs": {"x": 0}, "outputs": "same"}}',
            '{"columns_beside": {"inputs": {"x": 0}, "outputs": ["sane"]}}',
            '{"columns_beside": {"inputs": {"x": 0, "z": 0}, "outputs": []}}',
            '{"columns_beside": {"inputs": ["x"], "outputs": []}}',
            '{"columns_beside": 0}',
            "[0]",
            "{",
        ],
    )
    def test_padding_that_is_none_is_refused(self, triton: Triton, padding: str) -> None:
        x = grpc_client.InferInput("x", [1, 2], "FP32").set_data_from_numpy(ROW)
        with pytest.raises(InferenceServerException, match="padding") as caught:
            triton.client.infer("columns_beside", [x], parameters={"padding": padding})
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

    def test_padding_with_what_is_no_whole_number_is_not_asked_for(self, triton: Triton) -> None:
        client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
        half = cast("int", 0.5)
        with pytest.raises(TypeError):
            client.infer(
                "columns_beside",
                {"x": np.zeros((1, 2), np.float32)},
                hints=Hints(padding=Padding({"x": half}, [])),
                timeout=20,
            )

    def test_padding_of_another_model_is_no_matter(self, triton: Triton) -> None:
        """An ensemble hands its parameters on to all of its steps."""
        x = grpc_client.InferInput("x", [1, 2], "FP32").set_data_from_numpy(ROW)
        asked = {"padding": '{"other": {"inputs": {"x": 0}, "outputs": ["total"]}}'}
        answer = triton.client.infer("columns_beside", [x], parameters=asked)
        assert answer.as_numpy("width").tolist() == [[2]]

    def test_a_wrong_shape_is_the_senders_error(self, triton: Triton) -> None:
        error = ask(triton, "loose", x=np.zeros((1, 2), np.float32))
        assert error.status() == "StatusCode.INVALID_ARGUMENT"
        assert "input 'x' has shape [1, 2], but the model expects [-1, 3]." in error.message()
        answer = ask(triton, "loose", x=np.zeros((1, 3), np.float32))
        assert answer.as_numpy("y").tolist() == [[1, 1, 1]]

    def test_only_the_outputs_asked_for_are_sent(self, triton: Triton) -> None:
        answer = ask(triton, "lookup_alone", "echo", index=np.array([[2]]))
        assert answer.as_numpy("echo").tolist() == [[2]]
        assert answer.as_numpy("value") is None
        answer = ask(triton, "lookup_alone", index=np.array([[2]]))
        assert answer.as_numpy("value").tolist() == [[30]]
        assert answer.as_numpy("echo").tolist() == [[2]]


class TestTensors:
    def test_strings_go_both_ways(self, triton: Triton) -> None:
        words = np.array([["a", ""], ["é", "名前"]], dtype=object)
        answer = ask(triton, "words", text=np.char.encode(words.astype(str)).astype(object))
        decoded = [[word.decode() for word in row] for row in answer.as_numpy("same")]
        assert decoded == words.tolist()

    def test_no_strings_are_answered_with_none(self, triton: Triton) -> None:
        answer = ask(triton, "words", text=np.empty((0, 2), dtype=object))
        assert answer.as_numpy("same").shape == (0, 2)

    def test_bytes_that_are_not_text_fail_alone(self, triton: Triton) -> None:
        requests = [{"text": np.array([[word]], dtype=object)} for word in (b"\xff", b"fine")]
        bad, good = ask_together(triton, "word_rows", requests)
        assert "element 0 of input 'text' was expected to be UTF-8" in bad.message()
        assert good.as_numpy("same").tolist() == [[b"fine"]]

    def test_every_numeric_type_comes_back_as_it_went(self, triton: Triton) -> None:
        arrays = {
            name: np.array([[0, 1], [1, 0]], np.bool_)
            if name == "BOOL"
            else np.array([[0, 1], [2, 100]], name.lower().replace("fp", "float"))
            for name in onnx_models.EVERY_TYPE
        }
        answer = ask(triton, "every_type", **{f"in_{name}": a for name, a in arrays.items()})
        for name, array in arrays.items():
            came = answer.as_numpy(f"out_{name}")
            assert came.dtype == array.dtype
            assert came.tolist() == array.tolist()

    def test_nothing_in_is_nothing_out(self, triton: Triton) -> None:
        answer = ask(triton, "empty", x=np.zeros((0, 5), np.float32))
        assert answer.as_numpy("total").shape == (0, 1)
        answer = ask(triton, "empty", x=np.zeros((2, 0), np.float32))
        assert answer.as_numpy("total").tolist() == [[0], [0]]

    def test_an_input_with_a_default_may_be_left_out(self, triton: Triton) -> None:
        x = np.zeros(3, np.float32)
        assert ask(triton, "with_default", x=x).as_numpy("y").tolist() == [1, 2, 3]
        answer = ask(triton, "with_default", x=x, bias=np.ones(3, np.float32))
        assert answer.as_numpy("y").tolist() == [1, 1, 1]

    def test_a_sequence_gets_its_control_input(self, triton: Triton) -> None:
        x = grpc_client.InferInput("x", [1, 1], "FP32")
        x.set_data_from_numpy(np.array([[5]], np.float32))
        answers = [
            triton.client.infer(
                "sequence", [x], sequence_id=9, sequence_start=step == 0, sequence_end=step == 2
            )
            for step in range(3)
        ]
        assert [answer.as_numpy("y").item() for answer in answers] == [6, 5, 5]


class TestInstances:
    def test_every_instance_has_a_process(self, triton: Triton) -> None:
        folder = triton.log_file.parent
        client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
        for model, instances in (("trio", 3), ("batch_size", 1)):
            assert len(triton_process.stubs(folder, model)) == instances
            assert client.instances(model, timeout=5) == instances

    def test_no_count_means_tritons_default_for_this_backend(self, triton: Triton) -> None:
        assert configuration(triton, "bare")["instance_group"][0]["count"] == 2
        assert len(triton_process.stubs(triton.log_file.parent, "bare")) == 2

    def test_a_setting_of_onnx_runtime_keeps_a_model_there(self, triton: Triton) -> None:
        """In spite of its accelerator: OpenVINO has no such execution mode."""
        assert ask(triton, "accelerated", x=np.zeros((1, 3), np.float32)).as_numpy("y").sum() == 3
        assert "'accelerated': run by ONNX Runtime in f32 (which alone knows execution_mode" in (
            triton.log()
        )

    def test_an_unloaded_model_leaves_no_process(self, triton: Triton) -> None:
        triton.client.unload_model("half_given")
        triton.await_models(["half_given"], seconds=10)
        assert triton.states()["half_given"] == ("UNAVAILABLE", "unloaded")
        assert not triton_process.stubs(triton.log_file.parent, "half_given")
        triton.client.load_model("half_given")
        assert triton.states()["half_given"][0] == "READY"


def test_what_nobody_waits_for_is_refused(triton: Triton) -> None:
    tensor = grpc_client.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3), np.float32))
    now = round(time.time() * 1e6)
    answer = triton.client.infer("bare", [tensor], parameters={"deadline_us": now + 10**7})
    assert answer.as_numpy("y").shape == (1, 3)
    # So a model gives a sign of life.
    client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
    index = np.array([[7]])  # fails where it is run
    client.knock("lookup_beside", {"index": index}, timeout=10)
    with ThreadPoolExecutor(8) as pool:  # and beside others
        asked = [pool.submit(ask, triton, "lookup_beside", index=index - 5) for _ in range(50)]
        for _ in range(20):
            client.knock("lookup_beside", {"index": index}, timeout=10)
        assert {one.result().as_numpy("value").item() for one in asked} == {30}
    client.knock("bare", {"x": np.zeros((1, 2), np.float32)}, timeout=10)
    with pytest.raises(UnknownModel):
        client.knock("nobody", {}, timeout=10)
    with pytest.raises(InferenceServerException, match="nobody waits"):
        triton.client.infer("bare", [tensor], parameters={"deadline_us": now - 10**6})
    with pytest.raises(InferenceServerException, match="soon"):
        triton.client.infer("bare", [tensor], parameters={"deadline_us": "soon"})
