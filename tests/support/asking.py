"""What the tests of the HTTP contract send."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients.base import Client
from clients.triton.server import Signature, Tensors, TensorSpec
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.stand_ins import Red, bert, image, resnet, yolov5

RED = image(Red, (100, 50))
PNG = base64.b64decode(RED)
ADD = Signature(
    8,
    (TensorSpec("A", "FP32", (-1, 3)), TensorSpec("B", "FP32", (-1, 3), optional=True)),
    (TensorSpec("SUM", "FP32", (-1, 3)),),
)


WORDS = Signature(0, (TensorSpec("IN", "BYTES", (-1,)),), (TensorSpec("OUT", "BYTES", (-1,)),))


def add(inputs: Tensors) -> Arrays:
    return {"SUM": sum(inputs.values())}  # type: ignore[dict-item]


def stand_in(**fields: Any) -> FakeTriton:
    """Return a Triton with the ready-made models, and with two that have no class."""
    models: Any = {"resnet": resnet, "yolov5": yolov5, "bert_base": bert, "add": add}
    models["words"] = lambda inputs: {"OUT": inputs["IN"]}
    return FakeTriton(models, {"add": ADD, "words": WORDS}, **fields)


class Noted(Client):
    modelname = "noted"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.request.response_attributes["seen"] = self.request.attributes.get("trace", "nothing")
        self.request.response_attributes["evil"] = "a\r\nSet-Cookie: b"
        return [float("nan"), float("inf"), 1.5]


def ask(client: FlaskClient, path: str = "/invocations", **body: Any) -> TestResponse:
    return client.post(path, json=body)


FORM = "multipart/form-data; boundary=b"


def npy(array: Any, *, pickled: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=pickled)
    return out.getvalue()


def part(disposition: str, content_type: str, content: bytes) -> bytes:
    said = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"--b\r\nContent-Disposition: form-data; {disposition}\r\n{said}\r\n"
    return head.encode() + content + b"\r\n"


def form_of(content: bytes, content_type: str) -> bytes:
    return part('name="f"; filename="f.x"', content_type, content) + b"--b--\r\n"


def tensor(
    name: str = "A", shape: Any = (1, 3), datatype: Any = "FP32", data: Any = (1, 2, 3)
) -> Any:
    data = list(data) if isinstance(data, tuple) else data
    shape = list(shape) if isinstance(shape, tuple) else shape
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}
