"""What an author changes, and what of the server's log is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tool.__main__ import main
from tool.commands.new_client import contents
from tool.dev.changes import Changes, changes, look
from tool.dev.server import Frames, Server, read_error

CLASSES = Path("code", "clients")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, content in contents("double").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "double" / "labels.txt").write_text("a\n")
    return tmp_path


def append(*parts: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        with folder.joinpath(*parts).open("a") as file:
            file.write("\n")

    return change


def touch(*paths: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()

    return change


def renamed(folder: Path) -> None:
    """As many editors save: a new file in the place of the old one, with its time and size."""
    path = folder / CLASSES / "double.py"
    status, content = path.stat(), path.read_bytes()
    path.with_name(".new").write_bytes(content)
    path.with_name(".new").rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


NOTHING, CODE = Changes(), Changes(classes=True)
ENGINE, DESCRIBED = Changes(engines=("double",)), Changes(described=("double",))
OF_EDITORS = (".double.py.swp", "double.py~", "__pycache__/double.pyc")
CHANGES: dict[str, tuple[Callable[[Path], Any], Changes]] = {
    "nothing": (lambda _: None, NOTHING),
    "configuration": (append("double", "config.pbtxt"), ENGINE),
    "model": (lambda at: (at / "double" / "1" / "model.onnx").write_bytes(b""), ENGINE),
    "version": (lambda at: (at / "double" / "1").rename(at / "double" / "2"), ENGINE),
    "labels": (append("double", "labels.txt"), DESCRIBED),
    "dispatch.toml": (lambda at: (at / "double" / "dispatch.toml").write_text("f"), DESCRIBED),
    "new model": (touch("more/1/model.onnx"), Changes(engines=("more",))),
    "model gone": (lambda at: (at / "double").rename(at / ".away"), Changes(gone=("double",))),
    "class": (append(*CLASSES.parts, "double.py"), CODE),
    "class renamed": (renamed, CODE),
    "class gone": (lambda at: (at / CLASSES / "double.py").unlink(), CODE),
    "a module beside": (touch(f"{CLASSES}/beside.py"), CODE),
    "an editor's files": (
        touch("double/model.onnx.part", *(f"{CLASSES}/{one}" for one in OF_EDITORS)),
        NOTHING,
    ),
    "a test": (append("code", "tests", "test_double.py"), NOTHING),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_loaded_as_it_must_be(folder: Path, name: str) -> None:
    change, expected = CHANGES[name]
    before = look(folder, [folder / CLASSES])
    change(folder)
    found = changes(before, look(folder, [folder / CLASSES]))
    assert Changes(found.engines, found.described, found.gone, found.classes) == expected
    assert bool(found) == (expected != Changes())


def test_a_folder_of_classes_that_comes_later_is_seen(tmp_path: Path) -> None:
    before = look(tmp_path, [tmp_path / CLASSES])
    server = Server(PROJECT, tmp_path, 8080, print)
    assert read_settings(server.settings).client_folders == (tmp_path / CLASSES,)
    (tmp_path / CLASSES / "a.py").touch()
    assert changes(before, look(tmp_path, [tmp_path / CLASSES])).classes


# The log


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., list[str]]:
    """Return what is shown of some lines of the log, after the start."""
    (tmp_path / "serve").touch(0o755)
    lines: list[str] = []
    server = Server(tmp_path, tmp_path, 8080, lines.append)

    def show(*entries: dict[str, Any] | str) -> list[str]:
        lines.clear()
        for entry in entries:
            server.show(entry if isinstance(entry, str) else json.dumps(entry))
        return list(lines)

    show({"program": "serve", "level": "info", "message": "ready after 1 s: POST http://…"})
    return show


def entry(program: str, level: str, message: str, **more: Any) -> dict[str, Any]:
    return {"program": program, "level": level, "message": message, **more}


def test_what_is_wrong_is_shown_and_what_the_author_prints(shown: Callable[..., list[str]]) -> None:
    assert shown(
        entry("serve", "info", "all is well"),
        entry("dispatcher", "info", "reload: …", logger="dispatcher.models.reload"),
        entry("dispatcher", "warning", "the model x does not answer"),
        entry("gunicorn", "info", "numbers are [1, 2]"),
        entry("gunicorn", "info", "[2026-01-31 12:00:00 +0000] [77] [INFO] Booting worker"),
        entry("triton", "info", 'I0131 12:00:00.000000 77 server.cc:674] "…"'),
        entry("triton", "error", 'E0131 12:00:00.000000 77 model.cc:1] "failed to load"'),
        entry("triton", "info", "printed by a model in Python"),
        "no JSON",
    ) == [
        "dispatcher: the model x does not answer",
        "gunicorn: numbers are [1, 2]",
        "triton: printed by a model in Python",
        "no JSON",
    ]


def test_requests_that_failed_are_shown_but_not_those_of_the_program(
    shown: Callable[..., list[str]],
) -> None:
    common = {"program": "dispatcher", "level": "info", "method": "POST"}
    assert shown(
        {**common, "route": "/invocations", "model": "x", "status": 400, "code": "bad_payload"},
        {**common, "route": "/reload", "status": 400, "code": "bad_client", "message": "it …"},
        {**common, "path": "/nowhere", "route": "", "status": 404, "code": "not_found"},
    ) == ["POST /invocations x 400 bad_payload", "POST /nowhere 404 not_found"]


def test_tracebacks_have_the_author_s_frames_alone() -> None:
    frames = Frames(["/project/"], "/project/mine/")
    assert frames.without_others(
        [
            "Traceback (most recent call last):",
            '  File "/project/clients/a.py", line 1, in ask',
            "    return client.inference()",
            "           ^^^^^^^^^^^^^^^^^^",
            '  File "/mine/a.py", line 2, in inference',
            "    1 / 0",
        ]
    ) == [
        "Traceback (most recent call last):",
        '  File "/mine/a.py", line 2, in inference',
        "    1 / 0",
    ]
    inside = ['  File "/project/mine/code/clients/a.py", line 1, in f', "    1 / 0"]
    assert frames.without_others(inside) == inside, "the README has it in the checkout"
    assert frames.without_others(['  File "<frozen importlib>", line 1, in f']) == []
    assert frames.without_others(["    of a frame before"]) == []
    assert frames.without_others(["ZeroDivisionError: division by zero"]) != []


def test_an_error_is_said_as_the_server_says_it() -> None:
    body = {"error": {"code": "bad_model", "message": "it is broken", "hint": "mend it"}}
    assert read_error(400, json.dumps(body).encode()) == "it is broken\n  hint: mend it"
    assert read_error(502, b"<html>") == "502: <html>"
    assert read_error(0, b"no connection") == "no answer: no connection"


def test_a_folder_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "/nowhere"]) == 2
    assert "there is no folder '/nowhere'" in capsys.readouterr().err
