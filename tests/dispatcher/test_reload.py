"""Clients are taken up while others are answered; what does not work is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.discovery import changes, model_source, tried
from clients.plugins.dispatch_toml import aliases
from clients.plugins.registry import Verdict, load_clients
from clients.repository.model_folders import link
from clients.triton.client import renamed_config
from clients.triton.server import ModelState, Signature, TensorSpec
from dispatcher.app import create_app
from dispatcher.model_control import sandbox as trial
from dispatcher.model_control.reload import (
    Noted,
    Reloader,
    Try,
    Verdicts,
    tried_at_start,
    try_at_start,
)
from dispatcher.readiness.prober import Canary
from dispatcher.settings import WANTED, Settings, read_settings
from tests.conftest import PROJECT, alive, descendants
from tests.dispatcher.test_prober import triton
from tests.dispatcher.test_http import assert_error, quiet
from tests.support.fake_triton import FakeTriton

FINE: dict[str, Any] = {"broken": {}, "absent": {}}
SOURCE = """
from clients.base import Client

class {kind}(Client):
    modelname = "{name}"
    example = {{}}

    def inference(self, payload):
        return {result}
"""


def write(folder: Path, name: str, result: str, file: str = "") -> None:
    path = folder / (file or f"{name}.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(SOURCE.format(kind=name.title(), name=name, result=result))


class Worker:
    """A web worker without HTTP in between; several share a RUN_DIR."""

    def __init__(self, folder: Path, trial: Try | None = None, **settings: str) -> None:
        self.settings = read_settings(
            {
                "CLIENTS_PATH": str(folder / "clients"),
                "RUN_DIR": str(folder),
                "MODEL_REPOSITORY": str(folder),  # holds no models, so no built-in clients
                "MODEL_SERVER_TIMEOUT": "20",
                "TRITON_GRPC_PORT": "1",  # nobody is there
                **settings,
            }
        )
        environment = Environment(FakeTriton(), self.settings.model_repository)
        verdicts = Verdicts(folder / "reload")
        self.noted = tried_at_start(self.settings, verdicts, trial) if trial else verdicts.read()
        self.registry = load_clients(environment, self.settings.clients_path, self.noted.by_source)
        self.renewed = 0
        self.reloader = Reloader(
            self.settings, self.registry, environment, verdicts, self.count_renewal
        )
        self.app = create_app(
            self.settings,
            self.registry,
            environment,
            renamed_config,
            quiet(),
            reloader=self.reloader,
        )

    def count_renewal(self) -> None:
        self.renewed += 1

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def ask(self, name: str) -> Any:
        body = json.dumps({"modelname": name, "payload": {}})
        answer = self.client().post("/invocations", data=body).json
        return answer.get("result", answer.get("error", {}).get("code"))

    def reload(self) -> Any:
        return self.client().post("/reload")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "clients", "kept", "'kept'")
    write(tmp_path / "clients", "mine", "'old'")
    return tmp_path


def test_a_reload_waits_for_others_only_so_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "managing_wait", 0.2)
    worker = Worker(folder)
    write(folder / "clients", "gone", "1")
    for held in (Verdicts(folder / "reload").alone(), worker.reloader._taking):
        with held:
            assert_error(worker.reload(), 504, "deadline_exceeded", "others reload")
    assert worker.reload().status_code == 200
    assert worker.ask("gone") == 1


def test_what_is_new_changed_or_gone_is_taken_up(folder: Path) -> None:
    """Edits of the same size within a second count; what has not changed keeps its object."""
    worker = Worker(folder)
    kept = worker.registry.clients["kept"]
    assert worker.ask("mine") == "old"
    write(folder / "clients", "gone", "1")
    assert worker.reload().json == {"taken": ["gone"], "removed": [], **FINE}
    write(folder / "clients", "mine", "'new'")
    write(folder / "clients", "packed", "'whole'", "packed/__init__.py")
    (folder / "clients" / "gone.py").unlink()
    report = worker.reload().json
    assert report == {"taken": ["mine", "packed"], "removed": ["gone"], **FINE}
    assert [worker.ask(name) for name in ("mine", "packed")] == ["new", "whole"]
    assert worker.ask("gone") == "unknown_model"
    assert worker.registry.clients["kept"] is kept
    assert worker.renewed == 2
    assert worker.reload().json == {"taken": [], "removed": [], **FINE}
    assert worker.renewed == 2


def test_what_lacks_its_model_is_listed_in_the_order_of_the_files(folder: Path) -> None:
    worker = Worker(folder)
    names = [f"lacking_{letter}" for letter in "abcdefgh"]
    for name in names[::-1]:
        write(folder / "clients", name, "1")
        with (folder / "clients" / f"{name}.py").open("a") as file:
            file.write("    def __init__(self, environment):\n")
            file.write("        super().__init__(environment)\n")
            file.write("        (self.folder / 'labels.txt').read_text()\n")
    response = worker.reload()
    assert list(json.loads(response.text)["absent"]) == names


def test_a_module_inside_a_package_is_taken_up_too(folder: Path) -> None:
    package = folder / "clients" / "packed"
    write(folder / "clients", "packed", "WORD", "packed/__init__.py")
    with (package / "__init__.py").open("a") as file:
        file.write("\nfrom .words import WORD\n")
    (package / "words.py").write_text("WORD = 'one'")
    worker = Worker(folder)
    assert worker.ask("packed") == "one"
    (package / "words.py").write_text("WORD = 'two'")
    assert worker.reload().json["taken"] == ["packed"]
    assert worker.ask("packed") == "two"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("1 / 0", ["'mine' fails on its own example: ZeroDivisionError", "log has the traceback"]),
        ("{1, 2}", ["fails on its own example", "JSON", "set"]),
        ("self.infer({})", ["fails on its own example", "Triton does not answer"]),
        ("0\n    x = 1 / 0", ["mine.py cannot be imported", "ZeroDivisionError"]),
        ("(", ["mine.py cannot be imported", "SyntaxError"]),
        ("__import__('os')._exit(7)", ["mine.py: the process that tried it", "exit code 7"]),
        ("__import__('os').abort()", ["mine.py: the process that tried it", "SIGABRT"]),
    ],
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
        assert word in error["message"] + str(worker.registry.broken)
    assert "taken up were: zebra" in error["hint"]
    assert worker.ask("mine") == "old", "what there was before is kept"
    by_file = worker.registry.broken.get(str(folder / "clients" / "fresh.py"), "")
    assert worker.ask("fresh") == ("unknown_model" if by_file else "client_disabled")
    assert worker.reload().status_code == 400, "until it is mended"
    assert worker.ask("zebra") == "taken"
    write(folder / "clients", "mine", "'mended'")
    (folder / "clients" / "fresh.py").unlink()
    assert worker.reload().status_code == 200
    assert worker.ask("mine") == "mended"


def test_a_trial_that_a_signal_without_a_name_ends_says_its_number(folder: Path) -> None:
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 37)"]
    worker = Worker(folder)
    verdicts = trial.try_sources(worker.reloader.sources(), {}, worker.settings, command=killed)
    reason = verdicts[str(folder / "clients" / "mine.py")].reason
    assert reason.endswith("the process that tried it ended with signal 37")


@pytest.mark.slow
def test_one_that_hangs_is_stopped_and_the_others_are_taken(folder: Path) -> None:
    worker = Worker(folder, MODEL_SERVER_TIMEOUT="12")
    write(folder / "clients", "mine", "__import__('time').sleep(60)")
    write(folder / "clients", "zebra", "'taken'")
    response = worker.reload()
    assert "mine.py: it was not done within " in response.json["error"]["message"]
    assert (worker.ask("mine"), worker.ask("zebra")) == ("old", "taken")


def test_every_worker_takes_up_what_one_was_asked_to(folder: Path) -> None:
    """And one that starts later leaves out what was refused."""
    first, second = Worker(folder), Worker(folder)
    write(folder / "clients", "mine", "'new'")
    write(folder / "clients", "bad", "1 / 0")
    assert first.reload().status_code == 400
    assert (first.ask("mine"), second.ask("mine")) == ("new", "old")
    second.reloader.take_up()
    assert second.ask("mine") == "new"
    third = Worker(folder)
    assert third.noted.number == 1
    for worker in (first, second, third):
        assert worker.ask("bad") == "client_disabled"


def test_a_good_client_beside_a_broken_one_is_served_by_a_later_worker_too(folder: Path) -> None:
    mine = folder / "clients" / "mine.py"
    mine.write_text(mine.read_text() + "\nclass Broken(Client):\n    modelname = 'broken'\n")
    first = Worker(folder)
    assert (first.ask("mine"), first.ask("broken")) == ("old", "client_disabled")
    response = first.reload()
    assert response.status_code == 200, "it was not this reload that broke it"
    (reason,) = response.json["broken"].values()
    assert "it has no example" in reason or "lacks the method" in reason
    for worker in (first, Worker(folder)):
        assert (worker.ask("mine"), worker.ask("broken")) == ("old", "client_disabled")


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
        end = "the process that tried it ended with exit code 7"
        assert worker.registry.broken == {"fatal": f"{fatal}: {end}"}
        assert "asks" in worker.registry.clients
    response = first.reload()
    assert (response.status_code, list(response.json["broken"])) == (200, [str(fatal)])
    write(folder / "clients", "fatal", "'mended'")
    assert first.reload().json["taken"] == ["fatal"]
    assert first.ask("fatal") == "mended"


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


@pytest.fixture
def packed(folder: Path) -> Path:
    """A package that writes into its own folder whenever it is made or asked."""
    package = folder / "clients" / "packed"
    package.mkdir()
    (package / "labels.json").write_text("one")
    (package / "__init__.py").write_text(WRITES)
    return package


def test_a_package_that_writes_into_its_own_folder_is_taken_up_like_any_other(
    folder: Path, packed: Path
) -> None:
    packed.rename(folder / "later")
    first, second = Worker(folder, try_at_start), Worker(folder, try_at_start)
    (folder / "later").rename(packed)
    assert first.reload().json == {"taken": ["packed"], "removed": [], **FINE}
    second.reloader.take_up()
    assert [one.ask("packed") for one in (first, second)] == ["oneRESULT"] * 2
    assert first.reload().json == {"taken": [], "removed": [], **FINE}, "it has changed nothing"
    (packed / "__init__.py").write_text(WRITES.replace("RESULT", "new"))
    assert first.reload().json["taken"] == ["packed"]
    assert first.ask("packed") == "onenew"
    (packed / "labels.json").write_text("two")
    assert first.reload().json["taken"] == ["packed"], "what its author writes is news"
    second.reloader.take_up()
    assert [one.ask("packed") for one in (first, second)] == ["twonew"] * 2


def test_with_a_watch_what_a_package_writes_is_no_news(folder: Path, packed: Path) -> None:
    worker = Worker(folder, try_at_start)
    assert worker.reloader.news() == {}
    (packed / "labels.json").write_text("two")
    assert list(worker.reloader.news()) == [str(packed / "__init__.py")]
    worker.reloader.renew_if_alone()
    assert worker.ask("packed") == "twoRESULT"
    assert worker.ask("packed") == "twoRESULT"
    assert worker.reloader.news() == {}


@pytest.mark.parametrize("file", ["log.txt", "made.py"])
def test_what_writes_a_file_before_it_ends_the_process_is_left_out_too(
    folder: Path, file: str
) -> None:
    package = folder / "clients" / "fatal"
    write(folder / "clients", "fatal", "1", "fatal/__init__.py")
    with (package / "__init__.py").open("a") as code:
        code.write(f"import os\nopen({str(package / file)!r}, 'a').write('x = 1\\n')\nos._exit(7)")
    for _ in range(2):
        worker = Worker(folder, try_at_start)
        assert worker.ask("kept") == "kept"
        assert worker.ask("fatal") == "client_disabled"
    assert "ended with exit code 7" in worker.reload().text


def test_one_that_writes_its_own_code_anew_is_not_taken_and_the_answer_says_why(
    folder: Path,
) -> None:
    worker = Worker(folder)
    write(folder / "clients", "mine", "open(__file__, 'a').write('#') and 'new'")
    response = worker.reload()
    assert (response.status_code, response.json["error"]["code"]) == (400, "bad_client")
    assert "mine.py was changed while it was tried" in response.json["error"]["message"]
    assert worker.ask("mine") == "old"


STARTS = """
import os, subprocess
from clients.base import Client

