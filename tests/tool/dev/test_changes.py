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


def append(path: Path) -> None:
    path.write_text(path.read_text() + "\n")


def renamed(folder: Path) -> None:
    """As many editors save: a new file in the place of the old one, with its time and size."""
    path = folder / CLASSES / "double.py"
    status, content = path.stat(), path.read_bytes()
    path.with_name(".new").write_bytes(content)
    path.with_name(".new").rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def added(folder: Path) -> None:
    (folder / "more" / "1").mkdir(parents=True)
    (folder / "more" / "1" / "model.onnx").touch()


def removed(folder: Path) -> None:
    (folder / "double").rename(folder / ".away")


CHANGES: dict[str, tuple[Callable[[Path], Any], Changes]] = {
    "nothing": (lambda _: None, Changes()),
    "configuration": (
        lambda folder: append(folder / "double" / "config.pbtxt"),
        Changes(engines=("double",)),
    ),
    "model": (
        lambda folder: (folder / "double" / "1" / "model.onnx").write_bytes(b""),
        Changes(engines=("double",)),
    ),
    "version": (
        lambda folder: (folder / "double" / "1").rename(folder / "double" / "2"),
        Changes(engines=("double",)),
    ),
    "labels": (
        lambda folder: append(folder / "double" / "labels.txt"),
        Changes(described=("double",)),
    ),
    "dispatch.toml": (
        lambda folder: (folder / "double" / "dispatch.toml").write_text("family"),
        Changes(described=("double",)),
    ),
    "new model": (added, Changes(engines=("more",))),
    "model gone": (removed, Changes(gone=("double",))),
    "class": (lambda folder: append(folder / CLASSES / "double.py"), Changes(classes=True)),
    "class renamed": (renamed, Changes(classes=True)),
    "class gone": (lambda folder: (folder / CLASSES / "double.py").unlink(), Changes(classes=True)),
    "a module beside": (
        lambda folder: (folder / CLASSES / "beside.py").touch(),
        Changes(classes=True),
    ),
    "an editor's files": (
        lambda folder: (
            (folder / CLASSES / ".double.py.swp").touch(),
            (folder / CLASSES / "double.py~").touch(),
            (folder / CLASSES / "__pycache__").mkdir(),
            (folder / CLASSES / "__pycache__" / "double.pyc").touch(),
            (folder / "double" / "model.onnx.part").touch(),
        ),
        Changes(),
    ),
    "a test": (lambda folder: append(folder / "code" / "tests" / "test_double.py"), Changes()),
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


def test_what_is_wrong_is_shown_and_what_the_author_prints(
    shown: Callable[..., list[str]],
) -> None:
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
    frames = Frames(["/project/"])
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
