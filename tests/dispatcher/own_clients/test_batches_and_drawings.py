"""Batches, drawings and chains of models in an author's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import answering, ask, served


@pytest.mark.parametrize("size", ["0", "-3", "'four'", "None", "1.5"])
def test_a_batch_of_no_size_is_the_client_s_fault(
    tmp_path: Path, size: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering("1") + f"\n            max_batch_size = {size}")
    response = ask(client, payload=[{}, {}])
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert "'mine'" in caplog.text
    assert ask(client).json["result"] == 1


DRAWING = """
class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        return 1

    def draw(self, payload, result, media_type):
        return {made}
"""


def drawn(folder: Path, made: str) -> Any:
    body = json.dumps({"payload": {}})
    client = served(folder, DRAWING.format(made=made))
    return client.post("/infer/mine", data=body, headers={"Accept": "image/png"})


@pytest.mark.parametrize(
    "made", ["b'file'", "bytearray(b'file')", "memoryview(b'file')", "np.array([*b'file'], 'u1')"]
)
def test_what_is_drawn_may_be_bytes_in_whatever_holds_them(tmp_path: Path, made: str) -> None:
    response = drawn(tmp_path, made)
    assert (response.status_code, response.mimetype) == (200, "image/png")
    assert response.data == b"file"


@pytest.mark.parametrize(
    ("made", "kind"),
    [
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
def test_what_is_drawn_and_is_no_file_is_the_client_s_fault(
    tmp_path: Path, made: str, kind: str
) -> None:
    response = drawn(tmp_path, made)
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert kind in response.json["error"]["message"]
    assert "draw returns the bytes of a file" in response.json["error"]["hint"]


def test_a_list_is_never_answered_with_the_results_of_others(tmp_path: Path) -> None:
    source = answering("payload") + (
        "\n            def inference_batch(self, payloads):\n                return payloads[1:]"
    )
    response = ask(served(tmp_path, source), payload=[{"a": 1}, {"a": 2}])
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert "1 for a batch of 2" in response.json["error"]["message"]


def test_a_fault_of_the_server_is_not_blamed_on_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served(tmp_path, answering("1"))
    monkeypatch.setattr("dispatcher.routes.inference.json_response", lambda _: 1 / 0)
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (500, "internal_error")


CHAIN = """
class Mine(Client):
    modelname = "mine"
    model = "finder"
    example = {}

    def inference(self, payload):
        found = self.infer({"x": np.zeros(1)})["y"]
        again = self.infer({"x": found}, model="namer", version=payload.get("namer", ""))["y"]
        old = self.infer({"x": found}, version="1")["y"]
        return [*found.tolist(), *again.tolist(), *old.tolist()]
"""


def test_several_models_and_their_versions_are_asked(tmp_path: Path) -> None:
    server = FakeTriton(
        {
            "finder": lambda inputs: {"y": inputs["x"] + 1},
            "namer": lambda inputs: {"y": inputs["x"] * 10},
        }
    )
    client = served(tmp_path, CHAIN, server)
    assert ask(client, payload={"namer": "1"}, modelversion=1).json["result"] == [1, 10, 2]
    asked = [(call["model"], call["version"]) for call in server.calls]
    assert asked == [("finder", "1"), ("namer", "1"), ("finder", "1")]
    assert ask(client).status_code == 200
    asked = [(call["model"], call["version"]) for call in server.calls[3:]]
    assert asked == [("finder", ""), ("namer", ""), ("finder", "1")]
    assert all(0 < call["timeout"] <= 54 for call in server.calls)
