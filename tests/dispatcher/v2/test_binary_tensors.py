"""Bodies of Triton's protocol: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.triton.server import Signature, TensorSpec
from dispatcher.errors import BadHeader
from dispatcher.v2.binary_tensors import read_header_length
from tests.support.fake_triton import FakeTriton

NUMBERS = np.array([[1, 2, 3]], np.float32)
LENGTH = "Inference-Header-Content-Length"
SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
BOTH = [
    {"name": name, "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
    for name in ("A", "B")
]


def one(**fields: Any) -> dict[str, Any]:
    """Return a request with a first input that has other fields."""
    return {"inputs": [{**BOTH[0], **fields}, BOTH[1]]}


def post(
    client: FlaskClient, header: Any, tensors: bytes = NUMBERS.tobytes() * 2, model: str = "add"
) -> Any:
    """Send tensors in binary."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    headers = {LENGTH: str(len(header))}
    return client.post(f"/v2/models/{model}/infer", data=header + tensors, headers=headers)


@pytest.mark.parametrize(("stated", "length"), [("0", 0), ("7", 7), ("10", 10), (None, None)])
def test_the_length_of_the_header_is_read(stated: str | None, length: int | None) -> None:
    assert read_header_length(stated, b"0123456789", "Length") == length


@pytest.mark.parametrize(
    "stated", ["", "x", "-1", "+1", "1.0", "0x1", "1 ", "1_0", "²", "١", "11", "9" * 4000]
)
def test_any_other_length_is_refused(stated: str) -> None:
    with pytest.raises(BadHeader) as caught:
        read_header_length(stated, b"0123456789", "Length")
    assert caught.value.message.startswith("Length is ")
    assert len(caught.value.message) < 100


def test_tensors_come_and_go_in_binary(client: FlaskClient, server: FakeTriton) -> None:
    every = {"parameters": {"binary_data_output": True}}
    named = {"outputs": [{"name": "SUM", "parameters": {"binary_data": True}}]}
    for wanted in (every, named):
        answer = post(client, {"inputs": BOTH, **wanted})
        assert answer.status_code == 200, answer.text
        assert answer.content_type == "application/octet-stream"
        length = int(answer.headers[LENGTH])
        (output,) = json.loads(answer.data[:length])["outputs"]
        size = {"parameters": {"binary_data_size": 12}}
        assert output == {"name": "SUM", "shape": [1, 3], "datatype": "FP32", **size}
        assert answer.data[length:] == np.array([2, 4, 6], "<f4").tobytes()
    assert post(client, {"inputs": BOTH}).json["outputs"][0]["data"] == [2, 4, 6]
    np.testing.assert_array_equal(server.calls[-1]["inputs"]["B"], NUMBERS)


@pytest.mark.parametrize("path", ["/invocations", "/infer/add", "/models/add/invoke"])
def test_sagemaker_s_type_states_the_length_both_ways(client: FlaskClient, path: str) -> None:
    document = {"inputs": BOTH, "parameters": {"binary_data_output": True}}
    header = json.dumps(document).encode()
    kind = f"{SAGEMAKER};json-header-size={len(header)}"
    answer = client.post(path, data=header + NUMBERS.tobytes() * 2, content_type=kind)
    came, _, length = answer.content_type.partition(";json-header-size=")
    assert (answer.status_code, came) == (200, SAGEMAKER)
    assert answer.data[int(length) :] == np.array([2, 4, 6], "<f4").tobytes()


TEXTS = b"\1\0\0\0a\2\0\0\0bc\0\0\0\0"


