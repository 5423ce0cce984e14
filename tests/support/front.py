"""The real NGINX and gunicorn in front of a Triton that is a dictionary of functions.

Starts in two seconds, for what the web's side alone decides.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flask import Flask

from clients.base import Client
from clients.errors import ModelFailed
from clients.plugins.registry import Registry
from container.certificates import Certificates
from container.programs.gunicorn import gunicorn_program
from container.programs.nginx import RequestLines, nginx_program
from container.repository.shared_memory_plan import SharedMemoryPlan
from container.supervisor.log import Log
from container.supervisor.program import Program
from dispatcher.settings import read_settings
from dispatcher.status.prober import Prober
from dispatcher.status.status import Readiness
from tests.conftest import PATIENCE_S, Endpoint, free_ports, wait_for
from tests.support.application import serve_clients
from tests.support.emulate import aws_client
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.probing import probed

NGINX = "/usr/sbin/nginx"


class Double(Client):
    """Answers twice the numbers, and the caller's custom attributes."""

    modelname = "double"
    example = {"numbers": [1]}

    def inference(self, payload: Any) -> Any:
        self.request.response_attributes.update(self.request.attributes)
        return (2 * self.numbers(payload, "numbers")).tolist()


class Fails(Client):
    """Answers that the model failed."""

    modelname = "fails"
    example = {"numbers": [1]}

    def inference(self, payload: Any) -> Any:
        raise ModelFailed("it fell over")


class Breaks(Client):
    """Has a bug."""

    modelname = "breaks"
    example = {"numbers": [1]}

    def inference(self, payload: Any) -> Any:
        raise ZeroDivisionError


class Odd(Client):
    """Answers what JSON cannot hold, but for one."""

    modelname = "odd"
    example = {"numbers": [1]}

    def inference(self, payload: Any) -> Any:
        return 1 if payload["numbers"] == [1] else object()


class Echoes(Client):
    """Lets its caller's text into the log, in one of the ways in which authors do."""

    modelname = "echoes"
    example = {"text": "log"}

    def inference(self, payload: Any) -> Any:
        text = payload["text"]
        if text.startswith("raise"):
            raise ValueError(text)
        if text.startswith("print"):
            print(text, flush=True)  # noqa: T201  as authors do
        logging.getLogger("echoes").warning(text)


class Sleeps(Client):
    """Answers after some seconds, and once a file is there, with the id of its web worker."""

    modelname = "sleeps"
    aliases = ("naps",)
    example = {"seconds": [0]}

    def inference(self, payload: Any) -> Any:
        while not Path(payload.get("until", "/")).exists():
            time.sleep(0.02)
        time.sleep(self.numbers(payload, "seconds").item())
        return os.getpid()


def nothing(_: Any) -> Arrays:
    return {}


def build() -> Flask:
    """Return the application with models that need no Triton; for gunicorn."""
    clients = (Double, Fails, Breaks, Echoes, Odd, Sleeps)
    server = FakeTriton({one.modelname: nothing for one in clients})

    def readiness(registry: Registry) -> Readiness:
        found = probed(Prober(("double",), registry, server, 8, 8), everything=False)
        now = time.monotonic()
        return replace(found, clock=lambda: now)  # what was probed once stays true

    return serve_clients(server, clients, readiness)


def key_lines(scope: str, **keys: str) -> str:
    """Return the lines of a file of API keys, by their names."""
    return "".join(
        f"{scope} {name} {hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in keys.items()
    )


def sagemaker_runtime(endpoint: Endpoint) -> Any:
    """Return the client that users of SageMaker have, with another address and no tricks."""
    return aws_client("sagemaker-runtime", endpoint.port)


def probe(program: Program, over: threading.Event) -> None:
    """Probe a program, as the supervisor does, but more often."""
    while not over.wait(0.2):
        program.fault()


@contextmanager
def front(
    folder: Path, application: str = "tests.support.front:build()", **variables: str
) -> Iterator[Endpoint]:
    """Run both on a free port, with settings from `variables`."""
    port = str(free_ports(1)[0])
    own = {"SAGEMAKER_BIND_TO_PORT": port, "SAGEMAKER_SAFE_PORT_RANGE": "1-3"}  # where nobody is
    own["MODEL_SERVER_TIMEOUT"] = "300"  # no answer fails because the machine is slow
    settings = read_settings({**own, **variables})
    settings = replace(settings, run_dir=folder, repositories=(folder,))
    log, over = folder / "front.log", threading.Event()
    as_json = settings.log_format == "json"
    with log.open("ab") as output, Log(output.fileno(), as_json=as_json) as lines:
        gunicorn = gunicorn_program(settings, folder, SharedMemoryPlan(), lines=lines.finished())
        command = [application if "wsgi" in word else word for word in gunicorn.command()]
        own_lines = lines.sink("nginx", RequestLines(logged=settings.access_log != "off"))
        certificates = Certificates(settings, folder, lines.say)
        nginx = nginx_program(settings, folder, NGINX, certificates.follow)
        processes = [
            subprocess.Popen(
                command,
                env={**variables, **program.environment},
                stdout=stream,
                stderr=stream,
                pass_fds=program.files,
            )
            for command, program, stream in (
                (command, gunicorn, lines.sink("gunicorn")),
                (nginx.command(), nginx, own_lines),
            )
        ]
        try:
            wait_for(lambda: not gunicorn.fault() and not nginx.fault(), "gunicorn and NGINX")
            if settings.tls_certificate:
                threading.Thread(target=probe, args=(nginx, over), daemon=True).start()
            yield Endpoint(settings.port, processes[0], log)
        finally:
            over.set()
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(PATIENCE_S)
