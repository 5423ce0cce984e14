"""How the calls of models with a rollout ended, in all web workers.

Each worker appends the calls that ended in it to a file for each model, as lines of JSON: the
kernel keeps apart what several processes append. Only the last calls are kept.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote

from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownVersion,
)
from clients.tensors.nested import copy_deeply
from dispatcher.errors import status_and_code, time_used_up
from dispatcher.rollout.plan import CANARY, SHADOW, STABLE, Choice, Plan
from dispatcher.telemetry.telemetry import Metrics

log = logging.getLogger(__name__)

SUFFIX, OLDER = ".outcomes", ".outcomes.1"
MOST_BYTES = 2**19  # of a file; a longer one is renamed, which works on a full disk too
MOST_KEPT = 10_000  # outcomes in memory: those read of a model, and those still to be written
GRACE_S = 2.0  # after its deadline a call may still end by itself; then it has failed
LONG_S = 2.0  # a call that still runs is noted after so long, then each time after twice as long

SAME, CLOSE, DIFFERENT, ERROR, DROPPED = FOUND = ("same", "close", "different", "error", "dropped")

T = TypeVar("T")


class Outcome(NamedTuple):
    """How one call ended: of a caller's request, or of a shadow."""

    of: str  # `STABLE`, `CANARY` or `SHADOW`
    by: str  # the version or the model that was asked, as `Choice` shows it
    at: float  # when it began, in seconds since 1970
    ms: float = 0.0  # that it took, divided by its payloads
    status: int = 0  # of the answer; 0 where the call still runs, or a shadow was not asked
    failed: bool = False  # by the fault of the version or model, and not of the caller
    request_id: str = ""
    found: str = ""  # of a shadow: one of `FOUND`
    words: str = ""  # the worst difference, or the error


@dataclass
class Tail:
    """The last outcomes in a file, as far as it was read."""

    inode: int = 0
    position: int = 0
    last: deque[Outcome] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))

    def read(self, file: BinaryIO) -> None:
        file.seek(self.position)
        for line in file:
            if not line.endswith(b"\n"):  # a full disk has cut it
                break
            self.position += len(line)
            with suppress(ValueError, TypeError):
                self.last.append(Outcome(**json.loads(line)))


class Outcomes:
    """Takes outcomes in, writes them, and reads those of all workers."""

    def __init__(self, folder: Path, metrics: Metrics) -> None:
        self.metrics = metrics
        self.running: dict[Call, None] = {}
        self._folder = folder
        self._ended: deque[tuple[str, Outcome]] = deque(maxlen=MOST_KEPT)
        self._tails: dict[str, Tail] = {}
        self._reading = threading.Lock()
        self._writes = True

    def note(self, name: str, outcome: Outcome) -> None:
        """Count an outcome of a model, and keep it until it is written."""
        self.metrics.rollout(name, outcome.of, outcome.status, outcome.ms / 1000, outcome.found)
        self._ended.append((name, outcome))

    def look(self, now: float) -> None:
        """Note calls that run for long; as failed, those that run long after their deadline."""
        for call in list(self.running):
            if now > call.deadline + GRACE_S:
                call.end(time_used_up())
            elif now > call.began + call.long:
                call.long = 2 * (now - call.began)
                call.note(0)

    def write(self) -> None:
        """Write the new outcomes; those for which the disk has no room only this worker knows."""
        ended: dict[str, list[Outcome]] = {}
        while self._ended:
            name, outcome = self._ended.popleft()
            ended.setdefault(name, []).append(outcome)
        for name, some in ended.items():
            lines = [json.dumps(one._asdict()).encode() + b"\n" for one in some]
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with self._file(name).open("ab", buffering=0) as file:
                    file.write(b"".join(lines))
                self._writes = True
            except OSError as error:
                if self._writes:
                    log.warning("the guard of %r misses some of its answers: %s", name, error)
                self._writes = False
                with self._reading:
                    self._tails.setdefault(name, Tail()).last.extend(some)

    def last(self, name: str) -> list[Outcome]:
        """Return the last outcomes of a model, the oldest first."""
        with self._reading:
            tail = self._tails.setdefault(name, Tail())
            with suppress(OSError), self._file(name).open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != tail.inode or found.st_size < tail.position:  # another file
                    tail = self._tails[name] = Tail(found.st_ino)
                    with suppress(OSError), self._file(name, OLDER).open("rb") as older:
                        tail.read(older)
                    tail.position = 0
                tail.read(file)
            return list(tail.last)

    def count(self, name: str, plan: Plan) -> dict[str, Any]:
        """Return what the last outcomes say of a model's plan, for people."""
        return Window(plan, self.last(name)).as_json()

    def tidy(self, names: Iterable[str]) -> None:
        """Put long files aside, and delete those of other models; one worker does this for all."""
        files = {self._file(name): self._file(name, OLDER) for name in names}
        for found in {*self._folder.glob(f"*{SUFFIX}*")} - {*files, *files.values()}:
            found.unlink(missing_ok=True)
        for file, older in files.items():
            if file.exists() and file.stat().st_size > MOST_BYTES:
                file.replace(older)

    def _file(self, name: str, suffix: str = SUFFIX) -> Path:
        return self._folder / (quote(name, safe="") + suffix)