class Starts(Client):
    modelname = "starts"
    example = {{}}

    def __init__(self, environment):
        super().__init__(environment)
        self.helper = subprocess.Popen(["sleep", "60"])
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


@pytest.mark.parametrize(
    ("then", "timeout"),
    [
        ("pass", "30"),
        ("os._exit(7)", "30"),
        pytest.param("__import__('time').sleep(60)", "6", marks=pytest.mark.slow),
    ],
)
def test_what_a_class_starts_ends_with_its_trial(folder: Path, then: str, timeout: str) -> None:
    worker = Worker(folder, MODEL_SERVER_TIMEOUT=timeout)
    pids = str(folder / "pids")
    (folder / "clients" / "starts.py").write_text(STARTS.format(pids=pids, then=then))
    assert worker.reload().status_code == (200 if then == "pass" else 400)
    assert started(folder)
    own = {worker.registry.clients["starts"].helper} if then == "pass" else set()
    until(lambda: alive(started(folder)) == {one.pid for one in own})
    for helper in own:
        helper.kill()
        helper.wait()


FORKS = """
import multiprocessing, time
from clients.base import Client

class Forks(Client):
    modelname = "forks"
    example = {}

    def inference(self, payload):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join()
        return -process.exitcode
"""


def test_a_process_that_a_class_ends_itself_takes_its_trial_not_along(folder: Path) -> None:
    worker = Worker(folder, MODEL_SERVER_TIMEOUT="30")
    (folder / "clients" / "forks.py").write_text(FORKS)
    came = worker.reload()
    assert came.status_code == 200, came.text
    assert worker.ask("forks") == signal.SIGTERM