def test_texts_in_binary_have_their_lengths_in_front(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.models_run["words"] = lambda inputs: {"OUT": inputs["IN"]}
    text = {"name": "IN", "datatype": "BYTES", "parameters": {"binary_data_size": len(TEXTS)}}
    specs = [(TensorSpec(name, "BYTES", (-1,)),) for name in ("IN", "OUT")]
    server.signatures["words"] = Signature(0, *specs)
    for shape, tensors, status in (
        ([3], TEXTS, 200),
        ([2], TEXTS, 400),
        ([3], TEXTS[:-1] + b"\1", 400),
        ([3], TEXTS[:-4] + b"\xff\xff\xff\xff", 400),
    ):
        inputs, parameters = [{**text, "shape": shape}], {"binary_data_output": True}
        document = {"inputs": inputs, "parameters": parameters}
        answer = post(client, document, tensors, "words")
        assert answer.status_code == status, answer.text
        if status == 200:
            assert answer.data.endswith(TEXTS)
    assert len(server.calls) == 1


HUGE = 2305843009213693952  # times 4 bytes it is 2^63
CLASSES = [{"name": "SUM", "parameters": {"classification": 2**31}}]
WRONG: dict[str, tuple[Any, str]] = {
    "2^63 bytes": (one(shape=[1, HUGE]), "`inputs[0].shape` is [1, 2305843009213693952]"),
    "1 GiB of which 12 bytes came": (one(shape=[1, 2**28]), "`A` wants FP32 [-1, 3]"),
    "24 bytes of which 12 came": (one(shape=[2, 3]), "3 elements; its shape"),
    "2^31": (one(shape=[2**31, 2]), "`inputs[0].shape`"),
    "a product beyond 2^64": (one(shape=[2**31 - 1] * 3), "`A` wants FP32 [-1, 3]"),
    "negative": (one(shape=[-1, -3]), "`inputs[0].shape` is [-1, -3]"),
    "no number": (one(shape=[1, 3.0]), "`inputs[0].shape`"),
    "33 dimensions": (one(shape=[1] * 33), "`inputs[0].shape`"),
    "no items": (one(shape=[0, 3], parameters={"binary_data_size": 0}), "12 bytes more came"),
    "of another model": (one(shape=[3, 1]), "`A` wants FP32 [-1, 3]; you sent FP32 [3, 1]"),
    "another type": (one(datatype="INT32"), "`A` wants FP32"),
    "no type": (one(datatype="FP99"), "'FP99'"),
    "fewer bytes": (one(parameters={"binary_data_size": 11}), "11 bytes; one FP32 has 4"),
    "more than came": (one(parameters={"binary_data_size": 25}), "24 bytes came"),
    "2^64 bytes": (one(parameters={"binary_data_size": 2**64}), "24 bytes came"),
    "-1 bytes": (one(parameters={"binary_data_size": -1}), "binary_data_size` is -1"),
    "true bytes": (one(parameters={"binary_data_size": True}), "binary_data_size` is true"),
    "twice": ({"inputs": [BOTH[0], BOTH[0]]}, "the name 'A' is given twice"),
    "both ways": (one(data=[1, 2, 3]), "`inputs[0].data` is [1, 2, 3]"),
    "no name": (one(name=None), "`inputs[0]`"),
    "another name": (one(name="C"), "no input `C`"),
    "parameters": (one(parameters=3), "`inputs[0].parameters` is 3"),
    "no inputs": ({"inputs": []}, "`inputs` is []"),
    "output twice": ({"inputs": BOTH, "outputs": [{"name": "SUM"}] * 2}, "given twice"),
    "no such output": ({"inputs": BOTH, "outputs": [{"name": "NO"}]}, "no output 'NO'"),
    "2^31 classes": ({"inputs": BOTH, "outputs": CLASSES}, "classification` is 2147483648"),
    "a list as a parameter": ({"inputs": BOTH, "parameters": {"a": [1]}}, "parameter 'a' is [1]"),
    "2^63 as a parameter": ({"inputs": BOTH, "parameters": {"priority": 2**63}}, "64 bits"),
    "a name of Triton's": ({"inputs": BOTH, "parameters": {"triton_x": 1}}, "'triton_x'"),
    "a name with NUL": ({"inputs": BOTH, "parameters": {"a\0b": 1}}, "leave it out"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_refused_before_the_model_is_asked(
    client: FlaskClient, server: FakeTriton, kind: str
) -> None:
    document, words = WRONG[kind]
    answer = post(client, document)
    assert answer.status_code == 400
    assert words in answer.json["error"]
    assert len(answer.json["error"]) < 400
    assert server.calls == []


@pytest.mark.parametrize("part", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["region", "byte_size", "offset"])
def test_shared_memory_is_refused_however_it_is_written(
    client: FlaskClient, server: FakeTriton, part: str, name: str
) -> None:
    tensor = {"name": "SUM" if part == "outputs" else "A", "datatype": "FP32", "shape": [1, 3]}
    named = {**tensor, "parameters": {f"shared_memory_{name}": 1}}
    plain = json.dumps({"inputs": BOTH, part: [named]})
    escaped = plain.replace("shared_memory", r"\u0073hared\u005fmemory")
    assert json.loads(plain) == json.loads(escaped)
    tensors = NUMBERS.tobytes() * (2 if part == "outputs" else 0)
    for header in (plain.encode(), escaped.encode(), plain.encode("utf-16")):
        answer = post(client, header, tensors)
        assert answer.status_code == 400
        assert f"`{part}[0].parameters` has 'shared_memory_{name}'" in answer.json["error"]
    assert server.calls == []


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"inputs": [}', b"[" * 200_000, b'{"a":' * 200_000],
    ids=["nothing", "open", "list", "number", "no text", "broken", "deep lists", "deep objects"],
)
def test_what_is_no_json_object_is_refused(client: FlaskClient, header: bytes) -> None:
    for call in ("infer", "generate", "generate_stream"):
        answer = client.post(f"/v2/models/add/{call}", data=header)
        assert answer.status_code == 400
        assert (answer.json or {})["error"].startswith("the body is ")


def test_of_a_field_that_is_there_twice_the_model_gets_what_was_checked(
    client: FlaskClient, server: FakeTriton
) -> None:
    """RFC 8259, 4: which one counts differs from reader to reader; here one reads for all."""
    header = json.dumps({"inputs": BOTH}).encode()
    header = b'{"inputs": [{"name": "A", "shape": [2305843009213693952]}], ' + header[1:]
    assert post(client, header).status_code == 200
    np.testing.assert_array_equal(server.calls[-1]["inputs"]["A"], NUMBERS)
