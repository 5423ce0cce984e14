"""Where an author's classes come from; their batches, drawings and other models."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import load_clients
from clients.triton.server import Signature, TensorSpec
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import HEAD, answering, ask, package, served
from tests.support.stand_ins import assert_error


@pytest.mark.parametrize("size", ["0", "-3", "'four'", "None", "1.5"])
def test_a_batch_of_no_size_is_the_client_s_fault(
    tmp_path: Path, size: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering("1", f"max_batch_size = {size}"))
    assert_error(ask(client, payload=[{}, {}]), 500, "client_failed")
    assert "'mine'" in caplog.text
    assert ask(client).json["result"] == 1


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        *[(f"{kind}(b'file')", "") for kind in ("bytes", "bytearray", "memoryview")],
        ("np.array([*b'file'], 'u1')", ""),
        ("None", "NoneType"),
        ("b''", "empty value of the type bytes"),
        ("'file'", "str"),
        ("5", "int"),
        ("iter([b'file'])", "list_iterator"),
        ("__import__('io').BytesIO(b'file')", "BytesIO"),
        ("np.zeros((2, 2, 3), 'u1')", "ndarray"),
        ("np.zeros(3)", "ndarray"),
        ("np.zeros(3, 'M8[s]')", "ndarray"),
    ],
)
def test_what_is_drawn_is_the_bytes_of_a_file_in_whatever_holds_them(
    tmp_path: Path, made: str, kind: str
) -> None:
    """Anything else is the class's fault."""
    client = served(tmp_path, answering("1", f"draw = lambda self, payload, result, kind: {made}"))
    response = client.post("/infer/mine", json={"payload": {}}, headers={"Accept": "image/png"})
    if kind:
        error = assert_error(response, 500, "client_failed")
        assert kind in error["message"]
        assert "draw returns the bytes of a file" in error["hint"]
    else:
        assert (response.status_code, response.mimetype) == (200, "image/png")
        assert response.data == b"file"


def test_a_list_is_never_answered_with_the_results_of_others(tmp_path: Path) -> None:
    source = answering("payload", "inference_batch = lambda self, payloads: payloads[1:]")
    response = ask(served(tmp_path, source), payload=[{"a": 1}, {"a": 2}])
    error = assert_error(response, 500, "client_failed")
    assert "1 for a batch of 2" in error["message"]


def test_a_fault_of_the_server_is_not_blamed_on_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served(tmp_path, answering("1"))
    monkeypatch.setattr("dispatcher.routes.inference.json_response", lambda _: 1 / 0)
    assert_error(ask(client), 500, "internal_error")


CHAIN = """
class Mine(Own):
    model = "finder"

    def inference(self, payload):
        found = self.infer({"x": np.zeros(1)})["y"]
        again = self.infer({"x": found}, model="namer", version=payload.get("namer", ""))["y"]
        old = self.infer({"x": found}, version="1")["y"]
        return [*found.tolist(), *again.tolist(), *old.tolist()]
"""


def test_several_models_and_their_versions_are_asked(tmp_path: Path) -> None:
    server = FakeTriton({"finder": lambda inputs: {"y": inputs["x"] + 1}})
    server.models_run["namer"] = lambda inputs: {"y": inputs["x"] * 10}
    client = served(tmp_path, CHAIN, server)
    assert ask(client, payload={"namer": "1"}, modelversion=1).json["result"] == [1, 10, 2]
    asked = [(call["model"], call["version"]) for call in server.calls]
    assert asked == [("finder", "1"), ("namer", "1"), ("finder", "1")]
    assert ask(client).status_code == 200
    asked = [(call["model"], call["version"]) for call in server.calls[3:]]
    assert asked == [("finder", ""), ("namer", ""), ("finder", "1")]
    assert all(0 < call["timeout"] <= 54 for call in server.calls)


TENSOR = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}


def on_another(folder: Path) -> FlaskClient:
    server = FakeTriton({"m": lambda inputs: {"x": 2 * inputs["x"]}})
    spec = TensorSpec("x", "FP32", (-1,))
    server.signatures["m"] = Signature(0, (spec,), (spec,))
    return served(folder, answering("'by the class'", "model = 'm'"), server)


def test_a_class_does_not_hide_the_model_that_it_asks(tmp_path: Path) -> None:
    client = on_another(tmp_path)
    assert ask(client).json["result"] == "by the class"
    for route in ("/infer/m", "/models/m/invoke"):
        answer = client.post(route, json={"inputs": [TENSOR]}).json or {}
        assert answer["outputs"][0]["data"] == [6.0]
    listed = (client.get("/models").json or {})["models"]
    assert {one["modelName"]: one["client"] is None for one in listed} == {"m": True, "mine": False}
    assert (client.get("/models/m").json or {})["state"] == "READY"
    hint = ask(client, "n").json["error"]["hint"]
    assert set(hint.removeprefix("the served models are: ").split(", ")) == {"m", "mine"}


def test_a_class_does_not_hide_the_family_of_the_model_that_it_asks(tmp_path: Path) -> None:
    folder = tmp_path / "no_models" / "m"  # where `served` looks for models
    folder.mkdir(parents=True)
    (folder / "dispatch.toml").write_text('aliases = ["other-name"]')
    client = on_another(tmp_path)
    assert ask(client).json["result"] == "by the class"
    for name in ("m", "other-name"):
        answer = client.post(f"/infer/{name}", json={"inputs": [TENSOR]}).json or {}
        assert answer["outputs"][0]["data"] == [6.0]
    listed = [one["modelName"] for one in (client.get("/models").json or {})["models"]]
    assert listed == ["m", "mine"]


