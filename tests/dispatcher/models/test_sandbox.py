"""Clients are tried in a process of their own, whatever they do there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dispatcher.models import sandbox
from dispatcher.models.reload import try_at_start
from tests.conftest import PROJECT, alive, descendants, wait_for
from tests.support.reloading import FINE, Worker, folder, write

__all__ = ["folder"]


WRONG = ("1 / 0", ["'mine' fails on its own example: ZeroDivisionError", "log has the traceback"])
WRONG_TOO = [
    ("0\n    x = 1 / 0", ["mine.py cannot be imported", "ZeroDivisionError"]),
    ("{1, 2}", ["fails on its own example", "JSON", "set"]),
    ("self.infer({})", ["fails on its own example", "Triton does not answer"]),
    ("(", ["mine.py cannot be imported", "SyntaxError"]),
    ("__import__('os').abort()", ["mine.py: the process that tested it", "SIGABRT"]),
]


@pytest.mark.parametrize(
    ("result", "words"),
    [WRONG, *(pytest.param(*one, marks=pytest.mark.slow) for one in WRONG_TOO)],
)
def test_what_does_not_work_is_not_taken_and_the_answer_says_why(
    folder: Path, result: str, words: list[str]
) -> None:
    worker = Worker(folder)
    write(folder / "clients", "mine", result)
    write(folder / "clients", "fresh", result)
    write(folder / "clients", "zebra", "'taken'")
    response = worker.reload()
    error = response.json["error"]
    assert (response.status_code, error["code"]) == (400, "bad_client")
    for word in words:
        assert word in error["message"]
    assert worker.ask("mine") == "old", "the previous clients are kept"
    assert worker.reload().status_code == 400, "until it is mended"
    assert worker.ask("zebra") == "unknown_model"
    write(folder / "clients", "mine", "'mended'")
    (folder / "clients" / "fresh.py").unlink()
    assert worker.reload().json["taken"] == ["mine", "zebra"]
    assert worker.ask("mine") == "mended"


def test_a_class_that_asks_others_is_tried_with_those_that_there_are(folder: Path) -> None:
    """Whether they stay as they are, are tried too, or are known by an alias."""
    worker = Worker(folder)
    write(folder / "clients", "also", "'new'")
    write(folder / "clients", "aliased", "'by its alias'\n    aliases = ['other']")
    assert worker.reload().status_code == 200
    chain = "[self.ask(name, {}) for name in ('kept', 'mine', 'later', 'other')]"
    write(folder / "clients", "chain", chain)
    write(folder / "clients", "later", "'later'")
    write(folder / "clients", "mine", "'changed'")
    assert worker.reload().status_code == 200, worker.registry.broken
    assert worker.ask("chain") == ["kept", "changed", "later", "by its alias"]
    write(folder / "clients", "chain", "self.ask('nobody', {})")
    error = worker.reload().json["error"]["message"]
    assert "'nobody', which 'chain' asks: there is no model 'nobody'" in error
    assert all(f" {name}" in error for name in ("kept", "later", "mine")), "not tried, and there"
    assert worker.ask("chain")[0] == "kept"


def test_what_ends_the_process_at_its_import_is_left_out_by_workers_that_start(
    folder: Path,
) -> None:
    """The first tries for all; no example is asked, for Triton may not be there yet."""
    fatal = folder / "clients" / "fatal.py"
    write(folder / "clients", "fatal", "0\n    x = __import__('os')._exit(7)")
    write(folder / "clients", "asks", "self.infer({})")
    first = Worker(folder, try_at_start)
    second = Worker(folder, lambda *_: pytest.fail("what one has tried is not tried again"))
    for worker in (first, second):
        assert worker.ask("kept") == "kept"
        assert worker.ask("fatal") == "client_disabled"
        end = "the process that tested it ended with exit code 7"
        assert worker.registry.broken == {"fatal": f"{fatal}: {end}"}
        assert "asks" in worker.registry.clients
    response = first.reload()
    assert (response.status_code, list(response.json["broken"])) == (200, [str(fatal)])
    write(folder / "clients", "fatal", "'mended'")
    assert first.reload().json["taken"] == ["fatal"]
    later = Worker(folder, lambda *_: pytest.fail("what a reload has tried is not tried again"))
    assert first.ask("fatal") == later.ask("fatal") == "mended"


def test_a_worker_that_starts_waits_longer_for_imports_than_a_request_may_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Mock(side_effect=lambda job, *_: (dict.fromkeys(job["try"], sandbox.Tried()), "", ""))
    monkeypatch.setattr(sandbox, "run_process", ran)
    Worker(folder, try_at_start, MODEL_SERVER_TIMEOUT="2")
    assert ran.call_args.args[0]["within"] == 30


WRITES = """
from pathlib import Path
from random import random
from clients.base import Client

HERE = Path(__file__).parent

class Packed(Client):
    modelname = "packed"
    example = {}

    def __init__(self, environment):
        super().__init__(environment)
        (HERE / "vocabulary.json").write_text(str(random()))
        self.words = (HERE / "labels.json").read_text()

    def inference(self, payload):
        (HERE / "cache").mkdir(exist_ok=True)
        (HERE / "cache" / str(random())).touch()
        return self.words + "RESULT"
