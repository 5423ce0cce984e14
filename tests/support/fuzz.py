"""What the fuzzer makes up, and what it checks of every answer."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from clients.base import Client, Payload
from clients.images.pictures import EXAMPLE
from dispatcher.errors import ANSWERS, NOT_READY, ROUTING

INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
fuzzed = settings(
    max_examples=INPUTS or 50,
    derandomize=not INPUTS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
CODES = {code for _, code in ANSWERS.values()} | {code for code, _ in ROUTING.values()}
CODES |= {NOT_READY}
came: Counter[str] = Counter()


class Numbers(Client):
    """Takes what `Client` reads for its author."""

    modelname = "numbers"
    example = {"n": [1]}
    media = {"text": "text"}

    def inference(self, payload: Payload) -> Any:
        if "text" in payload:
            return self.text(payload)
        return self.numbers(payload, "n").tolist()


def sound(response: TestResponse) -> TestResponse:
    """See that an answer is one of the contract's."""
    came[str(response.status_code)] += 1
    response.get_data()
    response.close()
    assert response.status_code < 500, response.text
    assert response.headers["X-Request-Id"]
    if response.status_code >= 400:
        assert response.content_type == "application/json"
        assert_error(response.json)
        assert len(response.data) <= 2048
    elif response.mimetype == "application/json":
        document = json.loads(response.data, parse_constant=pytest.fail)
        for one in document.get("results", []) if isinstance(document, dict) else []:
            assert_part(one if isinstance(one, dict) else document["results"][one])
    return response


def assert_part(part: Any) -> None:
    """One of several answers: a result or an error, with its own status."""
    if part["status"] != 200:
        assert 400 <= part["status"] < 500, part
        assert_error({"error": part["error"]})


def assert_error(document: Any) -> None:
    error = document["error"]
    assert error["code"] in CODES
    assert {"code", "message", "hint"} <= set(error)


# What is sent: things made up, and right ones with something wrong.

texts = st.text(max_size=20) | st.sampled_from(
    ["resnet", "numbers", "bert_base", "[MASK] x", "\ud800"]
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts
    | st.sampled_from([10**30, 2**63, -(2**63), 10**4000, 1e308, float("nan"), float("-inf")])
)  # fmt: skip
KEYS = (
    "modelname payload parameters modelversion requests inputs img text n top_k format name shape "
    "datatype data outputs"
)
keys = st.sampled_from(KEYS.split()) | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def spoiled(draw: st.DrawFn, sound: list[bytes]) -> bytes:
    """Bytes that were right, cut, changed and put together again in a few places."""
    data = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["change", "insert", "cut", "repeat", "number"]))
        if kind == "change" and place < len(data):
            data[place] = draw(st.integers(0, 255))
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=8))
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, 400))]
        elif kind == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 400))]
        elif kind == "number":
            data[place : place + 4] = draw(
                st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\0\0\0\x80"])
            )
    return bytes(data)


IMG = {"img": EXAMPLE}
TENSOR = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [[1, 2, 3]]}
DOCUMENTS: list[Any] = [
    {"modelname": "resnet", "payload": IMG, "parameters": {"top_k": 2, "format": "objects"}},
    {"modelname": "yolov5", "payload": [IMG, IMG], "modelversion": 1},
    {"modelname": "bert_base", "payload": {"text": "a [MASK] b"}, "parameters": {"top_k": 1}},
    {"modelname": "numbers", "payload": {"n": [[1, 2], [3, 4.5]]}},
    {"modelname": ["resnet", "numbers"], "payload": {**IMG, "n": [1]}},
    {"requests": [{"modelname": "numbers", "payload": {"n": [1]}}, {"modelname": "x"}]},
    {"modelname": "add", "inputs": [TENSOR], "outputs": [{"name": "SUM"}], "id": "1"},
    {"modelname": "add", "payload": [{"inputs": [TENSOR, {**TENSOR, "name": "B"}]}]},
    {
        "modelname": "words",
        "inputs": [{"name": "IN", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}],
    },
]
header = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60)