def test_what_is_edited_while_a_model_without_code_is_tried_is_news(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    (tmp_path / "dispatch.toml").write_text('family = "classification"')
    labels.write_text("cat")
    source = model_source(tmp_path / "dispatch.toml")
    labels.write_text("dog, while it is tried")
    assert list(changes(tried(source), source.look())) == [str(labels)]


def test_a_trial_ends_with_the_worker_that_waits_for_it(folder: Path) -> None:
    """And so does what a class has started, though both are in a group of their own."""
    pids = str(folder / "pids")
    then = "__import__('time').sleep(60)"
    (folder / "clients" / "starts.py").write_text(STARTS.format(pids=pids, then=then))
    code = "import pathlib, sys, tests.dispatcher.test_reload as t; "
    code += "t.Worker(pathlib.Path(sys.argv[1]), t.try_at_start)"
    with subprocess.Popen([sys.executable, "-c", code, folder], cwd=PROJECT) as worker:
        until(lambda: started(folder))
        tried = descendants(worker.pid)
        assert started(folder) < tried
        worker.kill()
    until(lambda: not alive(tried))


def test_of_two_classes_in_a_new_file_the_good_one_is_taken(folder: Path) -> None:
    """A file that is served is replaced as a whole, or not at all."""
    file, worker = folder / "clients" / "two.py", Worker(folder)

    def write_two(good: str, bad: str) -> None:
        write(file.parent, "good", good, file.name)
        first = file.read_text()
        write(file.parent, "bad", bad, file.name)
        file.write_text(first + file.read_text())

    write_two("'first'", "1 / 0")
    response = worker.reload()
    assert "'bad' fails on its own example" in response.json["error"]["message"]
    assert "taken up were: good" in response.json["error"]["hint"]
    for one in (worker, Worker(folder)):
        assert (one.ask("good"), one.ask("bad")) == ("first", "client_disabled")
    write_two("'second'", "1 / 0")
    assert worker.reload().status_code == 400
    assert (worker.ask("good"), worker.ask("bad")) == ("first", "client_disabled")
    write_two("'third'", "'mended'")
    assert worker.reload().json["taken"] == ["bad", "good"]
    assert (worker.ask("good"), worker.ask("bad")) == ("third", "mended")


def test_a_model_that_is_loaded_is_tried_alone(folder: Path) -> None:
    """A client that is broken, or hangs when it is tried, must not make each load wait."""
    tried: list[str] = []

    def good(found: Any, *_: Any) -> dict[str, Verdict]:
        tried.extend(Path(source.where).parent.name for source in found)
        return {source.where: Verdict(source.mark) for source in found}

    write(folder / "clients", "broken", "0\n    x = 1 / 0")
    worker = Worker(folder)
    worker.reloader.trial = good
    source = folder / "elsewhere" / "plain"
    (source / "1").mkdir(parents=True)
    (folder / WANTED).mkdir()
    (source / "dispatch.toml").write_text('aliases = ["other"]')
    body = {"model_name": "plain", "url": str(source)}
    assert worker.client().post("/models", json=body).status_code == 200
    assert worker.registry.name("other") == "plain"
    assert worker.client().delete("/models/plain").status_code == 200
    assert worker.registry.name("other") == "other"
    assert tried == ["plain"]


def test_who_loads_or_unloads_a_model_leaves_the_others_their_clients(folder: Path) -> None:
    """Though their folders, or their files, cannot be found at that moment."""
    workers = [Worker(folder), Worker(folder)]
    (folder / WANTED).mkdir()
    for one in workers:
        one.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark) for s in found}

    def load(name: str) -> None:
        (folder / "elsewhere" / name / "1").mkdir(parents=True)
        (folder / "elsewhere" / name / "dispatch.toml").touch()
        body = {"model_name": name, "url": str(folder / "elsewhere" / name)}
        assert workers[0].client().post("/models", json=body).status_code == 200

    def served() -> list[set[str]]:
        workers[1].reloader.take_up()
        return [set(one.registry.clients) for one in workers]

    load("one")
    assert served() == [{"kept", "mine", "one"}] * 2
    (folder / "elsewhere" / "one").rename(folder / "elsewhere" / "away")
    (folder / "clients" / "mine.py").rename(folder / "mine.py")
    write(folder / "clients", "new", "1")  # it waits for a reload
    load("two")
    assert served() == [{"kept", "mine", "one", "two"}] * 2
    assert workers[1].client().delete("/models/two").status_code == 200
    workers[0].reloader.take_up()
    assert served() == [{"kept", "mine", "one"}] * 2
    workers[0].reloader.reload()
    assert {"kept", "new"} <= served()[0] == served()[1]
    assert "mine" not in served()[0]


