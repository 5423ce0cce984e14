"""Endpoints with clients of one's own."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flask.testing import FlaskClient

from clients.base import Client, Environment
from clients.plugins.registry import load_clients
from clients.triton.server import Signature, Tensors, TensorSpec
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.fake_triton import Arrays, FakeTriton

HEAD = """
import numpy as np
from clients.base import Client
from clients.errors import BadPayload
from tests.support.own_clients import Own
"""


class Own(Client):
    """What an author writes, in fewer lines: a class is asked by its own name in small letters."""

    modelname = ""
    example: ClassVar[Any] = {}

    def __init_subclass__(cls) -> None:
        cls.modelname = vars(cls).get("modelname", cls.__name__.lower())


def served(folder: Path, source: str, server: FakeTriton | None = None) -> FlaskClient:
    """Return an endpoint with the clients of one file and a healthy one."""
    (folder / "mine.py").write_text(HEAD + textwrap.dedent(source))
    healthy = answering("'well'").replace("Mine", "Healthy")
    (folder / "healthy.py").write_text(HEAD + textwrap.dedent(healthy))
    environment = Environment(server or FakeTriton(), folder / "no_models")
    registry = load_clients(environment, [folder])
    return make_app(read_settings({}), registry, environment, quiet()).test_client()


def ask(client: FlaskClient, name: str = "mine", payload: Any = None, **fields: Any) -> Any:
    body = {"modelname": name, "payload": payload or {}, **fields}
    return client.post("/invocations", data=json.dumps(body))


def answering(expression: str, more: str = "pass") -> str:
    """Return a class that answers an expression; `more` is a further line of its body."""
    return f"""
        class Mine(Own):
            {more}

            def inference(self, payload):
                return {expression}
        """


ENTRY_POINTS = """
[triton_dispatcher.clients]
all = ears
one = ears.single:Single
bad = ears.missing
odd = ears:NUMBER
"""
HEARING = """
from clients.base import Client

class {0}(Client):
    modelname = "{1}"
    example = {{}}

    def inference(self, payload):
        return "heard"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small package of clients, as pip leaves it."""
    folder = tmp_path_factory.mktemp("package")
    info = folder / "ears-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ears\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "ears").mkdir()
    all_ears = f"{HEARING.format('Ears', 'ears')}\nNUMBER = 5\n"
    (folder / "ears" / "__init__.py").write_text(all_ears)
    (folder / "ears" / "single.py").write_text(HEARING.format("Single", "single"))
    return folder


# `double` has a client with a batch of its own; `chain` asks what its payload says.
ASKING = """
from clients.base import Parameter
from clients.errors import InferenceError

class Double(Own):
    aliases = ("twice",)
    example = {"numbers": [1]}
    parameters = {"factor": Parameter(2.0, 0, 10, "what to multiply by")}

    def inference_batch(self, payloads):
        rows = self.each(payloads, lambda one: self.numbers(one, "numbers"))
        factor = self.request.parameters["factor"]
        return (self.infer({"x": np.stack(rows)})["x"] * factor / 2).tolist()

    def inference(self, payload):
        return self.inference_batch([payload])[0]

class Chain(Own):
    example = {"made": {"numbers": [1]}}

    def inference(self, payload):
        name, parameters = payload.get("name", "double"), payload.get("parameters")
        asked = {"numbers": payload["numbers"]} if "numbers" in payload else payload["made"]
        return {"got": self.ask(name, asked, parameters, version=payload.get("version", ""))}
"""

ROWS = Signature(4, (TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("x", "FP32", (-1, -1)),))


def doubled(inputs: Tensors) -> Arrays:
    return {"x": inputs["x"] * 2}


def chain(client: FlaskClient, **payload: Any) -> Any:
    """Ask the class that asks `double`."""
    return ask(client, "chain", payload)
