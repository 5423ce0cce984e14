"""The container starts, stops and runs beside others, and says why it cannot."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest

from container.programs.find_triton import STUB
from tests.conftest import (
    PATIENCE_S,
    PICTURES,
    PROJECT,
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
from tests.end_to_end.conftest import BERT, write_own_client
from tests.support.chaos import hit


@pytest.mark.slow
def test_ping_is_503_with_the_reason_while_a_required_model_is_broken(
    small_repository: Path, tmp_path: Path
) -> None:
    broken = small_repository / "resnet"
    (broken / "1").mkdir(parents=True)
    for name in ("config.pbtxt", "labels.txt", "dispatch.toml"):
        shutil.copy(PROJECT / "model_repository" / "resnet" / name, broken)
    (broken / "1" / "model.onnx").write_bytes(b"this is no ONNX file")
    with running(tmp_path, MODEL_REPOSITORY=str(small_repository)) as container:
        answer = container.call("/ping")
        assert answer.status == 503
        assert "'resnet'" in answer.json["error"]["message"]
        assert "bert_base" not in answer.json["error"]["message"]
        assert container.call("/v2/health/live").status == 200, "a restart would not help"
        assert container.ask(**BERT).status == 200, "the other models are served"
        img = picture(PICTURES / "chelsea.png")
        answer = container.ask(modelname="resnet", payload={"img": img})
        assert answer.status == 503
        assert answer.json["error"]["code"] == "model_unavailable"
        assert "NOT ready" in container.log.read_text()
        # Triton takes the permission to read from a stub that seems not to be executable.
        lines = commands(container.process.pid, option := r"--backend-directory=(\S+)").values()
        (folder,) = {re.findall(option, line)[0] for line in lines}
        assert (Path(folder) / "python" / STUB).stat().st_mode & 0o555 == 0o555


def test_a_signal_drains_and_exits_0_and_nothing_looks_like_an_error(tmp_path: Path) -> None:
    """Callers keep asking while it stops: each is answered rightly or turned away, none is lost.

    It logs in JSON, where an operator finds nothing that looks like an error from start to end.
    """
    (tmp_path / "models").mkdir()
    write_own_client(tmp_path, tmp_path / "models")
    (tmp_path / "models" / "double" / "samples").mkdir()
    endpoint = start(
        tmp_path,
        MODEL_REPOSITORY=str(tmp_path / "models"),
        CLIENTS_PATH=str(tmp_path / "clients"),
        REQUIRED_MODELS="double",
        LOG_FORMAT="json",
        SERVE_STOP_TIMEOUT="250",  # each program has a share of it
    )
    answers: list[object] = []
    lost: list[BaseException] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            try:
                answers.append(endpoint.ask(modelname="double", payload={"numbers": [1]}).json)
            except Exception as error:
                # A closing port resets whom NGINX has not accepted; a lost request raises another.
                if type(error) not in (ConnectionRefusedError, ConnectionResetError):
                    lost.append(error)
                return

    callers = [threading.Thread(target=keep_asking) for _ in range(4)]
    try:
        wait_for(lambda: "POST http" in endpoint.log.read_text(), "the start")
        for caller in callers:
            caller.start()
        wait_for(lambda: lost or len(answers) > 10, "some answers")
    finally:
        code = stop(endpoint)
    assert code == 0, endpoint.log.read_text()[-2000:]
    done.set()
    for caller in callers:
        caller.join()
    assert lost == []
    assert all(answer == {"modelname": "double", "result": [2.0]} for answer in answers)
    found = [json.loads(line) for line in endpoint.log.read_text().splitlines()]
    assert {line["program"] for line in found} >= {"serve", "triton", "dispatcher"}
    assert [line for line in found if line["level"] != "info" and "status" not in line] == []


@pytest.mark.slow
def test_when_one_dies_too_often_the_others_are_stopped_and_the_exit_code_says_so(
    small_repository: Path, tmp_path: Path
) -> None:
    endpoint = start(tmp_path, MODEL_REPOSITORY=str(small_repository), SERVE_RESTARTS="0")
    wait_until_announced(endpoint)
    started = descendants(endpoint.process.pid)
    assert hit(endpoint, "gunicorn's master", signal.SIGKILL)
    assert endpoint.process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert "died (SIGKILL) after 0 restarts within 600 s" in endpoint.log.read_text()
    wait_for(lambda: not alive(started), "the end of all that was started")


def test_a_port_that_is_taken_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        second = start(tmp_path, SAGEMAKER_BIND_TO_PORT=str(port))
        assert second.process.wait(PATIENCE_S) == 1
    log = second.log.read_text()
    assert f"port {port} cannot be used" in log
    assert "stop the server that runs there, or set SAGEMAKER_BIND_TO_PORT" in log
    assert "SAGEMAKER_BIND_TO_PORT" in log


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MODEL_SERVER_WORKERS", "many", "; expected: "),
        ("MODEL_REPOSITORY", "/no/such/folder", "; expected: "),
        ("API_KEYS_FILE", "/no/such/file", ": it cannot be read"),
    ],
)
def test_a_bad_setting_stops_the_start(
    tmp_path: Path, variable: str, value: str, said: str
) -> None:
    refused = start(tmp_path, **{variable: value})
    assert refused.process.wait(PATIENCE_S) == 2
    assert f"serve: {variable} is '{value}'{said}" in refused.log.read_text()