@pytest.mark.parametrize("name", ["lal", "other", "late"])
def test_the_names_of_a_model_that_is_unloaded_late_are_free_again(folder: Path, name: str) -> None:
    """The model itself may come again, or another one under its alias, or with that alias."""
    worker, source = Worker(folder), folder / "elsewhere" / "late"
    triton = worker.reloader.environment.server
    assert isinstance(triton, FakeTriton)
    worker.reloader.trial = lambda found, taken, _: {
        s.where: Verdict(s.mark, bad={"x": "the name is taken"} if "lal" in taken else {})
        for s in found
    }
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('aliases = ["lal"]')
    plain = folder / "elsewhere" / "plain"
    (plain / "1").mkdir(parents=True)
    (folder / WANTED).mkdir()

    def load(name: str, url: Path) -> int:
        body = {"model_name": name, "url": str(url)}
        return worker.client().post("/models", json=body).status_code

    assert load("late", source) == 200
    triton.unloading.add("late")
    assert worker.client().delete("/models/late").status_code == 504
    assert load("lal", plain) == 409
    assert worker.registry.name("lal") == "late"
    triton.unloading.clear()
    triton.unloaded.add("late")
    assert load(name, plain if name == "lal" else source) == 200
    assert worker.registry.name("lal") == ("lal" if name == "lal" else name)


