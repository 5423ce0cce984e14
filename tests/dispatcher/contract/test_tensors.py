"""Tensors: requests of the Open Inference Protocol, version 2, and NumPy files."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.tensors.v2_protocol import convert
from clients.triton.server import Signature, TensorSpec
from tests.support.asking import ADD, RED, ask, npy, tensor
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, assert_error, image


def test_a_v2_body_is_answered_with_one(client: FlaskClient) -> None:
    nested = tensor("B", (2, 3), data=[[10, 20, 30], [40, 50, 60.5]])
    inputs = [tensor("A", (2, 3), data=(1, 2, 3, 4, 5, 6)), nested]
    response = ask(client, "/infer/add", id="42", inputs=inputs, outputs=[{"name": "SUM"}])
    outputs = [tensor("SUM", (2, 3), data=[11, 22, 33, 44, 55, 66.5])]
    assert response.json == {"model_name": "add", "id": "42", "outputs": outputs}
    response = ask(client, modelname="add", payload={"inputs": [tensor()]})
    assert (response.json or {})["result"]["outputs"][0]["data"] == [1, 2, 3]
    response = ask(client, "/infer/words", inputs=[tensor("IN", (2,), "BYTES", ["a", "é"])])
    assert (response.json or {})["outputs"][0]["data"] == ["a", "é"]
    response = ask(client, modelname="resnet", inputs=[tensor("input", (1,), data=(1,))])
    assert response.status_code == 400  # the model itself was asked, and has no such input


WANTED = r"\"datatype\": \"FP32\""


def test_infinity_itself_fits_into_every_type_that_has_it() -> None:
    for datatype in ("FP16", "FP32", "FP64"):
        words = json.loads("[Infinity, -Infinity, NaN, null, 65519.0]")
        array = convert(words, datatype, "inputs[0].data")
        np.testing.assert_array_equal(array[:4], [np.inf, -np.inf, np.nan, np.nan])
        assert np.isfinite(array[4])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], ["`inputs` is []"]),
        ("x", ["`inputs` is 'x'"]),
        ([3], ["`inputs[0]` is 3"]),
        ([tensor("C")], ["no input `C`", "`A` FP32 [-1, 3]"]),
        ([tensor("B")], ["`A` is missing"]),
        ([tensor(), tensor()], ["twice"]),
        ([tensor(datatype="FP33")], ["'FP33'", "FP32"]),
        ([tensor(datatype=None)], ["null"]),
        ([tensor(datatype="INT32")], ["`A` wants FP32 [-1, 3]; you sent INT32 [1, 3]", WANTED]),
        (
            [tensor(datatype="FP64", shape=(3,))],
            ["wants FP32", WANTED, "send the same data as [1, 3]"],
        ),
        ([tensor(shape=(1, 2), data=(1, 2))], ["wants FP32 [-1, 3]; you sent FP32 [1, 2]"]),
        ([tensor(shape=(0, 2**21), data=())], ["has no numbers", "at most"]),
        ([tensor(shape=(3,))], ["you sent FP32 [3]", "as [1, 3]", "max_batch_size"]),
        (
            [tensor(shape=(9, 3), data=(1,) * 27)],
            ["9 items", "at most 8", "a larger max_batch_size"],
        ),
        ([tensor(shape=(2, 3))], ["3 elements", "wants 6"]),
        ([tensor(shape=[-1, 3])], ["`inputs[0].shape` is [-1, 3]"]),
        ([tensor(shape=[True, 3])], ["shape"]),
        ([tensor(data=["1", "2", "3"])], ["`inputs[0].data[0]` is '1'", "FP32"]),
        ([tensor(data=[True, 1, 2])], ["data[0]` is true"]),
        ([tensor(data="AAAA")], ["`inputs[0].data` is 'AAAA'", "expected a list"]),
        (
            [tensor(shape=(2, 3), data=[[1, 2], [3, 4], [5, 6]])],
            ["`inputs[0].data` is a list of 3", "expected a list of 2"],
        ),
        ([tensor(shape=(2, 3), data=[[1, 2, 3], [4]])], ["data[1]` is a list of 1"]),
        ([tensor(shape=(2, 3), data=[[1, 2, 3], 4])], ["data[1]` is 4", "a list of 3"]),
        ([tensor(data=[[1, 2, [3]]])], ["data[0][2]` is [3]"]),
        ([tensor(shape=(2, 3), data=[[1, 2, 3], [4, 5, "6"]])], ["data[1][2]` is '6'"]),
        (
            [tensor(data=(1, 1e39, 2))],
            ["data[1]` is 1e+39, which does not fit into FP32", "3.40282e+38"],
        ),
        (
            [{**tensor(), "parameters": {"content_type": "pd"}}],
            ["`inputs[0].parameters.content_type` is 'pd'", "np or str or base64"],
        ),
        ([{**tensor(), "parameters": {"content_type": "base64"}}], ["no BYTES"]),
        ([tensor(), tensor("B", (2, 3), data=(1,) * 6)], ["the batch"]),
    ],
)
def test_wrong_tensors_are_refused_before_triton_is_asked(
    client: FlaskClient, server: FakeTriton, inputs: Any, words: list[str]
) -> None:
    response = ask(client, "/infer/add", inputs=inputs)
    assert response.status_code == 400
    for word in words:
        assert word in response.text
    assert server.calls == []


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("INT32", [1, None, 2], ["`inputs[0].data[1]` is null", "INT32"]),
        ("BYTES", ["a", None], ["has 2 elements"]),
        ("BOOL", [True, 1, False], ["data[1]` is 1", "true or false"]),
        ("UINT8", (1, 2, 256), ["data[2]` is 256, which", "0 to 255"]),
        ("UINT8", (1, -1, 2), ["data[1]` is -1, which", "0 to 255"]),
        ("INT32", (1, 2**32, 2), ["data[1]` is 4294967296, which"]),
        ("INT64", (1, 2, 2**63), ["does not fit into INT64"]),
        ("INT8", (1, 2, 2.5), ["2.5", "INT8"]),
        (
            *("FP16", (7e4, -1e6, math.inf)),
            ["data[0]` is 70000.0, which does not fit into FP16", "expected -65504 to 65504"],
        ),
        ("FP64", (1, 2, 10**400), ["does not fit into FP64"]),
        # a number beyond every float is not taken for infinity
        *[
            (kind, f"[1, Infinity, {one}]", [f"does not fit into {kind}", "word Infinity"])
            for one in ("1e400", "-1e309", "9" * 400 + ".0")
            for kind in ("FP16", "FP32", "FP64")
        ],
    ],
)
def test_elements_that_do_not_fit_into_the_type_are_refused(
    client: FlaskClient, server: FakeTriton, datatype: str, data: Any, words: list[str]
) -> None:
    server.signatures["words"] = Signature(0, (TensorSpec("IN", datatype, (1, 3)),), ())
    text = data if isinstance(data, str) else json.dumps(data)
    body = json.dumps({"inputs": [tensor("IN", datatype=datatype, data="DATA")]})
    response = client.post("/infer/words", data=body.replace('"DATA"', text))
    assert_error(response, 400, "bad_payload")
    for word in words:
        assert word in response.text
    assert server.calls == []


def test_each_of_several_models_is_given_the_fields_that_it_takes(client: FlaskClient) -> None:
    payload = {"img": image(Red, (100, 50)), "text": "a [MASK]"}
    for body in (payload, [payload, payload]):
        response = ask(client, modelname=["resnet", "bert_base"], payload=body)
        assert [one["status"] for one in (response.json or {})["results"].values()] == [200, 200]


@pytest.mark.parametrize(
    ("model", "payload", "words"),
    [
        ("resnet", {"img": RED, "confidence": 0.9},
         ["unknown field 'confidence'", "the payload may have img", "top_k, format"]),
        ("yolov5", {"confidence": 0.9, "img": RED}, ["`parameters`", "may have confidence"]),
        ("yolov5", {"img": RED, "parameters": {"iou": 1}}, ["`parameters`, beside `payload`"]),
        ("bert_base", {"text": "a [MASK]", "text_pair": "b"}, ["'text_pair'", "may have text"]),
    ],
)  # fmt: skip
def test_what_a_family_does_not_read_is_refused_in_a_payload(
    client: FlaskClient, server: FakeTriton, model: str, payload: dict[str, Any], words: list[str]
) -> None:
    """By itself, in a list, in one line of several and as one request of several."""
    right = {name: payload[name] for name in ("img", "text") if name in payload}
    one = {"modelname": model, "payload": payload}
    lines = json.dumps({**one, "payload": right}) + "\n" + json.dumps(one)
    alone = client.post("/invocations", json=one)
    assert server.calls == []
    listed = client.post("/invocations", json={**one, "payload": [right, payload]})
    in_lines = client.post("/invocations", data=lines, content_type="application/jsonlines")
    mixed = client.post("/invocations", json={"requests": [one]}).json or {}
    assert (alone.status_code, listed.status_code) == (400, 400)
    errors = [
        (alone.json or {})["error"],
        (listed.json or {})["error"],
        json.loads(in_lines.text.splitlines()[1])["error"],
        mixed["results"][0]["error"],
    ]
    for error in errors:
        assert error["code"] == "bad_payload"
        for word in words:
            assert word in error["message"] + error["hint"]
    assert "payload[1]" in errors[1]["message"]


@pytest.mark.parametrize("said", ["str", "np", None])
def test_a_content_type_that_means_nothing_here_is_no_matter(
    client: FlaskClient, said: str | None
) -> None:
    """MLServer's: docs.seldon.ai/mlserver, "Content Types (and Codecs)"."""
    one = {**tensor("IN", (1,), "BYTES", ["cmVk"]), "parameters": {"content_type": said}}
    output = {"name": "OUT", "parameters": {"content_type": said}}
    body = {"inputs": [one], "outputs": [output], "parameters": {"content_type": said}}
    answer = client.post("/infer/words", json=body).json or {}
    assert answer["outputs"][0]["data"] == ["cmVk"]


