"""The onnxruntime backend as a client of the real Triton sees it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from clients.errors import ModelFailed, UnknownModel
from clients.triton.client import Triton as OwnTriton
from tests.support.models import onnx_models, onnx_repository
from tests.support.triton import process as triton_process
from tests.support.triton.calls import ask, ask_together, configuration
from tests.support.triton.process import Triton


def test_every_model_that_should_load_is_ready(triton: Triton) -> None:
    states = triton.states()
    assert {name: states[name] for name in onnx_repository.SERVED} == dict.fromkeys(
        onnx_repository.SERVED, ("READY", "")
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


@pytest.mark.parametrize("model", onnx_repository.REFUSED)
def test_refusal_says_what_is_wrong(triton: Triton, model: str) -> None:
    state, reason = triton.states()[model]
    assert state == "UNAVAILABLE"
    for part in onnx_repository.REFUSED[model][2]:
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
        assert "model 'bare': requests share runs: in a test" in triton.log()


def test_what_mends_a_model_is_the_hint(triton: Triton) -> None:
    client = OwnTriton(f"127.0.0.1:{triton.ports[0]}")
    with pytest.raises(ModelFailed) as caught:
        client.load("zipmap", timeout=20)
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
        """In spite of its accelerator: OpenVINO has no such setting."""
        assert ask(triton, "accelerated", x=np.zeros((1, 3), np.float32)).as_numpy("y").sum() == 3
        said = "'accelerated': run by ONNX Runtime in f32 (which alone knows session.set_denormal"
        assert said in triton.log()

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
    with pytest.raises(InferenceServerException, match="the caller does not wait"):
        triton.client.infer("bare", [tensor], parameters={"deadline_us": now - 10**6})
    with pytest.raises(InferenceServerException, match="soon"):
        triton.client.infer("bare", [tensor], parameters={"deadline_us": "soon"})
