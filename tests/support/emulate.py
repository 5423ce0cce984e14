"""`dispatcher emulate` as a process of its own, and the clients that ask it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.conftest import PATIENCE_S, PROJECT, alive, descendants, free_ports, wait_for

READY = "InService: boto3"


def aws_client(service: str, port: int) -> Any:
    """Return boto3's client as anyone has it, with another address and no tricks."""
    return boto3.client(
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="eu-central-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"total_max_attempts": 1}),
    )


@dataclass(frozen=True)
class Emulated:
    """A running endpoint."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    clients: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> str:
        return self.log.read_text()

    @property
    def runtime(self) -> Any:
        return self.client("sagemaker-runtime")

    def client(self, service: str) -> Any:
        """Return boto3's client as anyone has it, with another address."""
        if service not in self.clients:
            self.clients[service] = aws_client(service, self.port)
        return self.clients[service]

    def invoke(self, body: bytes = b"x", **members: Any) -> tuple[bytes, dict[str, Any]]:
        answer = self.runtime.invoke_endpoint(EndpointName="mine", Body=body, **members)
        return answer["Body"].read(), answer


def begin(
    folder: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Emulated:
    """Start the command; it may not be ready yet."""
    port = free_ports(1)[0]
    log = folder / f"emulate-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sagemaker_emulator", "emulate", *map(str, arguments)),
                *(f"--port={port}", "--ping-every=0.3"),
            ],
            stdout=output,
            stderr=output,
            cwd=PROJECT,
            env={**os.environ, **(environment or {})},
        )
    return Emulated(port, process, log)


@contextmanager
def emulated(
    folder: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Iterator[Emulated]:
    """Run an endpoint until the end of the block, and see that nothing is left of it."""
    running = begin(folder, *arguments, environment=environment)
    try:
        wait_for(
            lambda: READY in running.lines or running.process.poll() is not None,
            lambda: running.lines,
        )
        assert running.process.poll() is None, running.lines
        yield running
    finally:
        end(running)


def end(running: Emulated, number: signal.Signals = signal.SIGINT) -> int:
    """Stop it as Ctrl-C does; return the exit code."""
    for client in running.clients.values():
        client.close()
    started = descendants(running.process.pid)
    if running.process.poll() is None:
        running.process.send_signal(number)
    try:
        code = running.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        running.process.kill()
        raise
    assert not alive(started), "processes are left"
    return code
