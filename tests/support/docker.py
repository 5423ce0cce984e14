"""A real Docker engine; tests are skipped, saying so, where none answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, Endpoint, wait_for

TAG = "triton-dispatcher:tested"
LOCKED = (
    *("--read-only", "--tmpfs", "/tmp"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)


def docker(*arguments: str | Path, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *arguments], check=False, capture_output=True, text=True, timeout=3600
    )
    if check and done.returncode:
        pytest.fail(f"docker {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def skip_without_engine() -> None:
    try:
        done = subprocess.run(["docker", "version"], check=False, capture_output=True, timeout=300)
    except FileNotFoundError:
        pytest.skip("there is no docker here")
    if done.returncode:
        pytest.skip("no Docker engine answers")


def build(tag: str, *options: str) -> str:
    """Build the image; the host's network is what a machine behind a proxy needs."""
    return docker("build", "--network", "host", "--tag", tag, *options, PROJECT)


@dataclass(frozen=True)
class Container(Endpoint):
    """A running container, asked as any other endpoint is."""

    name: str = ""

    def logs(self) -> str:
        return docker("logs", self.name)

    def state(self) -> dict[str, Any]:
        return json.loads(docker("inspect", "--format", "{{json .State}}", self.name))

    def inside(self, *command: str) -> str:
        return docker("exec", self.name, *command)

    def stop(self) -> int:
        """Stop it as an operator does; return the exit code: not 0 where it ran out of time."""
        docker("stop", "--time", "60", self.name)
        return int(self.state()["ExitCode"])


@contextmanager
def running(
    image: str, *options: str, command: tuple[str, ...] = (), port: int = 8080, ready: bool = True
) -> Iterator[Container]:
    name = f"triton-dispatcher-test-{os.getpid()}"
    docker("rm", "--force", name, check=False)
    publish = () if "host" in options else ("--publish", f"127.0.0.1::{port}")
    patient = ("--env", "MODEL_SERVER_TIMEOUT=300")
    docker("run", "--detach", "--name", name, *publish, *patient, *options, image, *command)
    try:
        published = docker("port", name, str(port)).split(":")[-1] if publish else port
        container = Container(int(published), None, Path(), name)  # type: ignore[arg-type]
        if ready:
            wait_for(
                lambda: (
                    "serve: ready after" in container.logs() or not container.state()["Running"]
                ),
                lambda: f"the start:\n{container.logs()[-3000:]}",
            )
            assert container.call("/ping").status == 200, container.logs()[-3000:]
        yield container
    finally:
        docker("rm", "--force", name, check=False)
