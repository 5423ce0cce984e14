"""What the docs show of classes and of the tool is run here as it is written there."""

from __future__ import annotations

import base64
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from clients.base import Payload
from clients.images.pictures import EXAMPLE
from clients.plugins.discovery import ENTRY_POINTS
from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PROJECT
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import ask, served
from tests.tool.test_invoke import Noting, noting
from tool.__main__ import main
from tool.commands.new_client import contents

__all__ = ["noting"]  # the fixture

PAGE = (PROJECT / "docs" / "adding-a-model.md").read_text()
SECTION = PAGE[PAGE.index("## A class") :] + (PROJECT / "docs" / "classes.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the code blocks about classes and the tool, in order."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", SECTION, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def block(words: str, language: str = "python") -> str:
    (found,) = [text for text in blocks(language) if words in text]
    return found


def test_every_block_is_run() -> None:
    """Those below are all there are."""
    assert len(blocks("python")) == 6
    assert len(blocks("toml")) == 1
    assert len(blocks("sh")) == 4


def test_the_smallest_class_is_what_new_client_writes() -> None:
    written = contents("double")[Path("code", "clients", "double.py")].decode()
    assert block("class Double(Client)") == written


def test_the_smallest_test_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-client", "double", "--into", "mine"]) == 0
    exec(block("assert answer("), {})


def test_a_payload_with_types_is_checked(tmp_path: Path) -> None:
    client = served(tmp_path, block("class Parcel"))
    assert ask(client, "price", {"weights": [0.5, 2], "express": True}).json["result"] == 5
    for payload, words in (
        ({"weights": [0.5, "2"]}, "`weights[1]`"),
        ({"weights": [], "express": True}, "one weight or more"),
        ({"weights": [1], "expres": True}, "unknown field 'expres'"),
    ):
        response = ask(client, "price", payload)
        assert response.status_code == 400
        assert words in response.text


def test_the_larger_class_does_what_is_said(tmp_path: Path) -> None:
    server = FakeTriton({"double": lambda inputs: {"OUTPUT": inputs["INPUT"] * 2}})
    client = served(tmp_path, block("class Loudness"), server)
    response = client.post(
        "/infer/loudness",
        json={"payload": {"numbers": [0.5, 0.25]}},
        headers={"X-Amzn-SageMaker-Custom-Attributes": "user=me"},
    )
    assert response.json["result"] == {"loudness": 1.0, "in_time": True}
    assert response.headers["X-Amzn-SageMaker-Custom-Attributes"] == "asked_by=me"
    assert server.calls[0]["version"] == "1"
    response = ask(client, "loudness", {"numbers": [2]})
    assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
    assert response.json["error"]["hint"] == "at most 1"
    response = ask(client, "loudness", {"numbers": [2]}, parameters={"limit": 3})
    assert response.json["result"]["loudness"] == 4.0


def test_the_class_that_asks_two_models_does_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "things.py").write_text(block("class Things"))
    (client,) = clients_in(tmp_path / "things.py")
    asked = []

    def yolov5(payload: Payload, parameters: Mapping[str, Any]) -> Any:
        asked.append((payload["img"].shape, dict(parameters)))
        sides = [
            {"x1": -1.5, "y1": 3.3, "x2": 9.9, "y2": 8.2},
            {"x1": 1, "y1": 1, "x2": 1, "y2": 1},
        ]
        return [{"label": "cup", "box": box} for box in sides]

    def resnet(payload: Payload, parameters: Mapping[str, Any]) -> Any:
        asked.append((payload["img"].shape, dict(parameters)))
        return ["0.5:967:espresso"]

    others = {"yolov5": yolov5, "resnet": resnet}
    found = answer(client, client.example, OnnxModels(tmp_path), others=others)
    assert found == [["cup", "0.5:967:espresso"]] * 2
    shapes = [(119, 176, 3), (6, 10, 3), (1, 1, 3)]
    assert [shape for shape, _ in asked] == shapes
    assert [given for _, given in asked] == [{"format": "objects"}, *[{"top_k": 1}] * 2]


def test_an_older_class_is_asked_for_a_bgr_picture(tmp_path: Path) -> None:
    package = tmp_path / "old"
    package.mkdir()
    (package / "__init__.py").write_text(block("class OldResnet"))
    (package / "inference.py").write_text(
        "class Resnet:\n    def inference(self, img):\n        return img[0, 0]\n"
    )
    (client,) = clients_in(package)
    bgr = cv2.imdecode(np.frombuffer(base64.b64decode(EXAMPLE), np.uint8), cv2.IMREAD_COLOR)
    assert answer(client, client.example, OnnxModels(tmp_path)) == bgr[0, 0].tolist()


def test_the_entry_point_is_of_the_group_that_is_looked_at() -> None:
    (group,) = tomllib.loads(block("entry-points", "toml"))["project"]["entry-points"]
    assert group == ENTRY_POINTS


def test_the_finding_is_what_check_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-client", "double"]) == 0
    config = tmp_path / "double" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size", "max_batchsize"))
    capsys.readouterr()
    assert main(["check"]) == 1
    assert capsys.readouterr().out.splitlines()[0] in SECTION


def test_every_command_works(
    tmp_path: Path, noting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(PROJECT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL_DIR", "mine")
    lines = [line for text in blocks("sh") for line in text.splitlines() if "dispatcher " in line]
    assert len(lines) == 14
    for line in lines:
        words = shlex.split(line, comments=True)
        arguments = words[words.index("dispatcher") + 1 :]
        if arguments[0] == "invoke":
            Noting.error = (200, b"drawn") if "--draw" in arguments else None
        if arguments[0] in {"invoke", "rollout"}:
            arguments += ["--url", noting]
        assert main(arguments) == 0, line
    said = capsys.readouterr().out
    assert [one for _, one in Noting.asked[-4:]] == [
        {"shadow": {"version": 2, "share": 0.1}},
        {"canary": {"version": 2, "share": 0.05, "sticky": "session"}},
        {"canary": {"share": 0.2}},
        None,
    ]
    assert "1 models (double): 0 errors, 0 warnings" in said
    assert "mine/code/clients/double.py" in said
    assert (tmp_path / "boxes.jpg").read_bytes() == b"drawn"
