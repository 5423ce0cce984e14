"""The container starts, stops and runs beside others, and says why it cannot."""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.programs.find_triton import STUB
from tests.conftest import (
    PICTURES,
    PROJECT,
    Endpoint,
    alive,
    commands,
    descendants,
    picture,
    running,
    start,
    stop,
    wait_for,
    wait_until_announced,
)
from tests.end_to_end.conftest import write_own_client, write_small_repository
from tests.support.chaos import hit

BERT = {"modelname": "bert_base", "payload": {"text": "The world has [MASK] people."}}


@pytest.fixture(scope="module")
def container(models: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One with bert_base, a class of one's own, and a required model that is broken."""
    folder = tmp_path_factory.mktemp("lifecycle")
    repository = write_small_repository(folder)
    write_own_client(folder, repository)
    broken = repository / "resnet"
    (broken / "1").mkdir(parents=True)
    shutil.copy(PROJECT / "model_repository" / "resnet" / "config.pbtxt", broken)
    shutil.copy(PROJECT / "model_repository" / "resnet" / "labels.txt", broken)
    shutil.copy(PROJECT / "model_repository" / "resnet" / "dispatch.toml", broken)
    (broken / "1" / "model.onnx").write_bytes(b"this is no ONNX file")
    settings = {"MODEL_REPOSITORY": str(repository), "CLIENTS_PATH": str(folder / "clients")}
    with running(folder, **settings) as endpoint:
        yield endpoint


def test_ping_is_503_with_the_reason_while_a_required_model_is_broken(container: Endpoint) -> None:
    answer = container.call("/ping")
    assert answer.status == 503
    assert "'resnet'" in answer.json["error"]["message"]
    assert "bert_base" not in answer.json["error"]["message"]
    assert container.call("/v2/health/live").status == 200, "a restart would not help"
    assert container.ask(**BERT).status == 200, "the other models are served"
    answer = container.ask(modelname="resnet", payload={"img": picture(PICTURES / "chelsea.png")})
    assert answer.status == 503
    assert answer.json["error"]["code"] == "model_unavailable"
    assert "NOT ready" in container.log.read_text()


def test_a_client_of_one_s_own_is_served(container: Endpoint) -> None:
    answer = container.ask(modelname="double", payload={"numbers": [1, 2.5]})
    assert (answer.status, answer.json) == (200, {"modelname": "double", "result": [2.0, 5.0]})
    answer = container.ask(modelname="double", payload={"numbers": ["x"]})
    assert answer.status == 400


def test_a_signal_drains_and_exits_0_and_a_container_beside_it_goes_on(
    endpoint: Endpoint, container: Endpoint
) -> None:
    assert container.port != endpoint.port
    assert container.ask(**BERT).status == 200
    assert endpoint.ask(**BERT).status == 200
    drains_and_exits_0(container)
    assert endpoint.ask(**BERT).status == 200


def drains_and_exits_0(endpoint: Endpoint) -> None:
    """Callers keep asking while it stops: each is answered rightly or turned away, none is lost."""
    statuses: list[int] = []
    lost: list[BaseException] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            try:
                statuses.append(endpoint.ask(**BERT).status)
            except ConnectionRefusedError:
                return  # the door is closed: nothing was taken in
            except Exception as error:
                lost.append(error)
                return

    callers = [threading.Thread(target=keep_asking) for _ in range(4)]
    for caller in callers:
        caller.start()
    wait_for(lambda: lost or len(statuses) > 10, 60, "some answers")
    before = time.monotonic()
    assert stop(endpoint) == 0, endpoint.log.read_text()[-2000:]
    assert time.monotonic() - before < 30
    done.set()
    for caller in callers:
        caller.join()
    assert lost == []
    assert set(statuses) == {200}


@pytest.mark.slow
def test_when_one_dies_too_often_the_others_are_stopped_and_the_exit_code_says_so(
    small_repository: Path, tmp_path: Path
) -> None:
    endpoint = start(tmp_path, MODEL_REPOSITORY=str(small_repository), SERVE_RESTARTS="0")
    wait_until_announced(endpoint)
    started = descendants(endpoint.process.pid)
    assert hit(endpoint, "gunicorn's master", signal.SIGKILL)
    assert endpoint.process.wait(30) == 128 + signal.SIGKILL
    assert "died (SIGKILL) after 0 restarts within 600 s" in endpoint.log.read_text()
    wait_for(lambda: not alive(started), 5, "the end of all that was started")


def test_a_port_that_is_taken_is_named_before_anything_starts(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    second = start(tmp_path, SAGEMAKER_BIND_TO_PORT=str(endpoint.port))
    assert second.process.wait(20) == 1
    log = second.log.read_text()
    assert f"port {endpoint.port} cannot be used" in log
    assert "SAGEMAKER_BIND_TO_PORT" in log


@pytest.mark.parametrize(
    ("variable", "value"),
    [("MODEL_SERVER_WORKERS", "many"), ("MODEL_REPOSITORY", "/no/such/folder")],
)
def test_a_bad_setting_stops_the_start(tmp_path: Path, variable: str, value: str) -> None:
    refused = start(tmp_path, **{variable: value})
    assert refused.process.wait(20) == 2
    assert f"serve: {variable} is '{value}'; expected: " in refused.log.read_text()


def test_the_stub_stays_readable_for_users_but_root(endpoint: Endpoint) -> None:
    """Triton takes the permission to read from a stub that seems not to be executable."""
    lines = commands(endpoint.process.pid, option := r"--backend-directory=(\S+)").values()
    (folder,) = {re.findall(option, line)[0] for line in lines}
    assert (Path(folder) / "python" / STUB).stat().st_mode & 0o555 == 0o555