@pytest.mark.parametrize("fault", ["", "it is broken"])
def test_who_unloads_a_model_waits_for_the_trial_of_its_client(folder: Path, fault: str) -> None:
    worker, source = Worker(folder), folder / "elsewhere" / "plain"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").touch()
    (folder / WANTED).mkdir()
    body = {"model_name": "plain", "url": str(source)}
    with ThreadPoolExecutor() as pool:
        deleted: list[Future[Any]] = []

        def slow(found: Any, *_: Any) -> dict[str, Verdict]:
            deleted.append(pool.submit(worker.client().delete, "/models/plain"))
            with pytest.raises(TimeoutError):
                deleted[0].result(0.3)
            assert worker.client().post("/models", json=body).status_code == 409
            return {s.where: Verdict(s.mark, bad={"plain": fault} if fault else {}) for s in found}

        worker.reloader.trial = slow
        answer = worker.client().post("/models", json=body)
        assert answer.status_code == (400 if fault else 200)
        assert deleted[0].result(10).status_code == (404 if fault else 200)
    assert not (folder / "plain").exists()
    assert str(folder / "plain" / "dispatch.toml") not in worker.registry.loaded


def test_a_file_that_changes_after_it_was_tried_waits_for_the_next_reload(folder: Path) -> None:
    first, second = Worker(folder), Worker(folder)
    write(folder / "clients", "mine", "'tried'")
    assert first.reload().status_code == 200
    write(folder / "clients", "mine", "'not tried'")
    second.reloader.take_up()
    assert second.ask("mine") == "old"


def test_it_waits_for_the_workers_that_live(folder: Path) -> None:
    verdicts = Verdicts(folder)
    verdicts.acknowledge(3)
    (verdicts.workers / "99999999").write_text("1")  # it is gone
    assert verdicts.behind(3) == []
    assert [path.name for path in verdicts.behind(4)] == [str(os.getpid())]
    verdicts.write(Noted(5))
    assert verdicts.read() == Noted(5)


def test_a_name_of_another_client_is_refused(folder: Path) -> None:
    worker = Worker(folder)
    write(folder / "clients", "kept", "'stolen'", "a.py")
    response = worker.reload()
    assert "the name 'kept' belongs to the client in " in response.json["error"]["message"]
    assert worker.ask("kept") == "kept"


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_with_a_watch_nobody_has_to_ask(folder: Path) -> None:
    tried: list[list[str]] = []

    def noting(found: Any, kept: Any, settings: Settings) -> Any:
        found = list(found)
        tried.append([Path(source.where).name for source in found])
        return trial.try_sources(found, kept, settings)

    worker = Worker(folder, CLIENTS_WATCH="0.5")
    worker.reloader.trial = noting
    gone = worker.reloader.verdicts.workers / "99999999"
    gone.parent.mkdir(parents=True)
    gone.touch()
    worker.reloader.start(0)
    assert not gone.exists(), "else a later process of this number would be waited for"
    write(folder / "clients", "mine", "1 / 0")
    until(lambda: tried)
    write(folder / "clients", "mine", "'new'")
    until(lambda: worker.ask("mine") == "new")
    count = len(tried)
    time.sleep(2.5)
    assert tried[0] == ["mine.py"]
    assert len(tried) == count, "what was tried is not tried again"


