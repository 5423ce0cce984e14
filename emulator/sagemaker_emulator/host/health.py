"""Pings a container as the service does, and says in which state it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from sagemaker_emulator.host.calls import CONNECT_S, NoAnswer, ask_text
from sagemaker_emulator.host.containers import Container
from sagemaker_emulator.host.limits import Limits

CREATING, IN_SERVICE, UNHEALTHY, FAILED = "Creating", "InService", "Unhealthy", "Failed"
FIRST_S = 1.0  # between pings before the first good one
SHOWN = 200


class Health:
    """The state of a container.

    Args:
        container: to ping.
        paths: that must be answered with 200: /ping, and before the first good ping the others.
        say: takes each change of the state.
        limits: on the start and on pings.

    """

    def __init__(
        self,
        container: Container,
        paths: tuple[str, ...],
        say: Callable[[str], None],
        limits: Limits,
    ) -> None:
        self.container, self.paths, self.say, self.limits = container, paths, say, limits
        self.state, self.reason = CREATING, ""
        self.was_in_service = False
        self.changed = threading.Event()  # it is in service, or has failed
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.done.set()

    def run(self) -> None:
        """Ping until the container has failed or is to stop."""
        begin = time.monotonic()
        while not self.done.is_set():
            if ended := self.container.ended():
                self.reason = ended
                self.become(FAILED, ended)
                return
            paths = self.paths[:1] if self.was_in_service else self.paths
            fault = next(filter(None, map(self.fault, paths)), "")
            if self.done.is_set():
                return
            if fault and not self.container.ended():
                if self.state == CREATING and time.monotonic() - begin > self.limits.start_s:
                    self.reason = fault
                    self.become(FAILED, f"no good ping within {self.limits.start_s:.0f} s: {fault}")
                    return
                self.notice(fault)
            elif not fault:
                after = f"after {time.monotonic() - begin:.1f} s" * (self.state == CREATING)
                self.reason = ""
                self.become(IN_SERVICE, after)
            self.done.wait(
                min(FIRST_S, self.limits.ping_every_s)
                if self.state == CREATING
                else self.limits.ping_every_s
            )

    def become(self, state: str, why: str) -> None:
        if state != self.state:
            self.state = state
            self.was_in_service |= state == IN_SERVICE
            self.say(f"{state} {why}".rstrip())
        if state in (IN_SERVICE, FAILED):
            self.changed.set()

    def notice(self, fault: str) -> None:
        """Say why a ping was not good, once for each reason."""
        if self.state == IN_SERVICE:
            self.reason = fault
            self.become(UNHEALTHY, f"{fault}; the service would replace the instance")
        elif fault != self.reason:
            self.reason = fault
            self.say(f"not ready: {fault}")

    def fault(self, path: str) -> str:
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
