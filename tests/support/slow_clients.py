"""Clients that are slow or hang, and requests to them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients.base import Client, Payload
from tests.conftest import PATIENCE_S


class Slow(Client):
    """Takes its time before it asks the model, and in the model."""

    modelname = "slow"
    example = {"before": 0, "model": 0}

    def inference(self, payload: Payload) -> Any:
        time.sleep(payload.get("before", 0))
        Model.asked.append(payload)
        Model.asks()
        if model := payload.get("model"):
            self.infer({"seconds": model})
        return payload.get("n")


class Model:
    asked: list[Any] = []
    asks: Callable[[], object] = bool


class Hangs(Client):
    """Never comes back, until the test lets it."""

    modelname = "hangs"
    example: Payload = {}
    free = threading.Event()

    def inference(self, payload: Payload) -> Any:
        if payload.get("well"):
            return "well"
        Hangs.free.wait(PATIENCE_S)
        if payload.get("fails"):
            raise ValueError("the author's own error")
        return "late"


class Left(Client):
    """Notes how much time it has."""

    modelname = "left"
    example: Payload = {}
    seen = 0.0

    def inference(self, payload: Payload) -> Any:
        Left.seen = self.request.time_left()


def lines(client: FlaskClient, asks: list[Any], **arguments: Any) -> list[Any]:
    body = "\n".join(json.dumps(ask) for ask in asks)
    response = client.post(
        "/invocations", data=body, content_type="application/jsonlines", **arguments
    )
    assert response.status_code == 200, response.text
    answers = [json.loads(line) for line in response.text.splitlines()]
    response.close()
    return answers


def milliseconds(response: TestResponse, phase: str) -> float:
    """Return how long a phase took, as the answer's Server-Timing says."""
    timing = response.headers["Server-Timing"]
    return float(next(p for p in timing.split(", ") if p.startswith(phase)).partition("=")[2])


def slow(**payload: Any) -> dict[str, Any]:
    return {"modelname": "slow", "payload": payload}