@dataclass(eq=False, slots=True)
class Call:
    """A call of a model with a rollout, whose end is noted once."""

    trial: Trial
    deadline: float
    payloads: int = 1
    at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    long: float = LONG_S
    # Whether an error is the canary's fault: the stable version answers, or refuses as well
    blamed: bool | None = None

    def end(self, error: InferenceError | None) -> None:
        """Note how it has ended, unless that was done."""
        trial = self.trial
        if trial.outcomes.running.pop(self, True):  # else it is `None`
            return
        status = status_and_code(error)[0] if error else 200
        # A client whose own tensors do not fit is at fault; a caller's own are the caller's.
        unfit = isinstance(error, TensorsRefused) and not trial.tensors
        gone = isinstance(error, UnknownModel | UnknownVersion)
        # One that has the time which its caller gave it may be slow, and has not failed.
        late = trial.hurried and isinstance(error, DeadlineExceeded)
        failed = (status >= 500 and not late) or unfit or gone
        self.note(status, failed=failed if self.blamed is None else self.blamed)

    def note(self, status: int, *, failed: bool = False) -> None:
        """Note its status; of several notes of a call only the last one counts."""
        trial, ms = self.trial, 1000 * (time.monotonic() - self.began) / self.payloads
        of, by = trial.choice.of, str(trial.choice)
        outcome = Outcome(of, by, self.at, ms, status, failed, trial.request_id)
        trial.outcomes.note(trial.name, outcome)

    @contextmanager
    def waiting_for_reader(self) -> Iterator[None]:
        """Leave out of its time what a caller takes to read a part of its answer."""
        deadline, self.deadline, began = self.deadline, math.inf, time.monotonic()
        try:
            yield
        finally:
            self.deadline = deadline
            self.began += time.monotonic() - began


@dataclass(frozen=True)
class Trial:
    """A request to a model with a rollout: its calls are noted, and some offered to a shadow."""

    outcomes: Outcomes
    name: str  # of the model
    choice: Choice  # what answers it
    request_id: str
    tensors: bool  # whether the caller has made the tensors
    hurried: bool  # whether the caller has set a time limit
    # Takes payloads, as they were before the call, and the result of the call.
    offer: Callable[[list[Any], Any], None] | None = None
    # Returns the result of the stable version for the payloads of a canary that has failed.
    instead: Callable[[list[Any]], Any] | None = None

    @contextmanager
    def call(self, deadline: float, payloads: int = 1) -> Iterator[Call]:
        """Note how the block, a call, ends, or that it still runs long after its deadline.

        One of several payloads that is too large is not noted: it is made again in halves.
        """
        call = Call(self, deadline, payloads)
        self.outcomes.running[call] = None
        try:
            yield call
            call.end(None)
        except InferenceError as error:
            if payloads == 1 or not isinstance(error, TooLargeAtOnce):
                call.end(error)
            raise
        finally:  # where the reader of a stream has left, nothing is noted
            self.outcomes.running.pop(call, None)

    def run(self, payloads: list[Any], ask: Callable[[], T], deadline: float) -> T:
        """Return what `ask` returns for some payloads, and note that call.

        Where a canary fails, the stable version answers; where that fails too, the payloads are to
        blame.
        """
        # A client may change what it is given.
        kept = copy_deeply(payloads) if self.offer or self.instead else []
        with self.call(deadline, len(payloads)) as call:
            try:
                result = ask()
            except (DeadlineExceeded, TooLargeAtOnce):
                raise
            except InferenceError as error:
                if not self.instead:
                    raise
                try:
                    result = self.instead(kept)
                except InferenceError as other:
                    # (One that has no time left says nothing of the payloads.)
                    if not isinstance(other, DeadlineExceeded):
                        call.blamed = False
                    raise error from None
                call.blamed = True
                call.end(error)
                return result
            if isinstance(result, Iterator):  # of a stream, whose steps are the call
                self.outcomes.running.pop(call)
            elif self.offer:
                call.end(None)
                self.offer(kept, result)
        return result


@dataclass
class Answers:
    """The answers of one version, or of one model."""

    count: int = 0
    failed: int = 0
    # Milliseconds of those that were answered 200, took too long, or still run
    times: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.count += 1
        self.failed += outcome.failed
        if outcome.status in {0, 200, 504}:
            self.times.append(outcome.ms)

    def percentile(self, share: float) -> float | None:
        """Return the milliseconds that a share of them took at most; `None` if there are none."""
        place = math.ceil(share * len(self.times)) - 1
        return sorted(self.times)[max(0, place)] if self.times else None

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and times in milliseconds."""
        times = {f"p{n}_ms": self.percentile(n / 100) for n in (50, 99)}
        rounded = {name: round(ms, 1) for name, ms in times.items() if ms is not None}
        return {"answers": self.count, "failed": self.failed, **rounded}


class Window:
    """What the last outcomes say of a plan."""

    def __init__(self, plan: Plan, outcomes: Iterable[Outcome]) -> None:
        self.answers = {of: Answers() for of in (STABLE, CANARY, SHADOW)}
        self.found: Counter[str] = Counter()  # of the shadow
        self.differed: Outcome | None = None  # the last that was different, or an error
        # Of several notes of a call, the last one.
        calls = {(one.at, one.request_id, one.of): one for one in outcomes}
        by = {STABLE: str(plan.stable), CANARY: str(plan.canary), SHADOW: str(plan.shadow)}
        for one in calls.values():
            if one.at < plan.since or one.by != by[one.of]:
                continue
            if one.found != DROPPED:
                self.answers[one.of].add(one)
            if one.found:
                self.found[one.found] += 1
            if one.found in {DIFFERENT, ERROR}:
                self.differed = one

    def as_json(self) -> dict[str, Any]:
        """Return what a person wants to know."""
        shown = {of: some.as_json() for of, some in self.answers.items() if some.count}
        if self.found:
            found = {one: self.found[one] for one in FOUND}
            shown[SHADOW] = {**shown.get(SHADOW, {}), **found}
        if one := self.differed:
            shown[SHADOW]["last_difference"] = {"what": one.words, "request_id": one.request_id}
        return shown
