"""What goes wrong ends with a sentence and an exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from sagemaker_emulator.__main__ import main

from tests.conftest import PATIENCE_S, descendants, wait_for
from tests.support.emulate import begin, emulated, end


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield
    assert not list(folder.glob("sagemaker-emulator-*"))


Fails = Callable[..., str]
NOBODY = (
    "did not pass the ping health check. Please check CloudWatch logs for this endpoint. GET "
    "/ping: no connection: Connection refused; let the server listen on"
)


@pytest.fixture
def failed(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Run the command, which must fail; return what it says."""

    def run(*arguments: str | Path) -> str:
        try:
            code = main(["emulate", *map(str, arguments), "--ping-every=0.3"])
        except SystemExit as error:  # of argparse
            code = error.code
        assert code == 2
        return capsys.readouterr().err

    return run


def test_a_ping_that_is_not_200_says_what_it_answers(container: Path, failed: Fails) -> None:
    said = failed(container, "--port=0", "--start-timeout=2", "--env", "PING=503")
    assert "GET /ping is answered with 503: the weights are missing; let /ping answer 200" in said


def test_a_container_that_ends_in_service(container: Path, tmp_path: Path) -> None:
    with emulated(tmp_path, container) as running:
        (child,) = descendants(running.process.pid)
        os.kill(child, signal.SIGKILL)
        assert running.process.wait(PATIENCE_S) == 2
        assert "AllTraffic: it ended with SIGKILL" in running.lines


def test_boto3_sees_why_an_endpoint_is_not_in_service(container: Path, tmp_path: Path) -> None:
    running = begin(tmp_path, container, "--env", "PING=503")
    try:
        wait_for(lambda: "503" in running.lines, lambda: running.lines)
        with pytest.raises(ClientError, match="is not in service: it is Creating"):
            running.invoke()
        described = running.client("sagemaker").describe_endpoint(EndpointName="x")
        assert described["EndpointStatus"] == "Creating"
    finally:
        assert end(running) == 130  # Ctrl-C during the start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_at_a_signal(
    container: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with emulated(tmp_path, container) as running:
        assert end(running, number) == 130
        assert "AllTraffic: stopped within" in running.lines


def test_a_container_that_is_deaf_to_sigterm_is_killed(container: Path, tmp_path: Path) -> None:
    with emulated(tmp_path, container, "--env", "FAULT=deaf", "--stop-timeout=0.5") as running:
        end(running)
        assert "it does not end at SIGTERM; exec the server" in running.lines


def test_a_second_ctrl_c_does_not_wait_for_the_container(container: Path, tmp_path: Path) -> None:
    with emulated(tmp_path, container, "--env", "FAULT=deaf") as running:
        running.process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert end(running) == 130
        assert "it does not end at SIGTERM" not in running.lines, "that is found out in 30 s"


def test_a_port_that_is_taken(container: Path, failed: Fails) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failed(container, f"--port={port}")
    assert f"port {port} of 127.0.0.1: [Errno 98] Address already in use" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:1", "--model", "."], "are for an image or a folder"),
        ([".", "--multi-model", ".", "--model", "."], "leave one out"),
        ([".", "--host", "no such.invalid"], "port 0 of no such.invalid: "),
        ([".", "--host", "a..b"], "port 0 of a..b: "),
        (["an-image"], "there is no `docker` here"),
        (["http://127.0.0.1:1", "--start-timeout=0.5"], NOBODY),
    ],
)
def test_what_cannot_be_started_says_what_is_expected(
    arguments: list[str],
    message: str,
    failed: Fails,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert message in failed(*arguments, "--port=0")


@pytest.mark.skipif(not shutil.which("docker"), reason="there is no docker here")
def test_no_docker_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Fails) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "no Docker engine answers" in failed("an-image", "--port=0")
