"""Pings a container as the service does, and says in which state it is."""

from __future__ import annotations

import logging
import threading
import time
from http import HTTPStatus

from sagemaker_emulator.host.calls import CONNECT_S, NoAnswer, ask_text
from sagemaker_emulator.host.containers import Container
from sagemaker_emulator.host.limits import VARIANT, Limits

CREATING, IN_SERVICE, UNHEALTHY, FAILED = "Creating", "InService", "Unhealthy", "Failed"
FIRST_S = 1.0  # between pings before the first good one
SHOWN = 200
say = logging.getLogger(__name__).info


class Health:
    """The state of a container, which a thread pings.

    Before the first good ping all paths must be answered with 200, later the first one.
    """

    def __init__(self, container: Container, paths: tuple[str, ...], limits: Limits) -> None:
        self.container, self.paths, self.limits = container, paths, limits
        self.state, self.reason = CREATING, ""
        self.changed = threading.Event()  # it is in service, or has failed
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        """Ping until the container has failed or is to stop."""
        begin = time.monotonic()
        while not self.done.is_set():
            if ended := self.container.ended():
                self.become(FAILED, ended, ended)
                return
            creating = self.state == CREATING
            paths = self.paths if creating else self.paths[:1]
            fault = next(filter(None, map(self.find_fault, paths)), "")
            if self.done.is_set():
                return
            took = time.monotonic() - begin
            if not fault:
                self.become(IN_SERVICE, f"after {took:.1f} s" if creating else "", "")
            elif creating and took > self.limits.start_s and not self.container.ended():
                said = f"no good ping within {self.limits.start_s:.0f} s: {fault}"
                self.become(FAILED, said, fault)
                return
            elif not self.container.ended():
                self.notice(fault)
            every = self.limits.ping_every_s
            self.done.wait(min(FIRST_S, every) if self.state == CREATING else every)

    def become(self, state: str, said: str, reason: str) -> None:
        self.reason = reason
        if state != self.state:
            self.state = state
            say(f"{VARIANT}: {state} {said}".rstrip())
        if state in (IN_SERVICE, FAILED):
            self.changed.set()

    def notice(self, fault: str) -> None:
        """Say why a ping was not good, once for each reason."""
        if self.state == IN_SERVICE:
            said = f"{fault}; the service would replace the instance"
            self.become(UNHEALTHY, said, fault)
        elif fault != self.reason:
            self.reason = fault
            say(f"{VARIANT}: not ready: {fault}")

    def find_fault(self, path: str) -> str:
        """Return why the answer to a path is not good; empty if it is."""
        until = time.monotonic() + CONNECT_S + self.limits.ping_s
        try:
            status, text = ask_text(self.container.address, "GET", path, until=until)
        except NoAnswer as error:
            return f"GET {path}: {error}"
        if status == HTTPStatus.OK:
            return ""
        return f"GET {path} is answered with {status}: {text[:SHOWN].strip()}".rstrip(": ")


HINTS = (  # what a reason contains, and what to do
    ("no connection", "let the server listen on 0.0.0.0, port 8080 or SAGEMAKER_BIND_TO_PORT"),
    ("without an answer", "let the server listen on 0.0.0.0, port 8080 or SAGEMAKER_BIND_TO_PORT"),
    ("GET /ping is answered with 404", "give the server a route GET /ping"),
    ("GET /models is answered with", "a multi-model container lists its models at GET /models"),
    ("GET /ping is answered with", "let /ping answer 200 as soon as the models are loaded"),
    ("in time", "let /ping answer within 2 s, also while a model is loaded or works"),
)


def hint_for(reason: str) -> str:
    return next((hint for part, hint in HINTS if part in reason), "")