def test_a_watch_leaves_a_change_to_the_worker_that_is_at_it(folder: Path) -> None:
    """One that waited for the lock could not take up what it is waited for."""
    worker, other = Worker(folder, CLIENTS_WATCH="0.5"), Worker(folder)
    write(folder / "clients", "mine", "'new'")
    with worker.reloader.verdicts.alone():
        worker.reloader.renew_if_alone()
        assert worker.reloader.verdicts.read() == Noted(), "it left it to the one who is at it"
    assert other.reload().status_code == 200
    worker.reloader.trial = lambda *_: pytest.fail("what another has tried is not tried again")
    worker.reloader.renew_if_alone()
    assert worker.ask("mine") == "new"
    assert worker.reloader.verdicts.read().number == 1


def test_an_installed_package_that_has_changed_needs_a_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = folder / "site"
    write(site, "ears", "'old'")

    def version(number: str) -> None:
        info = site / f"ears-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ears\nVersion: {number}\n")
        (info / "entry_points.txt").write_text("[triton_dispatcher.clients]\nears = ears\n")

    version("1.0")
    monkeypatch.syspath_prepend(str(site))
    worker = Worker(folder)
    assert worker.ask("ears") == "old"
    (site / "ears-1.0.dist-info").rename(folder / "was")
    version("2.0")
    write(site, "ears", "'new'")
    response = worker.reload()
    assert "an installed package needs a restart" in response.json["error"]["message"]
    assert worker.ask("ears") == "old"
    del sys.modules["ears"]


@pytest.mark.parametrize(("multi_model", "taken"), [("false", ["lal"]), ("true", [])])
def test_a_second_model_with_a_taken_alias_is_loaded_without_it(
    folder: Path, multi_model: str, taken: list[str]
) -> None:
    """And stays so when the first is gone, in later workers too: it is not what callers mean.

    On a multi-model endpoint names are the platform's, and no model has aliases.
    """
    source = folder / "elsewhere" / "tenant"
    (source / "1").mkdir(parents=True)
    (folder / WANTED).mkdir()
    (source / "dispatch.toml").write_text('aliases = ["lal", "mine", "b"]')

    def worker() -> Worker:
        one = Worker(folder, SAGEMAKER_MULTI_MODEL=multi_model)
        one.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark) for s in found}
        return one

    first = worker()
    for name in ("b", "a"):  # a worker that comes later finds the second before the first
        body = {"model_name": name, "url": str(source)}
        assert first.client().post("/models", json=body).status_code == 200

    def its(one: Worker, name: str) -> Any:
        return list(one.registry.clients[name].aliases)

    for one in (first, worker()):
        assert (its(one, "b"), its(one, "a")) == (taken, [])
    assert first.client().delete("/models/b").status_code == 200
    for one in (first, worker()):
        assert (one.registry.aliases, its(one, "a")) == ({}, [])


def test_of_two_models_that_are_loaded_at_once_one_has_the_alias(folder: Path) -> None:
    """As where one is loaded after the other: neither is refused."""
    worker = Worker(folder)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "tenant"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('aliases = ["lal"]')

    def load(name: str) -> int:
        body = {"model_name": name, "url": str(source)}
        return worker.client().post("/models", json=body).status_code

    with ThreadPoolExecutor() as pool:
        second: list[Future[int]] = []

        def trial(found: Any, taken: Any, *_: Any) -> dict[str, Verdict]:
            if not second:
                second.append(pool.submit(load, "two"))
                while not (folder / "two").exists():
                    assert not second[0].done()
                    time.sleep(0.01)
            return {
                s.where: Verdict(
                    s.mark,
                    bad={s.model: "the name belongs to another"}
                    if {*aliases(Path(s.where).parent)} & taken.keys()
                    else {},
                )
                for s in found
            }

        worker.reloader.trial = trial
        assert load("one") == 200
        assert second[0].result(20) == 200
    assert worker.registry.aliases == {"lal": "one"}
    assert {"one", "two"} <= worker.registry.clients.keys()


def ask_plain(worker: Worker) -> Any:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}
    answer = worker.client().post("/infer/plain", json={"inputs": [tensor]}).json
    return answer.get("outputs", [{}])[0].get("data") or answer["error"]["code"]


def serve_plain(*workers: Worker) -> None:
    for worker in workers:
        server = worker.reloader.environment.server
        assert isinstance(server, FakeTriton)
        spec = TensorSpec("x", "FP32", (-1,))
        server.signatures["plain"] = Signature(0, (spec,), (replace(spec, name="y"),))
        server.models_run["plain"] = lambda inputs: {"y": 2 * inputs["x"]}


