"""Asks shadows about requests that were answered, while nobody waits.

A thread of each web worker runs them, one after the other. One that finds no quiet moment within
some seconds, or too many waiting, is dropped and counted.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.errors import InferenceError
from clients.tensors.agreement import Agreement, compare, tensors, worst_of
from clients.tensors.client import TensorResult
from dispatcher.background import start_rounds
from dispatcher.codecs.responses import encode
from dispatcher.errors import QUOTING_CODES, status_and_code
from dispatcher.execution.admission import Admission
from dispatcher.rollout.outcomes import DROPPED, ERROR, Outcome, Outcomes
from dispatcher.rollout.plan import SHADOW

MOST_WAITING = 64
MOST_BYTES = 64 * 2**20  # of the payloads and answers that wait, in a web worker
PATIENCE_S = 5.0  # for a quiet moment
LOOK_S = 0.02
SMALL = 8  # bytes, of a number in JSON
MOST_WORDS = 300
SLOT = " (shadow)"  # added to the model's name: its calls have slots of their own
# Kinds of answers whose differences quote what a caller got, which nobody else may see.
PRIVATE = frozenset({"texts", "words", "values"})


@dataclass(eq=False, slots=True)
class ShadowCall:
    """An answered request, and how to ask the shadow about it."""

    name: str  # of the model
    by: str  # what is asked, as `Choice` shows it
    request_id: str
    compared_as: str
    confidence: float  # the least score of an object
    is_list: bool  # whether the answer has a result for each payload
    answer: Any  # what the model answered
    ask: Callable[[float], Any]  # the shadow, until a deadline
    sent: Callable[[], bool]  # whether the caller has the answer
    size: int  # bytes that the payloads and the answer take, about
    until: float = 0.0  # when it has waited for too long


@dataclass
class Shadows:
    """The calls of shadows that wait in this worker."""

    outcomes: Outcomes
    admission: Admission
    cores: int  # of this worker
    timeout: float  # seconds that a call may take
    clock: Callable[[], float] = time.monotonic
    _waiting: list[ShadowCall] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _some: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Run calls in a daemon thread from now on."""
        start_rounds(self._work, "shadow")

    def _work(self) -> None:
        self._some.wait()
        if not self.step():
            time.sleep(LOOK_S)

    def put(self, call: ShadowCall) -> None:
        """Have a shadow asked later; drop the call where too much waits already."""
        call.until = self.clock() + PATIENCE_S
        with self._lock:
            size = call.size + sum(one.size for one in self._waiting)
            full = len(self._waiting) >= MOST_WAITING or size > MOST_BYTES
            if not full:
                self._waiting.append(call)
                self._some.set()
        if full:
            self._drop(call)

    def step(self) -> bool:
        """Drop the calls that waited too long, and run the next one; return whether one ran."""
        now, calls = self.clock(), self.admission.calls
        is_quiet = self.admission.is_free() and len(calls.running) < self.cores
        with self._lock:
            late = [call for call in self._waiting if now > call.until]
            left = [call for call in self._waiting if now <= call.until]
            due = next((call for call in left if is_quiet and call.sent()), None)
            self._waiting = [call for call in left if call is not due]
            if not self._waiting:
                self._some.clear()
        for call in late:
            self._drop(call)
        if due:
            self._run(due)
        return due is not None

    def _run(self, call: ShadowCall) -> None:
        deadline = time.monotonic() + self.timeout
        slot = self.admission.calls.try_enter(call.name + SLOT, deadline)
        if slot is None:
            self._drop(call)
            return
        at, began, status = time.time(), time.monotonic(), 200
        try:
            try:
                with slot:
                    result = call.ask(deadline)
            finally:
                ms = 1000 * (time.monotonic() - began)
            agreement = compare_results(call, result)
            found, words = agreement.verdict, agreement.worst
            if call.compared_as in PRIVATE:
                words = re.sub("""['"].*""", "…", words, flags=re.DOTALL)
        except InferenceError as error:
            status, code = status_and_code(error)
            found, words = ERROR, code if code in QUOTING_CODES else error.message
        outcome = SHADOW, call.by, at, ms, status, found == ERROR, call.request_id
        self.outcomes.note(call.name, Outcome(*outcome, found, words[:MOST_WORDS]))

    def _drop(self, call: ShadowCall) -> None:
        dropped = Outcome(SHADOW, call.by, time.time(), request_id=call.request_id, found=DROPPED)
        self.outcomes.note(call.name, dropped)


def compare_results(call: ShadowCall, got: Any) -> Agreement:
    """Compare what a shadow answered with what the model did: by tensors, or else as JSON.

    Raises NotJson: one of them cannot be sent.
    """
    expected, found = call.answer, []
    several = isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got)
    parts = call.is_list or (several and any(isinstance(one, TensorResult) for one in expected))
    for pair in zip(expected, got, strict=True) if parts else [(expected, got)]:
        one, other = pair
        if isinstance(one, TensorResult) and isinstance(other, TensorResult):
            found.append(tensors(one.outputs, other.outputs))
        else:
            sides = (json.loads(encode(side)[0]) for side in pair)
            found.append(compare(call.compared_as, *sides, confidence=call.confidence))
    return worst_of(found)


def measure(*values: Any) -> int:
    """Return about how many bytes payloads and results take."""
    size, left = 0, list(values)
    while left:
        one = left.pop()
        if isinstance(one, str | bytes):
            size += len(one)
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, TensorResult):
            left += one.outputs.values()
        else:
            size += getattr(one, "nbytes", SMALL)
    return size
