"""The server and its rivals: how each is started, asked and stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from bench.load import load
from bench.load.work import PROJECT, WORKS
from bench.servers.processes import descendants

BENCH = Path(__file__).parents[1]
PATIENCE_S = 180
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where Triton has it
SHM_PREFIX = f"bench_{os.getpid()}_"
"""Of what the rivals' Tritons have in shared memory."""
PRECISION = "MODEL_PRECISION"
"""The server's setting."""


class Skipped(Exception):
    """A contender cannot be had here; the message says why."""


@dataclass
class Contender:
    """A server that answers the payload of one model, or of several.

    Args:
        body: a JSON body around a payload.
        answer: the model's answer inside of the JSON that came.
        environment: variables besides those of this process.

    """

    name: str
    command: list[str]
    port: int
    path: str
    body: Callable[[Any], Any]
    answer: Callable[[Any], Any]
    environment: Mapping[str, str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    """When it was started, on the monotonic clock."""
    started: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    @cached_property
    def log(self) -> Path:
        return self.folder / f"{re.sub('[ /]', '_', self.name)}.log"

    def request(self, payload: Any) -> bytes:
        """Return the bytes of a whole request."""
        return load.request(self.path, json.dumps(self.body(payload)).encode())

    def __enter__(self) -> Self:
        """Start it; it is not ready yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.since = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        return self

    def wait(self, payload: Any, modelname: str, right: list[Any]) -> None:
        """Wait until the payload is answered as it should be.

        Raises:
            Skipped: it does not start, or answers something else.

        """
        gist = WORKS[modelname].gist
        came = self.answer(json.loads(self.wait_for(payload)))
        if gist(came) != gist(right):
            raise Skipped(f"it answers {came}, not {right}")
        self.started = descendants(self.pid)
        load.say(
            f"{self.name} answers {modelname} {time.monotonic() - self.since:.1f} s after its start"
        )

    def wait_for(self, payload: Any) -> bytes:
        """Wait until the payload is answered 200; return the body.

        Raises:
            Skipped: it does not start.

        """
        asked, deadline = self.request(payload), time.monotonic() + PATIENCE_S
        status, body = 0, b""
        while time.monotonic() < deadline and self.process and self.process.poll() is None:
            status, body = load.once(self.port, asked)
            if status == 200:
                return body
            time.sleep(0.05)
        shown = self.log.read_text(errors="replace", encoding="utf-8")[-1500:]
        raise Skipped(f"it does not answer ({status} {body[:300]!r}); its log ends:\n{shown}")

    def __exit__(self, *_: object) -> None:
        """Stop it, and everything that it has started."""
        if self.process is None:
            return
        self.started |= descendants(self.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in self.started:
            try:
                if os.getsid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        self.process = None


def tidy() -> None:
    """Remove from shared memory what Tritons have left that are stopped by now."""
    for left in SHARED_MEMORY.glob(f"{SHM_PREFIX}*"):
        left.unlink(missing_ok=True)


PORTS = iter(range(21000 + os.getpid() % 7000, 32000))
"""Ports not given out yet: a server that is started does not listen at once."""


def free_port(count: int = 1) -> int:
    """Return the first of some neighbouring ports that is free."""
    neighbours: list[int] = []
    for port in PORTS:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                neighbours.clear()
                continue
        neighbours.append(port)
        if len(neighbours) == count:
            return neighbours[0]
    raise Skipped("no free ports")


def as_it_is(answer: Any) -> Any:
    return answer


def this_server(
    repository: Path,
    folder: Path,
    modelname: str,
    name: str = "this server",
    settings: Mapping[str, str] = {},
) -> Contender:
    """Return `./serve` with all models of the repository and some settings.

    It is asked payloads of one model, or whole bodies where none is named.
    """
    port = free_port(10)
    return Contender(
        name,
        [str(PROJECT / "serve")],
        port,
        "/invocations",
        (lambda payload: {"modelname": modelname, "payload": payload}) if modelname else as_it_is,
        lambda answer: answer["result"],
        {
            "PYTHON": sys.executable,
            "MODEL_REPOSITORY": str(repository),
            "SAGEMAKER_BIND_TO_PORT": str(port),
            "SAGEMAKER_SAFE_PORT_RANGE": f"{port + 1}-{port + 9}",
            **settings,
        },
        folder,
    )


def install_rival(name: str, cache: Path) -> Path:
    """Return the Python of a rival's own environment, made where it is missing.

    Raises:
        Skipped: its packages cannot be had.

    """
    requirements = BENCH / "requirements" / f"{name}.txt"
    home, python = cache / name, cache / name / "bin" / "python"
    stamp = home / "installed"
    if stamp.exists() and stamp.read_bytes() == requirements.read_bytes():
        return python
    shutil.rmtree(home, ignore_errors=True)
    uv = sys.executable, "-m", "uv", "--quiet"
    fault = f"{name} cannot be installed"
    run(fault, *uv, "venv", "--python", sys.executable, str(home))
    install = *uv, "pip", "install", "--require-hashes", "--python", str(python)
    # All are pinned but what sends statistics.
    run(fault, *install, "--no-deps", "-r", str(requirements))
    shutil.copy(requirements, stamp)
    return python


def run(fault: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise Skipped(f"{fault}: {done.stderr.strip()[-500:]}")
