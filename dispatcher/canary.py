"""Tries every required model again and again, on the way that requests take.

Triton calls a model ready whose process has died; only asking it tells. Such a process does not
come back, and Triton never finishes unloading its model: /ping is 503 until the container is
replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from clients.base import Client
from clients.errors import DeadlineExceeded, InferenceError
from clients.model_server import ModelServer
from clients.registry import Registry
from clients.request import Request
from dispatcher.encoding import encoded

log = logging.getLogger(__name__)

UNTRIED = "it was not tried yet"
SOON_S = 0.25


@dataclass
class Trial:
    """What is known of one model: nothing is wrong where `reason` is empty."""

    reason: str = UNTRIED
    at: float = 0.0


def ask_example(client: Client, timeout: float) -> None:
    """Ask a client its own example.

    Raises:
        InferenceError: it does not answer, or its answer is not JSON.
        Exception: whatever a bug in it raises.

    """
    deadline = time.monotonic() + timeout
    with Request(parameters=client.read_parameters({}), deadline=deadline).active():
        encoded(client.inference(client.example))


@dataclass
class Canary:
    """Tries models.

    Args:
        required: the models, by their names in the repository.
        registry: their clients, whose `example` is what they are asked.
        server: where they run.
        interval: seconds between two rounds.
        timeout: seconds that a model has for its answer. One that is merely busy is told from one
            that hangs by its answers to others: where it gave one in this time, nothing is wrong.

    """

    required: Iterable[str]
    registry: Registry
    server: ModelServer
    interval: float
    timeout: float
    clock: Callable[[], float] = time.monotonic
    trials: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trials = {model: Trial() for model in self.required}

    def start(self) -> None:
        """Go round for ever, in a thread that does not keep the process alive."""
        threading.Thread(target=self.go_round, name="canary", daemon=True).start()

    def go_round(self) -> None:
        while True:
            missing = self.look()
            # What is not there yet may be there soon: the first 200 of /ping waits for it.
            time.sleep(min(SOON_S, self.interval) if missing else self.interval)

    def look(self) -> bool:
        """Try each model once; return whether one of them is not well."""
        for model, trial in self.trials.items():
            try:
                self.try_model(model)
            except DeadlineExceeded as error:
                idle = self.clock() - self.server.last_success(model)
                self.note(trial, error.message if idle > self.timeout else "")
            except InferenceError as error:
                self.note(trial, error.message)
            except Exception:
                log.exception("the example of %s fails in its client", model)
                self.note(trial, "its client fails on its own example; the log has the traceback")
            else:
                self.note(trial, "")
        return any(trial.reason for trial in self.trials.values())

    def note(self, trial: Trial, reason: str) -> None:
        trial.reason, trial.at = reason, self.clock()

    def try_model(self, model: str) -> None:
        """Ask a model its client's example; ask Triton alone where it has no client.

        Raises:
            InferenceError: it does not answer.

        """
        clients = [c for c in self.registry.clients.values() if c.triton_model() == model]
        for client in clients[:1]:
            ask_example(client, self.timeout)
        if not clients:
            self.server.signature(model, timeout=self.timeout)

    def reasons(self) -> list[str]:
        """Return what is wrong with which model, a sentence each."""
        return [
            f"the required model {model!r} does not answer: {trial.reason}"
            for model, trial in self.trials.items()
            if trial.reason
        ]

    def report(self, model: str) -> dict[str, object] | None:
        """Return the last trial of a model as JSON; `None` where it is not tried."""
        trial = self.trials.get(model)
        if trial is None:
            return None
        age = round(self.clock() - trial.at, 1) if trial.at else None
        return {"ok": not trial.reason, "reason": trial.reason, "age_s": age}
