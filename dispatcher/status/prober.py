"""Probes the models again and again, and publishes whether the container is ready.

One web worker of a container probes: the one that holds a lock on a file, which the kernel frees
when that worker ends. Every worker reads the published status. If the process of a model died, each
worker ends its own requests to that model with an error. Each worker also reports the models that
failed its requests, so that they are probed soon.

Triton does not replace a process that died. So the prober loads the model again, while other models
keep serving. If that fails, or a process hangs, a restart of Triton may help. Therefore the prober
publishes which models are stuck: they answered in this run of Triton or in the previous one, and no
longer do. The supervisor restarts Triton if a required model is stuck. It does not if a model
cannot be loaded, or fails its example from the beginning, because a restart would not help.

A class that does not return from its example keeps its thread, and is probed again: it may hang
only once. If it answered before, the prober asks for new workers.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from clients.errors import InferenceError
from clients.images.pictures import room
from clients.plugins.registry import Registry
from clients.triton.server import ModelServer, ModelState
from dispatcher.background import start_rounds
from dispatcher.execution.watchdog import stack_of
from dispatcher.settings import FAILING, READINESS
from dispatcher.status.checks import ModelChecks, ProbedModel
from dispatcher.status.instances import WORD_S, Death, ModelProcesses, Reloads
from dispatcher.status.status import UNASKED, Result, Status, SupervisorStatus
from dispatcher.status.status_file import StatusReader, StatusWriter
from dispatcher.telemetry.memory import trim_heap

log = logging.getLogger(__name__)

LOCK = "prober.lock"
TICK_S = 0.1
# What does not answer yet may do so soon: the first 200 of /ping waits for it.
SOON_S = 0.25
MOST_SOON = 60  # probes; each that fails may write to the log
# Between two lists of the models, and two looks at what others left behind.
LIST_S = 1.0
DEATHS_S = 0.5
# So many probes of a model that is well only knock at its process: the example of YOLOv5s every 8 s
# takes 4 % of a core. (CPU time of an idle container, by process.)
KNOCKS = 7
MOST_HUNG = 4  # probes of a class: each that does not come back keeps a thread


@dataclass
class Prober:
    """Probes models in the worker that is elected, and follows the results in the others."""

    required: Iterable[str]  # without which `/ping` is 503: models, or classes by their own names
    registry: Registry  # the clients, whose `example` is asked
    server: ModelServer  # where the models run
    interval: float  # seconds between two probes of a required model
    timeout: float  # seconds that a model has for its answer
    # Returns the status of the programs.
    supervisor: Callable[[], SupervisorStatus] = SupervisorStatus
    clock: Callable[[], float] = time.monotonic
    run_dir: Path | None = None  # the folder that the workers share; `None` where this one is alone
    load_timeout: float = 60.0  # seconds that a model has to be loaded again
    replace_workers: Callable[[], None] = lambda: None  # asks for fresh web workers
    leaving: Callable[[], bool] = bool  # whether this worker is about to end
    tidy: Callable[[], None] = lambda: None  # sees to what keeps Triton from listing its models
    processes: ModelProcesses = field(default_factory=ModelProcesses)  # of the models
    elsewhere: bool = False  # whether Triton is another's, who alone can restart it
    # Seconds that a request of a caller may keep a model from answering a probe.
    patience: float = 0.0
    # Logs why models are not loaded.
    explain: Callable[[Iterable[ModelState]], None] = lambda _: None
    classes: bool = True  # whether classes of other names than their models are probed too
    probes: dict[str, ProbedModel] = field(default_factory=dict)
    found: Status = Status()

    def __post_init__(self) -> None:
        self.checks = ModelChecks(self.registry, self.server, self.timeout, self.classes)
        self.probes = {
            name: ProbedModel(Result(self.checks.model(name), required=True))
            for name in self.required
        }
        self._deaths: Mapping[str, Death] = {}
        self.reloads = Reloads(self.server, self.load_timeout, self._loaded_again)
        self._suspects: set[str] = set()
        published = self.run_dir and self.run_dir / READINESS
        self.status = StatusReader(published, Status.of_json, Status())
        self._lock: int | None = None
        self._writer: StatusWriter | None = None
        self._abandoned_at, self._deaths_at = self.clock(), 0.0
        self._listing, self._noting = threading.Lock(), threading.RLock()

    def start(self) -> None:
        """Go on for ever, in threads that do not keep the process alive."""
        start_rounds(self._step, "prober", TICK_S)
        start_rounds(self._tidy, "prober", LIST_S)

    def _step(self) -> None:
        self.report_failures()
        elected = self.is_elected()
        if elected:
            self.give_up()
            self.note_deaths()
            self.publish()
        self.abandon()
        if elected:
            self._begin_what_is_due()

    def is_elected(self) -> bool:
        """Whether this worker is the one that probes; the first that asks is, until it ends."""
        if self.run_dir is None:
            return True
        if self.leaving():
            if self._lock is not None:
                os.close(self._lock)
            self._lock, self.status.is_own = None, False
        elif not self.status.is_own and (lock := lock_alone(self.run_dir / LOCK)) is not None:
            self._lock = lock
            self._adopt(self.status())
            self._writer = StatusWriter(self.run_dir / READINESS)
            self.status.is_own = True
        return self.status.is_own

    def _adopt(self, status: Status) -> None:
        """Go on from what the worker published that was elected before this one."""
        self.probes |= {name: ProbedModel(result) for name, result in status.results.items()}
        self.found, self._deaths = status, status.deaths
        supervisor = self.supervisor()
        if status.triton_starts == supervisor.triton_starts:
            self.processes.adopt(supervisor.triton_pid, status.processes)

    # What each worker does

    def report_failures(self) -> None:
        """Have the models probed soon that failed a request of this worker."""
        failing = self.server.take_failing()
        if self.run_dir is None:
            self._suspects |= failing
            return
        for model in failing:
            with suppress(OSError):  # the disk is full: it is probed when it is due
                (self.run_dir / FAILING / model).touch()

    def abandon(self) -> None:
        """Fail the requests to a model whose process died.

        Which of several processes had a request is not known: the other processes answer theirs in
        time, and the rest are failed.
        """
        deaths, since = self.status().deaths, self._abandoned_at
        for model, death in deaths.items():
            if death.at > since:
                self._abandoned_at = max(self._abandoned_at, death.at)
                reason = f"the process of the model died before it answered ({death.how})"
                within = self.timeout if death.left else 0.0
                self.server.abandon(model, reason, within=within)

    def _tidy(self) -> None:
        """Give back what is not used any more: in a thread of its own, for a disk may hang."""
        if not self.supervisor().triton_fault:
            if room.was_left():
                trim_heap()
            self.server.tidy()
            try:
                self.tidy()
            except OSError as error:
                log.warning("cannot look for deleted models: %s", error)

    # What the elected worker does

    def note_deaths(self) -> None:
        """Look for processes of models that died."""
        triton, now = self.supervisor().triton_pid, self.clock()
        if not triton or now < self._deaths_at + DEATHS_S:
            return
        self._deaths_at = now
        for model, death in self.processes.died(triton).items():
            log.error("a process of the model %s died: %s; left: %d", model, death.how, death.left)
            self._deaths = {**self._deaths, model: replace(death, at=now)}
            self.reloads.lost[model] = death.left
            for probe in list(self.probes.values()):
                if probe.result.model == model and not death.left:
                    # A probe would wait behind all requests.
                    self._end(probe, f"its process died ({death.how})", model_failed=True)

    def give_up(self) -> None:
        """Wait no longer for probes that do not come back: their threads cannot be ended."""
        longest = self.timeout + 2 * WORD_S
        reason = f"its client has not returned from its own example in {longest:.0f} s"
        for name, probe in list(self.probes.items()):
            with self._noting:
                if probe.began is None or self.clock() <= probe.began + longest:
                    continue
                self._end(probe, reason, model_failed=False)
            log.error("the model %s: %s; it is at\n%s", name, reason, stack_of(probe.thread))
            if probe.result.required and probe.well:
                log.error("asking gunicorn for new web workers, in which %s may answer", name)
                probe.well = False  # once
                self.replace_workers()

    def _end(self, probe: ProbedModel, reason: str, *, model_failed: bool) -> None:
        """Note why a model does not answer, whatever comes of a probe that is under way."""
        with self._noting:
            last, starts = probe.result, self.supervisor().triton_starts
            found = reason, self.clock(), starts, last.answered_in, model_failed
            probe.result = Result(last.model, last.required, *found)
            probe.hung += probe.began is not None  # until it comes back
            probe.began = None

    def forgive(self) -> None:
        """Probe models again whose clients did not return: the clients were replaced."""
        with self._noting:
            for probe in list(self.probes.values()):
                probe.hung = 0

    def _loaded_again(self, model: str) -> None:
        """Forget what was found of a model before it was loaded again."""
        for probe in list(self.probes.values()):
            if probe.result.model == model:
                # One that hangs again is not ended again: that would not help.
                answered = 0 if model in self.reloads.ended else probe.result.answered_in
                probe.result = replace(probe.result, tried_in=0, answered_in=answered)
                probe.late_since = None
        self.reloads.ended.pop(model, None)

    def _begin_what_is_due(self) -> None:
        # Each in a thread of its own: one that hangs must not keep the others from theirs.
        if self._listing_is_due():
            threading.Thread(target=self.list_models, daemon=True).start()
        if not self.elsewhere:
            newest = self.status.newest
            self.reloads.end(newest.stuck(), self.processes, newest.triton_starts)
        ready, hung = self.found.ready(), self.supervisor().hung
        self.reloads.begin(self.found.triton_starts, ready, self.found.models, hung)
        for name, probe in list(self.due()):
            probe.began = self.clock()
            thread = threading.Thread(target=self.run, args=(name, probe), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there is no room for a thread
                probe.began = None
                raise

    def _listing_is_due(self) -> bool:
        # A connection that is refused would be refused for a while after Triton is there.
        if self.supervisor().triton_fault or self._listing.locked():
            return False
        return self.clock() >= self.found.at + (SOON_S if self._fault() else LIST_S)

    def list_models(self) -> None:
        """Ask Triton which models it has, and count their processes."""
        with self._listing:
            starts, found = self.supervisor().triton_starts, self.found
            try:
                models = self.server.models(timeout=WORD_S)
                found = Status(triton_starts=starts, models=models, was_listed=True)
                self._follow(found.ready(), {state.name for state in models})
                self.explain(models)
            except InferenceError as error:
                # It does not list them while it is busy with loading one.
                if not self.server.is_ready(timeout=WORD_S):
                    fault = f"Triton is not ready: {error.message}"
                    before = found.was_listed and found.triton_starts == starts
                    found = Status(triton_starts=starts, fault=fault, was_listed=before)
            self.found = replace(found, at=self.clock())

    def _follow(self, ready: Collection[str], listed: Collection[str]) -> None:
        """Take in what was loaded meanwhile, and forget what was unloaded."""
        there = dict(self.checks.names(ready, listed))
        for name, probe in list(self.probes.items()):
            if not probe.result.required and name not in there:
                del self.probes[name]
        for name, model in there.items():
            self.probes.setdefault(name, ProbedModel(Result(model, required=False)))

    def due(self) -> Iterator[tuple[str, ProbedModel]]:
        """Yield the names to be probed now."""
        supervisor, now = self.supervisor(), self.clock()
        if supervisor.triton_fault or self._fault():
            return
        for file in (self.run_dir / FAILING).glob("*") if self.run_dir else ():
            self._suspects.add(file.name)
            self.processes.end_stopped(file.name)  # a model without a class may have no probe
            file.unlink()
        for name, probe in list(self.probes.items()):
            result = probe.result
            goes_on = result.required or result.reason or probe.late_since is not None
            wait = self.interval if goes_on else math.inf
            is_suspect = self.checks.model(name) in self._suspects
            is_urgent = result.required and probe.failed < MOST_SOON
            if is_urgent if result.reason else is_suspect:
                wait = min(SOON_S, wait)
            is_due = result.tried_in != supervisor.triton_starts or now >= result.at + wait
            waits = probe.began is None and probe.hung < MOST_HUNG
            if is_due and waits and result.model not in self.reloads.lost:
                yield name, probe

    def run(self, name: str, probe: ProbedModel) -> None:
        """Probe a model, and note what was found."""
        began, last, starts = probe.began, probe.result, self.supervisor().triton_starts
        probe.thread = threading.get_ident()
        model = self.checks.model(name)
        is_well = not last.reason and last.answered_in == last.tried_in == starts
        knock = (
            is_well
            and probe.knocks < KNOCKS
            and any(state.name == model for state in self.found.models)
            and model not in self._suspects
            and name not in self.registry.broken
        )
        probe.knocks = probe.knocks + 1 if knock else 0
        if not knock:
            self._suspects.discard(model)
        known = Result(model, last.required, "", 0.0, starts, last.answered_in)
        try:
            result = self.checks.check(name, known, knock=knock, again=last.tried_in == starts)
        except BaseException:  # whatever a client does, the probe comes to its end
            log.exception("the probe of %s fails", name)
            reason = "its probe failed; the log has the traceback"
            result = replace(known, reason=reason)
        with self._noting:
            if probe.began != began:  # it was given up
                probe.hung = max(0, probe.hung - 1)
                return
            patience = self.processes.patience((result and result.part) or model, self.patience)
            if result is None or probe.is_kept_waiting(result, self.clock(), patience):
                result = last
                probe.knocks = KNOCKS  # its example shows more than a knock at its own model
            probe.failed = probe.failed + 1 if result.reason else 0
            probe.result, probe.began = replace(result, at=self.clock()), None
        if result.reason and result.reason != last.reason:
            log.warning("the model %s does not answer: %s", name, result.reason)
        elif result.reason != last.reason:
            log.info("the model %s answers", name)
        if not (knock or result.reason or probe.well) and result.answered_in == starts:
            probe.well = True
            trim_heap()  # a picture's first way through leaves 10 MB

    def _fault(self) -> str:
        if self.found.triton_starts != self.supervisor().triton_starts:
            return UNASKED
        return self.found.fault

    # What is published

    def publish(self) -> None:
        """Publish what was found, where it has changed."""
        supervisor, found = self.supervisor(), self.found
        starts = found.triton_starts
        status = replace(
            found,
            results={name: probe.result for name, probe in list(self.probes.items())},
            deaths=self._deaths,
            processes=self.processes.by_model(),
        ).concluded(
            {name: self.registry.name(name) in self.registry.clients for name in self.required},
            set(self.reloads.lost),
        )
        if self.elsewhere or starts != supervisor.triton_starts or supervisor.triton_fault:
            status = replace(status, restart="")  # what it is to mend was before
        if status == self.status.newest:
            return
        self.status.newest = status
        if self._writer:
            try:
                self._writer.write(asdict(status))
            except OSError as error:
                log.warning("the status file cannot be written: %s", error.strerror)


def lock_alone(path: Path) -> int | None:
    """Lock a file until this process ends; return its descriptor, `None` where another has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:  # unlike flock, this lock is not inherited by a process that a class forks
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(lock)
        return None
    return lock