@pytest.mark.parametrize("way", ["path", "path, encoded", "body", "target", "attributes"])
@pytest.mark.parametrize("name", ["a+b", "_x", "v1.2-c"])
def test_a_model_is_asked_by_any_name_that_it_may_have(tmp_path: Path, name: str, way: str) -> None:
    client = served(tmp_path, answering("'well'", f"modelname = {name!r}"))
    body: dict[str, Any] = {"payload": {}}
    headers, path = {}, "/invocations"
    if way.startswith("path"):
        path = f"/infer/{quote(name) if 'encoded' in way else name}"
    elif way == "body":
        body["modelname"] = name
    elif way == "target":
        headers["X-Amzn-SageMaker-Target-Model"] = f"{name}.tar.gz"
    else:
        headers["X-Amzn-SageMaker-Custom-Attributes"] = f"modelname={name}"
    answer = client.post(path, json=body, headers=headers)
    assert (answer.json or {}) == {"modelname": name, "result": "well"}


__all__ = ["package"]  # the fixture


def test_the_entry_points_of_an_installed_package_are_clients(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    client = served(tmp_path, answering("1"))
    for name in ("ears", "single"):
        assert ask(client, name).json["result"] == "heard"
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"))
    assert registry.source("single") == "the entry point 'one' of ears"
    reasons = " ".join(registry.broken.values())
    assert "the entry point 'bad' of ears cannot be imported: ModuleNotFoundError" in reasons
    assert "ears:NUMBER is 5; expected a module, or a class" in reasons
    for name in [name for name in sys.modules if name.partition(".")[0] == "ears"]:
        del sys.modules[name]


def test_a_disabled_client_says_why_and_the_others_are_served(tmp_path: Path) -> None:
    made = "def __init__(self, it): super().__init__(it); self.example = {'a': np.zeros(2)}"
    for example in ("example = {'img': b'bytes'}", made):
        client = served(tmp_path, answering("1", example))
        said = "mine.py: its example is not JSON"
        assert_error(ask(client), 503, "client_disabled", said)
        assert ask(client, "healthy").status_code == 200
        assert "healthy" in client.get("/openapi.json").text


BASED = """
from clients.base import Client
from base import Base

class Old{number}(Base, Client):
    modelname = "old{number}"
    example = {{}}

    def inference(self, payload):
        {lazily}
        return self.greeting
"""


def write_based(folder: Path, base: Path, number: int, lazily: str = "pass") -> None:
    """Write a class whose base is imported by a bare name."""
    (folder / f"old{number}").mkdir()
    (folder / f"old{number}" / "__init__.py").write_text(f"from .inference import Old{number}\n")
    (folder / f"old{number}" / "inference.py").write_text(
        BASED.format(number=number, lazily=lazily)
    )
    base.write_text(f"import helper_of_base\nclass Base:\n    greeting = 'from {number}'\n")
    base.with_name("helper_of_base.py").touch()


@pytest.mark.parametrize(
    "lazily", ["pass", "from base import Base; assert Base in type(self).__mro__"]
)
def test_a_class_keeps_the_base_beside_it(tmp_path: Path, lazily: str) -> None:
    """Two have one each, a third's lies beside its folder; none is seen by others."""
    for number in (1, 2):
        write_based(tmp_path, tmp_path / f"old{number}" / "base.py", number, lazily)
    (tmp_path / "third").mkdir()
    write_based(tmp_path / "third", tmp_path / "third" / "base.py", 3, lazily)
    environment = Environment(FakeTriton(), tmp_path / "no_models")
    registry = load_clients(environment, [tmp_path, tmp_path / "third"])
    assert registry.broken == {}
    app = make_app(read_settings({}), registry, environment, quiet())
    for number in (1, 2, 3):
        assert ask(app.test_client(), f"old{number}", {}).json["result"] == f"from {number}"
    assert not {"base", "helper_of_base", "inference"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("import parts.words", "parts.words.WORD"),
        ("import parts.words as w", "w.WORD"),
        ("from parts import words", "words.WORD"),
        ("from parts.words import *", "WORD"),
        ("import parts", "parts.AGAIN"),
        ("import json", "json.dumps('mine')[1:-1]"),
    ],
)
def test_what_lies_beside_a_file_is_imported_in_any_form(
    tmp_path: Path, statement: str, value: str
) -> None:
    """What Python has by itself comes first, as ever."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from parts.words import WORD as AGAIN\n")
    (tmp_path / "parts" / "words.py").write_text("WORD = 'mine'\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text(HEAD + f"{statement}\n" + textwrap.dedent(answering(value)))
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    assert registry.clients["mine"].inference({}) == "mine"


def test_what_is_not_beside_a_file_either_is_named(tmp_path: Path) -> None:
    write_based(tmp_path, tmp_path / "base.py", 1)
    (tmp_path / "base.py").rename(tmp_path / "elsewhere.py")
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    (reason,) = (r for r in registry.broken.values() if "old1" in r)
    assert "No module named 'base'" in reason
