"""What a request that failed leaves in a web worker: nothing, and not by Python's search for it."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.base import Client, Environment
from clients.errors import BadPayload, ModelFailed
from clients.plugins.registry import Registry
from clients.triton.server import Signature, TensorSpec
from dispatcher.settings import read_settings
from tests.conftest import wait_for
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton

LONG = 12_347  # numbers of a list that is found again
AGAIN = BadPayload("one object, raised for ever")


def _raise_later(numbers: list[float]) -> None:
    error = BadPayload(f"{numbers[0]} is wrong")
    raise error


class Circular(Client):
    """Does what authors do: it makes an error first, and raises it later."""

    modelname = "circular"
    example = {"numbers": [1]}

    def inference(self, payload: Any) -> Any:
        numbers = payload["numbers"]
        error = BadPayload("it holds the frame that holds it")
        if numbers[0] == -1:
            raise error
        if numbers[0] == -5:
            raise AGAIN
        if numbers[0] == -2:
            kept = KeyError(numbers[0])
            raise kept
        if numbers[0] == -3:
            failure = ModelFailed("likewise")
            try:
                _raise_later(numbers)
            except BadPayload:
                raise failure from error
        return self.infer({"x": np.array([numbers], np.float32)})["y"].tolist()


def _fails(inputs: Any) -> Any:
    if inputs["x"][0, 0] == -4:
        raise ModelFailed("it fell over")
    return {"y": inputs["x"][:, :1]}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    wide = (TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, 1)),)
    server = FakeTriton({"circular": _fails}, signatures={"circular": Signature(2, *wide)})
    environment = Environment(server, tmp_path)
    registry = Registry({"circular": Circular(environment)})
    app = make_app(read_settings({}), registry, environment, quiet(server))
    gc.collect()
    gc.disable()
    yield app.test_client()
    gc.enable()


def _body(*firsts: Any) -> dict[str, Any]:
    payloads = [{"numbers": [first] + [0.5] * (LONG - 1)} for first in firsts]
    return {"modelname": "circular", "payload": payloads if len(payloads) > 1 else payloads[0]}


def _text(form: str, fault: Any) -> str:
    """Return a request of some form, one payload of which fails."""
    if form == "lines":
        lines = [json.dumps(one) for one in (_body(1), _body(fault), {"modelname": 7}, _body(1))]
        return "\n".join([*lines, "{", lines[0]])
    bodies: dict[str, Any] = {
        "one": _body(fault),
        "list": _body(1, 1, fault, 1, 1, 1),
        "requests": {"requests": [_body(1), _body(fault), _body(1, fault)]},
        "models": {**_body(fault), "modelname": ["circular"]},
    }
    return json.dumps(bodies[form])


@pytest.mark.parametrize("fault", [-1, -2, -3, -4, -5, "text"])
@pytest.mark.parametrize("form", ["one", "list", "requests", "models", "lines"])
def test_what_failed_is_not_kept(
    client: FlaskClient, form: str, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(
        "CRITICAL", "dispatcher.codecs.error_responses"
    )  # pytest keeps the frames of what is logged
    kind = "application/jsonlines" if form == "lines" else "application/json"
    answer = client.post("/invocations", data=_text(form, fault), content_type=kind).text
    if form == "lines":  # those behind an error are read and answered
        failed = ['"error"' in line for line in answer.splitlines()]
        assert failed == [False, True, True, False, True, False]
    assert '"error"' in answer
    wait_for(lambda: not _kept(), "the end of the threads that answered")
    assert AGAIN.__traceback__ is None  # it would have grown with every request


def _kept() -> list[Any]:
    return [x for x in gc.get_objects() if type(x) is list and len(x) == LONG]