@pytest.mark.parametrize("how", ["a file", "a class"])
def test_a_model_without_a_client_keeps_being_served_when_one_is_refused(
    folder: Path, how: str
) -> None:
    """By all workers, by those that come later, and until a client for it is right."""
    first, second = Worker(folder), Worker(folder)
    (folder / "plain").mkdir()
    for right in (False, True):
        if how == "a file":
            family = "tensors" if right else "tensor"
            (folder / "plain" / "dispatch.toml").write_text(f'family = "{family}"')
        else:
            write(folder / "clients", "plain", "[7]" if right else "1 / 0")
        if right:  # as Triton would have it, which is not there
            first.reloader.trial = lambda found, *_: {
                s.where: Verdict(s.mark, ("plain",)) for s in found
            }
        response = first.reload()
        assert response.status_code == (200 if right else 400)
        second.reloader.take_up()
        later = Worker(folder)
        workers = [first, second, later]
        serve_plain(*workers)
        if not right:
            assert "what there was before is kept" in response.json["error"]["hint"]
            assert [ask_plain(one) for one in workers] == [[6.0]] * 3
            assert list(first.reload().json["broken"].values()) == [
                response.json["error"]["message"]
            ]
            assert [ask_plain(one) for one in workers] == [[6.0]] * 3
            canary = tried_canary(first)
            assert canary.reasons() == []
    assert first.registry.broken == {}
    assert "plain" in first.registry.clients


def tried_canary(worker: Worker) -> Canary:
    canary = Canary(("plain",), worker.registry, worker.reloader.environment.server, 8, 8, triton)
    canary.list_models()
    canary.look("plain", canary.trials["plain"])
    return canary


def test_a_client_that_is_broken_from_the_start_stays_so(folder: Path) -> None:
    """Nobody knows whether its model is to be asked without it; a refusal changes nothing."""
    (folder / "plain").mkdir()
    (folder / "plain" / "dispatch.toml").write_text('family = "tensor"')
    worker = Worker(folder)
    (folder / "plain" / "dispatch.toml").write_text('family = "tenors"')
    assert worker.reload().status_code == 400
    later = Worker(folder)
    serve_plain(worker, later)
    assert [ask_plain(one) for one in (worker, later)] == ["client_disabled"] * 2


def test_what_lies_beside_a_class_is_taken_up_with_it(folder: Path) -> None:
    """What imports it, and what that imports; `other.py` is imported by nobody."""
    write(folder / "clients", "mine", "WORD")
    write(folder / "clients", "packed", "WORD", "packed/__init__.py")
    for file in ("mine.py", "packed/__init__.py"):
        with (folder / "clients" / file).open("a") as open_file:
            open_file.write("\nfrom base import WORD\n")
    (folder / "clients" / "base.py").write_text("from words import WORD")
    (folder / "clients" / "words.py").write_text("WORD = 'one'")
    (folder / "clients" / "other.py").write_text("WORD = 'one'")
    worker = Worker(folder)
    assert [worker.ask(name) for name in ("mine", "packed")] == ["one", "one"]
    (folder / "clients" / "other.py").write_text("WORD = 'two'")
    assert worker.reload().json["taken"] == []
    (folder / "clients" / "words.py").write_text("WORD = 'two'")
    assert worker.reload().json["taken"] == ["mine", "packed"]
    assert [worker.ask(name) for name in ("mine", "packed")] == ["two", "two"]


@pytest.mark.parametrize("state", ["LOADING", "UNLOADING", "UNAVAILABLE"])
def test_a_reload_passes_over_models_that_are_not_loaded(folder: Path, state: str) -> None:
    """Others load and unload them meanwhile; their examples would fail."""
    worker = Worker(folder, CLIENTS_WATCH="60")
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    for name in ("m1", "m2"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "dispatch.toml").touch()
    server.states = [ModelState("m1", "1", state), ModelState("m2", "1", "READY")]
    seen: list[str] = []

    def trial(found: Any, *_: Any) -> dict[str, Verdict]:
        found = list(found)
        seen.extend(source.model for source in found)
        return {s.where: Verdict(s.mark, (s.model,)) for s in found}

    worker.reloader.trial = trial
    assert worker.reload().json == {
        "taken": ["m2"],
        "removed": [],
        "broken": {},
        "absent": {"m1": str(folder / "m1")},
    }
    assert seen == ["m2"]
    assert "m1" not in {*worker.registry.clients, *worker.registry.broken}
    assert worker.reloader.news() == {}, "a watch would go on and on"
    server.states = [ModelState(name, "1", "READY") for name in ("m1", "m2")]
    assert list(worker.reloader.news()) == [str(folder / "m1" / "dispatch.toml")]
    assert worker.reload().json["taken"] == ["m1"]


