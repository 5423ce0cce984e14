"""The onnxruntime backend as a client of the real Triton sees it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from clients.errors import ModelFailed, UnknownModel
from clients.triton.client import Triton as OwnTriton
from tests.conftest import wait_for
from tests.support.models import onnx_models, onnx_repository
from tests.support.triton import process as triton_process
from tests.support.triton.calls import ask, ask_together, configuration
from tests.support.triton.process import Triton


def test_every_model_that_should_load_is_ready(triton: Triton) -> None:
    states = triton.states()
    assert {name: states[name] for name in onnx_repository.SERVED} == dict.fromkeys(
        onnx_repository.SERVED, ("READY", "")
    )


ROW = {"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}


class TestCompletion:
    @pytest.mark.parametrize(
        ("model", "most", "given"),
        [
            ("bare", 4, ROW),
            ("half_given", 16, ROW),
            ("scalar_rows", 2, {**ROW, "dims": ["1"], "reshape": {}}),
        ],
    )
    def test_it_is_made_from_the_file_and_from_what_is_written(
        self, triton: Triton, model: str, most: int, given: dict[str, Any]
    ) -> None:
        config = configuration(triton, model)
        assert config["max_batch_size"] == most
        assert "dynamic_batching" in config
        assert config["input"] == [given]
        assert config["output"] == [{**given, "name": "y"}]
        x = np.arange(2 * int(given["dims"][-1]), dtype=np.float32).reshape(2, -1)
        assert ask(triton, model, x=x).as_numpy("y").tolist() == (x + 1).tolist()

    def test_of_unknown_ranks_those_of_the_configuration_count(self, triton: Triton) -> None:
        x = np.arange(8, dtype=np.float32).reshape(4, 2)
        answer = ask(triton, "unknown_rank_rows", x=x)
        assert answer.as_numpy("y").tolist() == (2 * x).tolist()

    @pytest.mark.parametrize("shape", [[6], [3, 2], [1, 6, 1]])
    def test_an_output_of_unknown_rank_has_the_shape_that_comes(
        self, triton: Triton, shape: list[int]
    ) -> None:
        x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
        answer = ask(triton, "reshaped", x=x, dims=np.array(shape))
        assert answer.as_numpy("y").shape == tuple(shape)
        assert answer.as_numpy("y").ravel().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("model", onnx_repository.REFUSED)
def test_refusal_says_what_is_wrong(triton: Triton, model: str) -> None:
    state, reason = triton.states()[model]
    assert state == "UNAVAILABLE"
    for part in onnx_repository.REFUSED[model][2]:
        assert part in reason


class TestRowsThatChangeEachOther:
    """A softmax down the rows: of one row of zeros it is 1, of two 0.5 each."""

    def test_those_of_one_request_alone_share_a_run(self, triton: Triton) -> None:
        model = "shares_bare"
        zeros = {"x": np.zeros((1, 2), np.float32)}
        answers = ask_together(triton, model, [zeros] * 12)
        assert [answer.as_numpy("y").tolist() for answer in answers] == [[[1, 1]]] * 12
        assert "dynamic_batching" not in configuration(triton, model)
        answer = ask(triton, model, x=np.zeros((4, 2), np.float32))
        assert answer.as_numpy("y").tolist() == [[0.25, 0.25]] * 4

    def test_the_log_says_so_and_how_to_say_otherwise(self, triton: Triton) -> None:
        begin = "model 'shares_bare': requests"
        said = [line for line in triton.log().splitlines() if begin in line]
        assert len(said) == 1
        assert "run one by one: output 'y' differs by" in said[0]
        assert "`dynamic_batching { }`" in said[0]
        assert "model 'bare': requests share runs: in a test" in triton.log()


def test_what_mends_a_model_is_the_hint(client: OwnTriton) -> None:
    with pytest.raises(ModelFailed) as caught:
        client.load("zipmap", timeout=300)
    assert caught.value.message.endswith(
        "is a sequence of maps (ZipMap), which Triton cannot carry."
    )
    assert caught.value.hint.startswith("convert the model again with skl2onnx.to_onnx(")


class TestTensors:
    def test_strings_go_both_ways(self, triton: Triton) -> None:
        words = np.array([["a", ""], ["é", "名前"]], dtype=object)
        answer = ask(triton, "words", text=np.char.encode(words.astype(str)).astype(object))
        decoded = [[word.decode() for word in row] for row in answer.as_numpy("same")]
        assert decoded == words.tolist()
        answer = ask(triton, "words", text=np.empty((0, 2), dtype=object))
        assert answer.as_numpy("same").shape == (0, 2)

    def test_bytes_that_are_not_text_fail_alone(self, triton: Triton) -> None:
        requests = [{"text": np.array([[word]], dtype=object)} for word in (b"\xff", b"fine")]
        bad, good = ask_together(triton, "word_rows", requests)
        assert "element 0 of input 'text' was expected to be UTF-8" in bad.message()
        assert good.as_numpy("same").tolist() == [[b"fine"]]

    def test_every_numeric_type_comes_back_as_it_went(self, triton: Triton) -> None:
        inputs = onnx_models.in_every_type()
        answer = ask(triton, "every_type", **inputs)
        for name, array in inputs.items():
            came = answer.as_numpy(name.replace("in_", "out_"))
            assert came.dtype == array.dtype
            assert came.tolist() == array.tolist()

    def test_nothing_in_is_nothing_out(self, triton: Triton) -> None:
        answer = ask(triton, "empty", x=np.zeros((0, 5), np.float32))
        assert answer.as_numpy("total").shape == (0, 1)
        answer = ask(triton, "empty", x=np.zeros((2, 0), np.float32))
        assert answer.as_numpy("total").tolist() == [[0], [0]]

    def test_an_input_with_a_default_in_the_file_has_that(self, triton: Triton) -> None:
        x = np.zeros(3, np.float32)
        assert ask(triton, "with_default", x=x).as_numpy("y").tolist() == [1, 2, 3]

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

    @pytest.mark.parametrize("model", ["running", "running_alone"])
    def test_a_sequence_gets_its_state_back(self, triton: Triton, model: str) -> None:
        """Eight at the same time, whose runs may be shared; an earlier one of this id is over."""
        assert [one["name"] for one in configuration(triton, model)["input"]] == ["x"]

        def totals(identity: int) -> list[float]:
            came = []
            for step in range(1, 21):
                x = grpc_client.InferInput("x", [1, 1], "FP32")
                x.set_data_from_numpy(np.array([[identity * step]], np.float32))
                at = {"sequence_start": step == 1, "sequence_end": step == 20}
                answer = triton.client.infer(model, [x], sequence_id=identity, **at)
                came.append(answer.as_numpy("y").item())
            return came

        with ThreadPoolExecutor(8) as pool:
            pairs = pool.map(lambda identity: [totals(identity), totals(identity)], range(1, 9))
            for by, pair in enumerate(pairs, start=1):
                assert pair == [[10 + by * step * (step + 1) / 2 for step in range(1, 21)]] * 2


class TestInstances:
    def test_every_instance_has_a_process(self, triton: Triton, client: OwnTriton) -> None:
        """No count means Triton's default for this backend, two."""
        folder = triton.log_file.parent
        for model, instances in (("trio", 3), ("batch_size", 1), ("bare", 2)):
            assert configuration(triton, model)["instance_group"][0]["count"] == instances
            assert len(triton_process.stubs(folder, model)) == instances
            assert client.instances(model, timeout=300) == instances

    def test_an_unloaded_model_leaves_no_process(self, triton: Triton) -> None:
        triton.client.unload_model("half_given")
        triton.await_models(["half_given"], seconds=120)
        assert triton.states()["half_given"] == ("UNAVAILABLE", "unloaded")
        folder = triton.log_file.parent
        wait_for(lambda: not triton_process.stubs(folder, "half_given"), "the end of its process")
        triton.client.load_model("half_given")
        assert triton.states()["half_given"][0] == "READY"


def test_a_model_gives_a_sign_of_life(triton: Triton, client: OwnTriton) -> None:
    tensor = grpc_client.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3), np.float32))
    now = round(time.time() * 1e6)
    answer = triton.client.infer("bare", [tensor], parameters={"deadline_us": now + 10**9})
    assert answer.as_numpy("y").shape == (1, 3)
    index = np.array([[7]])  # fails where it is run
    client.knock("lookup_beside", {"index": index}, timeout=300)
    with ThreadPoolExecutor(8) as pool:  # and beside others
        asked = [pool.submit(ask, triton, "lookup_beside", index=index - 5) for _ in range(50)]
        for _ in range(20):
            client.knock("lookup_beside", {"index": index}, timeout=300)
        assert {one.result().as_numpy("value").item() for one in asked} == {30}
    client.knock("bare", {"x": np.zeros((1, 2), np.float32)}, timeout=300)
    with pytest.raises(UnknownModel):
        client.knock("nobody", {}, timeout=300)
