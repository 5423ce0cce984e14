"""Requests by Triton's own protocol that need more than to be passed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.conftest import Endpoint, running, wait_for
from tests.support.models import onnx_models

NUMBERS = np.array([[1, 2, 3]], np.float32)
X = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
CACHE = """
response_cache { enable: true }
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
"""
TEXTS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.Tensor("text", np.array([[b"a", b"bb", b"c"]], np.object_))
        truth = pb_utils.Tensor("truth", np.array([[True, False, True]]))
        return [pb_utils.InferenceResponse([text, truth]) for _ in requests]
"""
OF_TEXTS = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "text" data_type: TYPE_STRING dims: [ 3 ] }
output { name: "truth" data_type: TYPE_BOOL dims: [ 3 ] }
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The container with four models.

    `plus` and `wide` answer x + 1, [n, 3] and of any width; `two` answers y = 2x and z = x², from
    the response cache; `texts` answers texts and truths.
    """
    folder = tmp_path_factory.mktemp("requests")
    models = folder / "models"
    onnx_models.plus_one(models / "plus" / "1" / "model.onnx")
    onnx_models.plus_one(models / "wide" / "1" / "model.onnx", ("n", "m"))
    onnx_models.save(
        models / "two" / "1" / "model.onnx",
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Mul", ["x", "x"], ["z"])],
        [("x", TensorProto.FLOAT, ("n", 3))],
        [(name, TensorProto.FLOAT, ("n", 3)) for name in ("y", "z")],
    )
    for name in ("plus", "wide", "two"):
        cache = {"two": CACHE, "wide": "response_cache { enable: true }\n"}.get(name, "")
        text = f'backend: "onnxruntime"\nmax_batch_size: 4\n{cache}'
        (models / name / "config.pbtxt").write_text(text)
    (models / "texts" / "1").mkdir(parents=True)
    (models / "texts" / "1" / "model.py").write_text(TEXTS)
    (models / "texts" / "config.pbtxt").write_text(OF_TEXTS)
    with running(folder, MODEL_REPOSITORY=str(models)) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: Endpoint) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{endpoint.port}")


def infer(endpoint: Endpoint, model: str, **body: Any) -> Any:
    return endpoint.call(f"/v2/models/{model}/infer", json.dumps({"inputs": [X], **body}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "X"}, "there is no input `X`; the model has `x` FP32 [-1, 3]"),
        ({"shape": [1, 1, 3]}, "input `x` wants FP32 [-1, 3]; you sent FP32 [1, 1, 3]"),
        ({"datatype": "INT32"}, "input `x` wants FP32 [-1, 3]; you sent INT32 [1, 3]; send it as"),
        (None, "`inputs` is []; expected"),
    ],
    ids=["name", "shape", "type", "missing"],
)
def test_a_wrong_tensor_is_answered_with_those_of_the_model(
    endpoint: Endpoint, change: dict[str, Any] | None, said: str
) -> None:
    answer = infer(endpoint, "plus", inputs=[] if change is None else [{**X, **change}])
    assert answer.status == 400
    assert answer.json["error"].startswith(said)


def test_equal_bytes_in_other_shapes_are_other_requests(endpoint: Endpoint) -> None:
    """Triton's cache compares bytes alone; `wide` asks for it, and two of its sizes vary."""
    for route in ("/v2/models/wide/infer", "/infer/wide"):
        for shape in ([1, 4], [2, 2], [4, 1], [2, 2], [1, 4]):
            one = {**X, "shape": shape, "data": [1, 2, 3, 4]}
            (output,) = endpoint.call(route, json.dumps({"inputs": [one]})).json["outputs"]
            assert output["shape"] == shape
            assert output["data"] == [2, 3, 4, 5]


def test_triton_s_client_reads_what_the_model_takes(client: Any) -> None:
    x = triton.InferInput("X", [1, 3], "FP32").set_data_from_numpy(NUMBERS)
    with pytest.raises(InferenceServerException, match="the model has `x` FP32") as caught:
        client.infer("plus", [x])
    assert caught.value.status() == "400"


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("first", [["y"], ["z"], None])
def test_the_cache_keeps_whole_answers(client: Any, first: list[str] | None, binary: bool) -> None:
    """Triton itself would answer the second request with the output of the first one."""
    numbers = NUMBERS + 100 * binary + (10 * len(first[0]) + ord(first[0]) if first else 0)
    x = triton.InferInput("x", [1, 3], "FP32")
    x.set_data_from_numpy(numbers.astype(np.float32), binary_data=binary)
    expected = {"y": 2 * numbers, "z": numbers**2}

    def hits() -> int:
        stats = client.get_inference_statistics("two")["model_stats"]
        return int(stats[0]["inference_stats"]["cache_hit"]["count"])

    before = hits()
    for names in (first, ["z"], ["y", "z"], None, ["y"]):
        outputs = names and [triton.InferRequestedOutput(n, binary_data=binary) for n in names]
        answer = client.infer("two", [x], outputs=outputs)
        came = {one["name"]: one for one in answer.get_response()["outputs"]}
        assert set(came) == set(names or ("y", "z"))
        for name, output in came.items():
            np.testing.assert_array_equal(answer.as_numpy(name), expected[name])
            assert names is None or ("data" in output) is not binary
    wait_for(lambda: hits() == before + 4, 10, "the hits")


def test_private_parameters_do_not_reach_the_cache(client: Any) -> None:
    """They would cut the answer, or fail it, for everyone who sends these inputs."""
    x = triton.InferInput("x", [1, 3], "FP32").set_data_from_numpy(NUMBERS + 50)
    cut = {"deadline_us": 1, "rows": '{"two": {"y": [0]}}'}
    for parameters in (cut, None):
        answer = client.infer("two", [x], parameters=parameters)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * (NUMBERS + 50))


@pytest.mark.parametrize(
    ("model", "body", "said"),
    [
        ("texts", {"outputs": [{"name": "text", "parameters": {"classification": 1}}]}, "BYTES"),
        ("texts", {"outputs": [{"name": "truth", "parameters": {"classification": 1}}]}, "BOOL"),
        (
            "texts",
            {"outputs": [{"name": "text", "parameters": {"classification": 1}}, {"name": "text"}]},
            "given twice",
        ),
        ("wide", {"inputs": [{**X, "shape": [0, 0], "data": []}]}, "a batch of no items"),
    ],
    ids=["texts", "truths", "twice", "no items"],
)
def test_what_would_end_triton_or_never_be_answered_is_refused(
    endpoint: Endpoint, model: str, body: dict[str, Any], said: str
) -> None:
    answer = infer(endpoint, model, **body)
    assert answer.status == 400
    assert said in answer.json["error"]
    assert infer(endpoint, "plus").json["outputs"][0]["data"] == [2, 3, 4]
    assert endpoint.call("/health").json["programs"]["Triton"]["restarts"] == 0


def test_classes_of_numbers_are_answered(endpoint: Endpoint) -> None:
    wanted = {"name": "y", "parameters": {"classification": 2}}
    answer = infer(endpoint, "plus", outputs=[wanted])
    assert answer.json["outputs"][0]["data"] == ["4.000000:2", "3.000000:1"]
    nothing = {**X, "shape": [1, 0], "data": []}
    answer = infer(endpoint, "wide", inputs=[nothing], outputs=[wanted])  # it ended Triton
    assert answer.json["outputs"][0]["shape"] == [1, 0]