"""


def test_a_package_that_writes_into_its_own_folder_is_taken_up_like_any_other(folder: Path) -> None:
    """It writes whenever it is made or asked."""
    first, second = Worker(folder, try_at_start), Worker(folder, try_at_start)
    packed = folder / "clients" / "packed"
    packed.mkdir()
    (packed / "labels.json").write_text("one")
    (packed / "__init__.py").write_text(WRITES)
    assert first.reload().json == {"taken": ["packed"], "removed": [], **FINE}
    assert [one.ask("packed") for one in (first, second)] == ["oneRESULT"] * 2
    (packed / "__init__.py").write_text(WRITES.replace("RESULT", "new"))
    assert first.reload().json["taken"] == ["packed"]
    assert first.ask("packed") == "onenew"
    (packed / "labels.json").write_text("two")
    assert first.reload().json["taken"] == ["packed"], "what its author writes is news"
    assert [one.ask("packed") for one in (first, second)] == ["twonew"] * 2


@pytest.mark.parametrize("file", [pytest.param("log.txt", marks=pytest.mark.slow), "made.py"])
def test_what_writes_a_file_before_it_ends_the_process_is_left_out_too(
    folder: Path, file: str
) -> None:
    package = folder / "clients" / "fatal"
    ends = f"import os\nopen({str(package / file)!r}, 'a').write('x = 1\\n')\nos._exit(7)"
    write(folder / "clients", "fatal", "1", "fatal/__init__.py", after=ends)
    for _ in range(2):
        worker = Worker(folder, try_at_start)
        assert worker.ask("kept") == "kept"
        assert worker.ask("fatal") == "client_disabled"
    assert "ended with exit code 7" in worker.reload().text


STARTS = """
import os, subprocess
from clients.base import Client

class Starts(Client):
    modelname = "starts"
    example = {{}}

    def __init__(self, environment):
        super().__init__(environment)
        self.helper = subprocess.Popen(["sleep", "600"])
        with open({pids!r}, "a") as pids:
            pids.write(f"{{self.helper.pid}}\\n")
        {then}

    def inference(self, payload):
        return 1
"""


def started(folder: Path) -> set[int]:
    """Return the processes that objects of the class have started."""
    pids = folder / "pids"
    return {int(line) for line in pids.read_text().splitlines()} if pids.exists() else set()


@pytest.mark.parametrize("then", ["pass", "os._exit(7)"])
def test_what_a_class_starts_ends_with_its_trial(folder: Path, then: str) -> None:
    worker = Worker(folder)
    pids = str(folder / "pids")
    (folder / "clients" / "starts.py").write_text(STARTS.format(pids=pids, then=then))
    assert worker.reload().status_code == (200 if then == "pass" else 400)
    assert started(folder)
    own = {worker.registry.clients["starts"].helper} if then == "pass" else set()
    wait_for(lambda: alive(started(folder)) == {one.pid for one in own}, "the others' end")
    for helper in own:
        helper.kill()
        helper.wait()


@pytest.mark.slow
def test_one_that_hangs_is_stopped_with_what_it_started_and_the_others_are_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PROCESS_SHARE", 0.1)  # which are half a minute
    worker, pids = Worker(folder), str(folder / "pids")
    then = "__import__('time').sleep(600)"
    (folder / "clients" / "starts.py").write_text(STARTS.format(pids=pids, then=then))
    write(folder / "clients", "zebra", "1 / 0")
    message = worker.reload().json["error"]["message"]
    assert "starts.py: it was not done within " in message
    assert "'zebra' fails on its own example" in message
    assert started(folder)
    wait_for(lambda: not alive(started(folder)), "the end of what it started")


FORKS = """
def end_a_process():
    import multiprocessing, time
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    return -process.exitcode
"""


def test_a_process_that_a_class_ends_itself_takes_its_trial_not_along(folder: Path) -> None:
    worker = Worker(folder)
    write(folder / "clients", "forks", "end_a_process()", after=FORKS)
    came = worker.reload()
    assert came.status_code == 200, came.text
    assert worker.ask("forks") == signal.SIGTERM


def test_a_trial_ends_with_the_worker_that_waits_for_it(folder: Path) -> None:
    """And so does what a class has started, though both are in a group of their own."""
    pids = str(folder / "pids")
    then = "__import__('time').sleep(600)"
    (folder / "clients" / "starts.py").write_text(STARTS.format(pids=pids, then=then))
    code = "import pathlib, sys, tests.support.reloading as t; "
    code += "from dispatcher.models.reload import try_at_start; "
    code += "t.Worker(pathlib.Path(sys.argv[1]), try_at_start)"
    with subprocess.Popen([sys.executable, "-c", code, folder], cwd=PROJECT) as worker:
        wait_for(lambda: started(folder), "the start of its process")
        tried = descendants(worker.pid)
        assert started(folder) < tried
        worker.kill()
    wait_for(lambda: not alive(tried), "the end of the trial")
