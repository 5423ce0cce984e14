"""The `dispatcher` program: what it writes works, and what it says helps."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import PROJECT
from tests.support.check import write_class
from tool.__main__ import COMMANDS, main


class Called(NamedTuple):
    """What a command gave back, called in this process: a process of its own takes a second."""

    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., Called]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: str | Path, folder: Path = PROJECT, **variables: str) -> Called:
        monkeypatch.chdir(folder)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return Called(code, *capsys.readouterr())

    return call


def test_help_names_every_command_and_is_there_at_once() -> None:
    """It imports nothing that takes a while."""
    done = subprocess.run(
        [PROJECT / "tool" / "dispatcher", "--help"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for command, (_, meaning) in COMMANDS.items():
        assert command in done.stdout
        assert meaning.split()[0] in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not {"numpy", "flask", "grpc", "PIL"} & imported, "too much"


@pytest.mark.parametrize("arguments", [["nonsense"], [], ["invoke"], ["invoke", "x"]])
def test_a_command_that_is_called_wrongly_says_so(called: Call, arguments: list[str]) -> None:
    done = called(*arguments)
    assert done.returncode == 2
    assert "usage: dispatcher" in done.stderr
    assert "Traceback" not in done.stderr


def test_weights_is_the_tool_that_fetches_them(called: Call) -> None:
    done = called("weights", "--list", "bert_base")
    assert (done.returncode, done.stderr) == (0, "")
    assert "licence Apache-2.0" in done.stdout


def test_a_name_that_is_none_of_utf_8_is_shown(called: Call, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / os.fsdecode(b"a\xff.onnx")).touch()
    done = called("check", "--no-clients", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "a\\udcff.onnx" in done.stdout


# new-client


@pytest.mark.parametrize("runner", ["unittest", "pytest"])
def test_what_new_client_writes_passes_its_test_at_once(
    called: Call, tmp_path: Path, runner: str
) -> None:
    for name in ("double", "my-model.v2", "bad-payload"):
        done = called("new-client", name, "--into", "mine", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            if line.startswith("wrote "):
                assert (tmp_path / line.removeprefix("wrote ")).is_file()
        assert "dispatcher serve mine" in done.stdout
    how = ["discover", "-s"] if runner == "unittest" else ["-q", "-p", "no:cacheprovider"]
    tests = subprocess.run(
        [sys.executable, "-m", runner, *how, "mine/code/tests"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "9 passed" in tests.stdout or "Ran 9 tests" in tests.stderr


def test_what_new_client_says_to_run_can_be_pasted_into_a_shell(
    called: Call, tmp_path: Path
) -> None:
    done = called("new-client", "double", "--into", "Ann's models", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = {line[2:13].strip(): line[13:] for line in done.stdout.splitlines()[-5:]}
    test = "Ann's models/code/tests/test_double.py"
    assert shlex.split(said["test it"]) == [sys.executable, test]
    # The environment's own command: it is not on PATH here, as in a checkout.
    command = str(Path(sys.executable).with_name("dispatcher"))
    assert shlex.split(said["check it"]) == [command, "check", "Ann's models"]
    assert shlex.split(said["serve it"]) == [command, "serve", "Ann's models"]
    assert subprocess.run([command, "--help"], capture_output=True, check=False).returncode == 0


def test_new_client_overwrites_nothing(called: Call, tmp_path: Path) -> None:
    assert called("new-client", "double", folder=tmp_path).returncode == 0
    mine = tmp_path / "code" / "clients" / "double.py"
    mine.write_text("# mine")
    again = called("new-client", "double", folder=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "is there already" in again.stderr
    assert mine.read_text() == "# mine"


@pytest.mark.parametrize("taken", ["code", "code/clients", "code/tests"])
def test_new_client_writes_all_or_nothing(called: Call, tmp_path: Path, taken: str) -> None:
    """A file is where a folder belongs, so that the last files have no place."""
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    done = called("new-client", "double", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["a b", "../up", "5", "", "x" * 200, "none", "true"])
def test_new_client_refuses_a_name_that_cannot_be_one(
    called: Call, tmp_path: Path, name: str
) -> None:
    done = called("new-client", "--", name, folder=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# models

ALONE = """
from clients.base import Client

class Alone(Client):
    modelname = "alone"
    example = {}

    def inference(self, payload):
        return 1
"""


def test_a_class_that_begins_a_thread_keeps_no_command_from_its_end(
    called: Call, tmp_path: Path
) -> None:
    called("new-client", "double", folder=tmp_path)
    begins = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\n"
    write_class(tmp_path, f"{begins}{ALONE}", "alone.py")
    done = subprocess.run(
        [sys.executable, "-m", "tool", "models"],
        env={"PATH": "/usr/bin:/bin", "MODEL_DIR": str(tmp_path)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Alone" in done.stdout


def test_models_shows_what_is_served_by_which_client_and_why_others_are_not(
    called: Call, tmp_path: Path
) -> None:
    called("new-client", "double", folder=tmp_path)
    write_class(tmp_path, "import nothing_of_this_name", "bad.py")
    (tmp_path / "plain" / "1").mkdir(parents=True)
    (tmp_path / "taken" / "1").mkdir(parents=True)
    (tmp_path / "taken" / "dispatch.toml").write_text('aliases = ["double"]')
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "model.onnx").touch()
    done = called("models", "--json", folder=tmp_path, MODEL_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["double"]["client"] == "Double"
    assert rows["double"]["source"] == "code/clients/double.py"
    assert rows["plain"]["client"] == "tensors alone"
    assert [rows[name]["source"] for name in ("plain", "flat")] == ["plain", "flat"]
    for name in ("resnet", "yolov5", "bert_base"):
        assert rows[name]["reason"] == ""
    (bad,) = [row for row in rows.values() if row["source"] == "code/clients/bad.py"]
    assert "nothing_of_this_name" in bad["reason"]
    assert rows["taken"]["reason"].startswith("Tensors in taken/dispatch.toml: the alias 'double'")
    (tmp_path / "plain" / "dispatch.toml").write_text('aliases = ["other"]')
    write_class(tmp_path, ALONE, "alone.py")
    table = called("models", folder=tmp_path, MODEL_DIR=str(tmp_path)).stdout
    assert "plain, other " in table
    assert re.search(
        r"^alone +alone \(not there\) +Alone +code/clients/alone.py$", table, re.MULTILINE
    )
    assert "not served:" in table
    assert table.startswith("NAME ")


@pytest.mark.parametrize("command", ["models", "check"])
def test_json_stays_json_where_a_class_prints(called: Call, tmp_path: Path, command: str) -> None:
    write_class(tmp_path, f"print('hello')\n{ALONE}", "alone.py")
    done = called(command, "--json", folder=tmp_path, MODEL_DIR=str(tmp_path))
    assert json.loads(done.stdout)
    assert done.stderr == "hello\n"


def test_models_says_which_setting_is_wrong(called: Call, tmp_path: Path) -> None:
    done = called("models", MODEL_DIR=str(tmp_path / "mien"))
    assert done.returncode == 0
    assert f"MODEL_DIR is {tmp_path}/mien: there is no such folder" in done.stderr
    (tmp_path / "model.tar.gz").touch()
    done = called("models", MODEL_DIR=str(tmp_path / "model.tar.gz"))
    assert done.returncode == 2
    assert "MODEL_DIR is" in done.stderr
    done = called("models", MODEL_REPOSITORY="/no/such/folder")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MODEL_REPOSITORY is '/no/such/folder'" in done.stderr
