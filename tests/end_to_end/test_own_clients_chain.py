"""Classes of one's own in the real container, with several web workers; a reload under load."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, PROJECT, Endpoint, running, wait_for
from tests.support.own_clients import package
from tool.__main__ import main

__all__ = ["package"]  # the fixture

SOURCE = """
import os
import time
from clients.base import Client

class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        time.sleep(payload.get("seconds", 0.01))
        while "until" in payload and not os.path.exists(payload["until"]):
            time.sleep(0.01)
        return {result}
"""


@pytest.fixture(scope="module")
def folder(models: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the container serves."""
    folder = tmp_path_factory.mktemp("reload")
    shutil.copytree(PROJECT / "model_repository" / "bert_base", folder / "models" / "bert_base")
    (folder / "clients").mkdir()
    (folder / "clients" / "mine.py").write_text(SOURCE.format(result="'old'"))
    fatal = SOURCE.replace('"mine"', '"fatal"').format(result="0") + "\nimport os\nos.abort()\n"
    (folder / "clients" / "fatal.py").write_text(fatal)
    assert main(["new-client", "double", "--into", str(folder / "mounted")]) == 0
    wants = SOURCE.replace('"mine"', '"wants"').format(result="0")
    (folder / "clients" / "wants.py").write_text(f"import faiss\n{wants}")
    return folder


@pytest.fixture(scope="module")
def container(folder: Path, package: Path) -> Iterator[Endpoint]:
    settings = {
        "MODEL_REPOSITORY": str(folder / "models"),
        "CLIENTS_PATH": str(folder / "clients"),
        "MODEL_DIR": str(folder / "mounted"),
        "MODEL_SERVER_WORKERS": "2",
        "PYTHONPATH": str(package),
    }
    with running(folder, **settings) as endpoint:
        yield endpoint


@dataclass
class Callers:
    """Ask without a pause; an answer is begin, end, status and result."""

    port: int
    answers: list[tuple[float, float, int, str]] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def keep_asking(self, **payload: object) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            with closing(connection):
                while not self.done.is_set():
                    self.answers.append(self.ask(connection, payload))
        except Exception as error:
            self.faults.append(error)

    @staticmethod
    def ask(
        connection: http.client.HTTPConnection, payload: dict[str, object]
    ) -> tuple[float, float, int, str]:
        body = json.dumps({"modelname": "mine", "payload": payload})
        begin = time.monotonic()
        connection.request("POST", "/invocations", body)
        response = connection.getresponse()
        answer = json.loads(response.read())
        result = answer.get("result") or str(answer)
        return begin, time.monotonic(), response.status, result

    def get(self, count: int) -> None:
        """Wait for so many further answers."""
        most = len(self.answers) + count
        wait_for(lambda: len(self.answers) > most or self.faults, f"{count} answers")

    @contextmanager
    def asking(self, count: int, **slow: object) -> Iterator[None]:
        """Let so many callers ask for what is quick, and one for what is not."""
        asks = [{"seconds": 0.01}] * count + [slow] * bool(slow)
        threads = [threading.Thread(target=self.keep_asking, kwargs=one) for one in asks]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.done.set()
            for thread in threads:
                thread.join()


def test_the_first_200_of_ping_is_true_of_all_web_workers(container: Endpoint) -> None:
    callers = Callers(container.port)
    with callers.asking(12):
        callers.get(100)
    assert callers.faults == []
    assert {(status, result) for _, _, status, result in callers.answers} == {(200, "old")}


def test_classes_from_everywhere_are_served_in_the_same_way(
    container: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of one's own, a mounted model, an installed package; and what is broken is named."""
    assert container.ask(modelname="mine", payload={}).json["result"] == "old"
    for name in ("ears", "single"):
        assert container.ask(modelname=name, payload={}).json["result"] == "heard"
    url = f"http://127.0.0.1:{container.port}"
    assert main(["invoke", "double", "--json", '{"numbers": [1, 2.5]}', "--url", url]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == [2.0, 5.0]
    log = container.log.read_text()
    assert "client disabled: the entry point 'bad' of ears cannot be imported" in log
    assert container.call("/ping").status == 200
    error = container.ask(modelname="fatal", payload={}).json["error"]
    assert error["code"] == "client_disabled"
    assert "fatal.py: the process that tested it ended with SIGABRT" in error["message"]
    assert container.call("/health").json["disabled"]["fatal"] in error["message"]


def test_packages_that_are_not_installed_are_named(container: Endpoint) -> None:
    log, listed = container.log.read_text(), container.call("/models").json
    fix = "build an image of four lines, `FROM triton-dispatcher`, `USER root`, `RUN "
    for said in (log, listed["disabled"]["wants"]):
        assert "put faiss.py beside the class; else on your own machine `" in said
        assert fix in said


def test_a_reload_under_load_loses_no_request(container: Endpoint, folder: Path) -> None:
    """What began before it ends on the old class; what begins after it meets the new one."""
    mine = folder / "clients" / "mine.py"
    callers = Callers(container.port)
    over = folder / "the reload is over"
    with callers.asking(6, until=str(over)):
        callers.get(50)
        mine.write_text(SOURCE.format(result="'new'"))
        begin = time.monotonic()
        reload = container.call("/reload", method="POST")
        end = time.monotonic()
        over.touch()
        callers.get(50)
        mine.write_text(SOURCE.format(result="1 / 0"))
        refused = container.call("/reload", method="POST")
        callers.get(20)
    answers = callers.answers
    assert callers.faults == []
    assert [result for _, _, status, result in answers if status != 200] == []
    assert (reload.status, reload.json["taken"]) == (200, ["mine"])
    assert refused.status == 400
    assert "'mine' fails on its own example: ZeroDivisionError" in refused.json["error"]["message"]
    assert {result for at, _, _, result in answers if at > end} == {"new"}
    assert {result for at, _, _, result in answers if at < begin} == {"old"}
    crossed = [result for at, over, _, result in answers if at < begin and over > end]
    assert crossed == ["old"], "the slow request was in flight all through the reload"
