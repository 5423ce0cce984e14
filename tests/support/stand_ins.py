"""Functions in the place of models, pictures for them, and the one form of errors."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image
from werkzeug.test import TestResponse

from clients.base import Client, Parameter
from clients.triton.server import Tensors
from tests.support.fake_triton import Arrays

Red = [255, 0, 0]


def image(colour: list[int], size: tuple[int, int] = (20, 10)) -> str:
    out = io.BytesIO()
    Image.new("RGB", size, tuple(colour)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def resnet(inputs: Tensors) -> Arrays:
    """Class 7 scores as red as the picture is, class 3 as green, class 5 as blue."""
    means = inputs["input"].mean((2, 3), np.float64)
    logits = np.full((len(means), 1000), -1, np.float32)
    logits[:, [7, 3, 5]] = means
    return {"output": logits}


def yolov5(inputs: Tensors) -> Arrays:
    """One object of class 2 in the middle of the square, 64 pixels wide and 32 high."""
    rows = np.zeros((len(inputs["images"]), 25200, 85), np.float32)
    rows[:, 100, :5] = [320, 320, 64, 32, 1]
    rows[:, 100, 7] = 0.75
    return {"output": rows}


def bert(inputs: Tensors) -> Arrays:
    """The word "many" with probability 0.5, then all others alike."""
    logits = np.zeros((*inputs["input_ids"].shape, 30522), np.float32)
    logits[..., 2116] = np.log(30521)  # "many" stands in line 2117 of vocab.txt
    return {"output": logits}


class Double(Client):
    modelname = "double"
    example = {"numbers": [1]}
    parameters = {"factor": Parameter(2.0, 0, 10, "what to multiply by")}

    def inference(self, payload: Any) -> Any:
        return (self.numbers(payload, "numbers") * self.request.parameters["factor"]).tolist()


def assert_error(response: TestResponse, status: int, code: str, *words: str) -> Any:
    """See that an answer has the one shape of all that are not 200; return its error."""
    assert response.status_code == status, response.text
    assert response.content_type == "application/json"
    assert set(response.json or {}) == {"error"}
    error = (response.json or {})["error"]
    assert {"code", "message", "hint", "request_id"} <= set(error)
    assert error["request_id"] == response.headers["X-Request-Id"]
    assert len(response.data) <= 2048
    assert error["code"] == code
    for word in words:
        assert word in f"{error['message']} | {error['hint']}"
    return error