def test_texts_in_base64_are_decoded(client: FlaskClient, server: FakeTriton) -> None:
    parameters = {"content_type": "base64"}
    one = {**tensor("IN", (2,), "BYTES", ["cmVk", "/9j/4A=="]), "parameters": parameters}
    assert client.post("/infer/words", json={"inputs": [one]}).status_code == 200
    assert server.calls[-1]["inputs"]["IN"].tolist() == [b"red", b"\xff\xd8\xff\xe0"]
    one["data"] = ["cmVk", "red!"]
    response = client.post("/infer/words", json={"inputs": [one]})
    assert_error(response, 400, "bad_payload", "`inputs[0].data`", "base64", "content_type out")
    inputs = [tensor("IN", (1,), "BYTES", ["a"])]
    output = {"name": "OUT", "parameters": parameters}
    for more in ({"parameters": parameters}, {"outputs": [output]}):
        response = client.post("/infer/words", json={"inputs": inputs, **more})
        assert_error(response, 400, "bad_payload", "parameters.content_type` is 'base64'")


def test_what_else_a_v2_body_may_not_have_is_named(client: FlaskClient) -> None:
    response = ask(client, "/infer/add", inputs=[tensor()], timeout_ms=5)
    assert_error(response, 400, "bad_body", "timeout_ms", "query")
    response = ask(client, "/infer/add", inputs=[tensor()], outputs=[{"name": "Nope"}])
    assert_error(response, 400, "bad_payload", "`outputs[0]`: there is no output 'Nope'", "SUM")
    for payload in ({"npy": "abc"}, {"npy": 5}, {"inputs": [], "npy": "zzz"}):
        response = ask(client, modelname="add", payload=payload)
        assert_error(response, 400, "bad_payload", "`inputs`")


NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}


def test_a_numpy_file_for_the_one_input(client: FlaskClient, server: FakeTriton) -> None:
    ones = np.ones((2, 3), "f4")
    response = client.post("/infer/add", data=npy(ones), headers=NPY)
    # One array, but the model has two inputs: which of them is meant?
    assert_error(response, 400, "tensors_refused", "`A` FP32 [-1, 3]", "`B` FP32 [-1, 3]")
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    for array in (np.arange(6, dtype="<f4").reshape(2, 3), np.asfortranarray(ones)):
        response = client.post("/infer/add", data=npy(array), headers=NPY)
        assert response.content_type == "application/x-npy"
        back = np.load(io.BytesIO(response.data), allow_pickle=False)
        assert back.dtype == np.float32
        assert back.tolist() == array.tolist()


HEADED = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad_payload"),
        (b"\x93NUMPY", "bad_payload"),
        (b"hello", "bad_payload"),
        (npy(np.array([{"a": 1}], object), pickled=True), "bad_payload"),
        (npy(np.ones((2, 3), np.complex64)), "bad_payload"),
        (npy(np.ones((2, 3), np.float32))[:-1], "bad_payload"),
        ((HEADED % b"1000000000000, 3").ljust(128), "bad_payload"),
        ((HEADED % b"True, 2").ljust(128) + bytes(8), "bad_payload"),
        (b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "bad_payload"),
        (npy(np.ones((2, 4), np.float32)), "tensors_refused"),
        (npy(np.ones((2, 3), np.float64)), "tensors_refused"),
        (npy(np.ones((9, 3), np.float32)), "tensors_refused"),
    ],
)
def test_a_bad_numpy_file(client: FlaskClient, server: FakeTriton, data: bytes, code: str) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    response = client.post("/infer/add", data=data, content_type="application/x-npy")
    assert_error(response, 400, code)
    assert server.calls == []


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2", ">i8", ">u2", "f8", "f2", "i4", "?"])
def test_an_array_of_another_type_is_taken_when_the_hints_are_followed(
    client: FlaskClient, server: FakeTriton, dtype: str
) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    array = np.ones((2, 3), dtype)
    for _ in range(3):
        response = client.post("/infer/add", data=npy(array), headers=NPY)
        if response.status_code == 200:
            break
        assert response.status_code == 400
        hint = (response.json or {})["error"]["hint"]
        asked = re.search(r"array\.astype\(['\"](<?[a-z]+[0-9]+)['\"]\)", hint)
        assert asked, hint
        array = array.astype(asked[1])
    assert response.status_code == 200
    assert np.array_equal(np.load(io.BytesIO(response.data)), np.ones((2, 3)))