@pytest.mark.parametrize("then", ["unloaded", "removed", "loaded again"])
def test_a_model_that_goes_while_its_client_is_tried_is_not_called_bad(
    folder: Path, then: str
) -> None:
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "m"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").touch()
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("m",)) for s in found}
    body = {"model_name": "m", "url": str(source)}
    assert worker.client().post("/models", json=body).status_code == 200
    file = folder / "m" / "dispatch.toml"
    file.touch()  # so that it is tried again
    os.utime(file, (1, 1))

    def trial(found: Any, *_: Any) -> dict[str, Verdict]:
        bad = {s.where: Verdict(s.mark, bad={"m": "m is not ready"}) for s in found}
        if then == "unloaded":
            server.unloaded.add("m")
        elif then == "removed":
            file.unlink()
        else:
            file.with_name("new").touch()
            file.with_name("new").replace(file)
        return bad

    worker.reloader.trial = trial
    assert worker.reload().status_code == 200
    assert worker.registry.broken == {}


def test_what_is_said_of_a_model_names_its_author_s_folder(folder: Path) -> None:
    """Not the links in RUN_DIR, which nobody but the container writes."""
    source = folder / "elsewhere" / "m"
    source.mkdir(parents=True)
    for file in ("model.onnx", "dispatch.toml"):
        (source / file).touch()
    link(source, folder / "m")
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    server.models_run["m"] = dict
    entry = worker.client().get("/models/m").json or {}
    assert entry["modelUrl"] == str(source)
    assert entry["client"] == f"Tensors in {source / 'dispatch.toml'}"
    (source / "dispatch.toml").write_text('family = "tensor"')
    worker.reload()
    later = Worker(folder)
    assert list(later.reload().json["broken"]) == [str(source / "dispatch.toml")]


def test_a_model_that_its_client_kept_from_being_loaded_says_what_loads_it(folder: Path) -> None:
    """Nothing else helps: a reload passes over it."""
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    (folder / WANTED).mkdir()
    (folder / "late3" / "1").mkdir(parents=True)
    (folder / "late3" / "1" / "model.onnx").touch()
    file = folder / "late3" / "dispatch.toml"
    file.write_text('family = "tensor"')
    server.models_run["late3"] = dict
    server.unloaded.add("late3")
    error = worker.client().post("/load_model/late3").json["error"]
    assert error["code"] == "bad_client"
    assert "POST /load_model/late3 again" in error["hint"]
    error = worker.client().post("/infer/late3", json={"payload": {}}).json["error"]
    assert (error["code"], error["hint"]) == (
        "client_disabled",
        "mend it, then POST /load_model/late3",
    )
    file.write_text('family = "tensors"')
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("late3",)) for s in found}
    assert worker.reload().json["absent"] == {"late3": str(folder / "late3")}
    assert worker.client().post("/load_model/late3").status_code == 200
    assert "late3" in worker.registry.clients


def test_a_mistake_in_a_folder_that_is_loaded_is_told_by_its_own_path(folder: Path) -> None:
    """With one advice, which helps: the file that counts is a copy that nobody can mend."""
    worker = Worker(folder)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "packed" / "tenant"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('family = "tensor"')
    url = str(source.parent)

    def load() -> Any:
        return worker.client().post("/models", json={"model_name": "t", "url": url})

    error = load().json["error"]
    file = source / "dispatch.toml"
    assert error["message"] == f'{file}: `family` is "tensor"; did you mean `tensors`?'
    assert error["hint"] == f"mend it in {url}, then load it again"
    assert not (folder / "t").exists()
    assert worker.ask("t") == "unknown_model"
    file.write_text('family = "tensors"')
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("t",)) for s in found}
    assert load().status_code == 200
    assert "t" in worker.registry.clients


def test_one_that_was_loaded_late_says_how_its_file_is_mended(folder: Path) -> None:
    worker = Worker(folder)
    triton = worker.reloader.environment.server
    assert isinstance(triton, FakeTriton)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "tenant"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('family = "tensor"')
    triton.loading_s = 1e9
    body = {"model_name": "t", "url": str(source)}
    assert worker.client().post("/models", json=body).status_code == 504
    assert worker.reload().json["absent"] == {"t": str(source)}  # not yet
    triton.loading.clear()
    error = worker.reload().json["error"]
    assert error["message"].startswith(f"{source / 'dispatch.toml'}: `family`")
    assert "what there was before is kept" in error["hint"]
    assert "DELETE /models/t, then POST /models again" in error["hint"]
    triton.loading_s = 0
    (source / "dispatch.toml").write_text('family = "tensors"')
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("t",)) for s in found}
    assert worker.client().delete("/models/t").status_code == 200
    assert worker.client().post("/models", json=body).status_code == 200
    assert "t" in worker.registry.clients
