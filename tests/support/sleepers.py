"""An application for `tests.support.front`, with clients that sleep, hang and end their process."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from flask import Flask

from clients.base import Client, Payload
from dispatcher.status.status import Readiness, Status, SupervisorStatus
from tests.support.application import serve_clients
from tests.support.fake_triton import FakeTriton

QUICK_S = 0.05
LOADING_S = 3.0  # a model


class Quick(Client):
    """Answers after a twentieth of a second."""

    modelname = "quick"
    example: Payload = {}

    def inference(self, payload: Payload) -> Any:
        time.sleep(QUICK_S)
        return os.getpid()


class Sleeps(Client):
    """Answers after a while, once a file is there; notes in another that it was asked."""

    modelname = "sleeps"
    example: Payload = {"seconds": 0}

    def inference(self, payload: Payload) -> Any:
        with (self._environment.model_repository / "asked").open("a") as asked:
            asked.write(f"{payload.get('name', '')}\n")
        while not Path(payload.get("until", "/")).exists():
            time.sleep(0.02)
        time.sleep(payload["seconds"])
        return "x" * payload.get("length", 1)


class Bad(Client):
    """Does what no client should."""

    modelname = "bad"
    example: Payload = {"does": "hang"}

    def inference(self, payload: Payload) -> Any:
        if payload["does"] == "hang":
            while True:
                time.sleep(1)
        if payload["does"] == "die":
            os._exit(1)
        if payload["does"] == "exit":
            sys.exit(0)
        if payload["does"] == "hold":  # Python's lock, as a careless pattern does, for years
            re.match(r"(a+)+$", "a" * 60 + "b")
        if payload["does"] == "interrupt":
            raise KeyboardInterrupt
        return payload["does"]


class Bad2(Bad):
    modelname = "bad2"


def build() -> Flask:
    """Return the application; for gunicorn."""
    clients = (Quick, Sleeps, Bad, Bad2)
    server = FakeTriton({one.modelname: dict for one in clients}, loading_s=LOADING_S)
    return serve_clients(server, clients, lambda _: Readiness(SupervisorStatus, Status))


def asked(folder: Path) -> list[str]:
    """Return what `sleeps` was asked, call by call."""
    path = folder / "asked"
    return path.read_text().splitlines() if path.exists() else []
