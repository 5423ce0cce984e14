"""Tries the models again and again, on the way that requests take, and remembers what it found.

Triton calls a model ready whose process has died or hangs; only asking it tells. Neither comes
back, and Triton never finishes unloading such a model. So the canary says which models are stuck:
those that answered their example since Triton was started, or during its start before this one, and
do not any more. That is what a new start of Triton can mend, and the supervisor starts it anew
where a required model is stuck.
A model that cannot be loaded, or whose example fails from the beginning, is not: a new start would
find it as it is. Who answered is noted in files, for the web workers that come later.

Triton is started anew as well where a required model has lost some of its processes. Such a model
is `maimed`: the others answer, so that until then requests are taken.

A client that does not come back from its example is given up, and tried again: it may have been
once. Where several looks have ended so, fresh web workers are asked for, if it ever answered here.

`/ping` and requests read from memory what was found; nothing is asked on their behalf.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clients.base import Client
from clients.errors import (
    BadRequest,
    ClientDisabled,
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
)
from clients.images.pictures import room
from clients.plugins.registry import Registry
from clients.request import Request
from clients.tensors.client import has_example
from clients.tensors.nested import unshared
from clients.tensors.signature import zeros
from clients.triton.server import ModelServer, ModelState
from dispatcher.codecs.json_encoding import encode
from dispatcher.execution.admission import nothing
from dispatcher.execution.slots import MAX_HANGING
from dispatcher.execution.watchdog import stack_of
from dispatcher.observability.memory import trim_heap
from dispatcher.readiness.instances import ModelProcesses
from dispatcher.readiness.losses import Losses
from dispatcher.readiness.supervisor_status import Notice

log = logging.getLogger(__name__)

UNTRIED = "it was not tried yet"
TICK_S = 0.1
# What does not answer yet may do so soon: the first 200 of /ping waits for it.
SOON_S = 0.25
# Between two looks at the list of models, and how long Triton has for a word: a busy machine
# answers late, one that is silent for longer than this is not merely busy.
LIST_S = 1.0
WORD_S = 3.0
# So many trials of a model that is well are no more than a knock at its process: the example of
# YOLOv5s every 8 s takes 4 % of a core. (CPU time of an idle container, by process.)
KNOCKS = 7
# Between two looks at the processes of models.
DEATHS_S = 0.5
# Between two looks at whether one that is busy answers others.
BUSY_LOOK_S = 0.2
# Beyond this something is wrong with the canary itself.
STALE_S = 20.0


@dataclass
class Trial:
    """What is known of one model.

    Args:
        required: whether it is tried again and again; others are tried once after each start of
            Triton, and when a request to them failed.
        reason: why it does not answer; nothing where it does.
        at: when it was last tried.
        tried_in: during which start of Triton that was.
        answered_in: during which start of Triton it last answered.
        knocks: how many trials were no more than a knock since its example was asked.
        silent: whether it was the model that failed, not its client.
        part: the model that failed where that is another one, which the client asks as well.
        late: whether that was for lack of an answer.
        well: whether it ever answered this web worker.
        began: when the look at it began that is under way.
        thread: of that look.
        hung: how many looks at it have not come back, and were given up.

    """

    required: bool
    reason: str = UNTRIED
    at: float = 0.0
    tried_in: int = 0
    answered_in: int = 0
    knocks: int = 0
    silent: bool = False
    part: str = ""
    late: bool = False
    well: bool = False
    began: float | None = None
    thread: int = 0
    hung: int = 0


@dataclass(frozen=True)
class Index:
    """What Triton said of its models, or why it said nothing, during one of its starts."""

    starts: int
    states: list[ModelState] = field(default_factory=list)
    fault: str = ""

    def ready(self) -> Counter[str]:
        """Return of how many models versions are ready, and of how many versions."""
        return Counter(state.name for state in self.states if state.ready)


def ask_example(client: Client, timeout: float) -> None:
    """Ask a client its own example; one for plain tensors may have none.

    Raises:
        InferenceError: it does not answer, or its answer is not JSON.
        Exception: whatever a bug in it raises.

    """
    deadline = time.monotonic() + timeout
    with Request(parameters=client.read_parameters({}), deadline=deadline).active():
        if has_example(client):
            # It may change what it is given: the next trial, and people, want the example itself.
            encode(client.inference(unshared(dict(client.example))))
        else:
            client.signature()


def said(error: InferenceError, part: str) -> str:
    """Return why a client's example failed; with the model's name where it is not its own."""
    return f"the model {part!r}, which it asks too: {error.message}" if part else error.message


@dataclass
class Canary:
    """Tries models.

    Args:
        required: without which `/ping` is 503: models by their names in the repository, or clients.
        registry: their clients, whose `example` is what they are asked.
        server: where they run.
        interval: seconds between two trials of a required model.
        timeout: seconds that a model has for its answer. One that is merely busy is told from one
            that hangs by its answers to others: where it gave one in this time, nothing is wrong.
        notice: returns what the supervisor knows.
        memory: folder with a file per model, which says during which start of Triton it last
            answered; it is there for all web workers, whenever they come.
        replace: asks for fresh web workers.
        processes: of the models. What was asked of one that died fails at once, and it is tried.
        mend: sees to what keeps Triton from saying which models it has.

    """

    required: Iterable[str]
    registry: Registry
    server: ModelServer
    interval: float
    timeout: float
    notice: Callable[[], Notice] = Notice
    clock: Callable[[], float] = time.monotonic
    memory: Path | None = None
    replace: Callable[[], None] = nothing
    processes: ModelProcesses = field(default_factory=ModelProcesses)
    mend: Callable[[], None] = nothing
    trials: dict[str, Trial] = field(default_factory=dict)
    index: Index | None = None

    def __post_init__(self) -> None:
        self.trials = {model: Trial(required=True) for model in self.required}
        self._listed_at = 0.0
        self._deaths_at = 0.0
        self._listed_in = 0  # during which start of Triton it last said what it has
        self._listing = threading.Lock()
        self._mending = threading.Lock()
        self._noting = threading.Lock()
        self._losses = Losses(self.server, self.clock)

    def start(self) -> None:
        """Go round for ever, in a thread that does not keep the process alive."""
        threading.Thread(target=self._go_round, name="canary", daemon=True).start()

    def _go_round(self) -> None:
        while True:
            try:
                self._begin_what_is_due()
            except Exception:
                log.exception("a round of the canary failed")
            time.sleep(TICK_S)

    def _begin_what_is_due(self) -> None:
        self.give_up()
        self.see_deaths()
        # Each in a thread of its own: one that hangs must not keep the others from theirs.
        if self._listing_is_due():
            # The disk with the models may hang, or be away.
            threading.Thread(target=self.mend_if_idle, daemon=True).start()
            threading.Thread(target=self.list_models, daemon=True).start()
        for model, trial in list(self.due()):
            trial.began = self.clock()
            look = threading.Thread(target=self.look, args=(model, trial), daemon=True)
            try:
                look.start()
            except RuntimeError:  # there is no room for a thread
                trial.began = None
                raise

    def _listing_is_due(self) -> bool:
        notice = self.notice()
        # A connection that was refused would be refused for a while after Triton is there.
        if notice.triton_fault or self._listing.locked():
            return False
        wait = SOON_S if self._fault(notice) else LIST_S
        return self.clock() >= self._listed_at + wait

    def see_deaths(self) -> None:
        """Let what was asked of a model fail whose process died.

        Which of several had it nobody knows: it is what the others have not answered in time.
        """
        notice, now = self.notice(), self.clock()
        triton = notice.triton_pid
        if not triton or now < self._deaths_at + DEATHS_S:
            return
        self._deaths_at = now
        for model, death in self.processes.died(triton).items():
            log.error("a process of the model %s died: %s; left: %d", model, death.how, death.left)
            self.server.abandon(
                model,
                f"the process of the model died before it answered ({death.how})",
                within=self.timeout if death.left else 0.0,
            )
            if not death.left:
                self._note_death(model, notice.triton_starts, f"its process died ({death.how})")

    def _note_death(self, model: str, starts: int, reason: str) -> None:
        """Note that nobody is left to answer for a model: a look would wait behind all requests."""
        for name, trial in list(self.trials.items()):
            if self.model(name) != model:
                continue
            with self._noting:
                trial.reason, trial.silent, trial.late, trial.part = reason, True, False, ""
                trial.tried_in, trial.at = starts, self.clock()
                if trial.began is not None:  # the outcome of a look under way does not count
                    trial.began = None
                    trial.hung += 1  # until it comes back

    def mend_if_idle(self) -> None:
        """See to what was left behind, and to what keeps Triton from listing its models.

        Not while that is still under way, nor while Triton is away.
        """
        if self._mending.acquire(blocking=False):
            try:
                if room.was_left():
                    trim_heap()
                self.server.tidy()
                self.mend()
            except OSError as error:
                log.warning("deleted models cannot be looked for: %s", error)
            finally:
                self._mending.release()

    def list_models(self) -> None:
        """Ask Triton which models it has."""
        with self._listing:
            starts = self.notice().triton_starts
            try:
                self.index = Index(starts, self.server.models(timeout=WORD_S))
                self._listed_in = starts
                self._follow(self.index.ready())
                living = self.processes.living()
                self._losses.look(starts, self.index.ready(), living, timeout=WORD_S)
            except InferenceError as error:
                # It does not list them while it is busy with loading one.
                if not self.server.is_ready(timeout=WORD_S):
                    self.index = Index(starts, fault=f"Triton is not ready: {error.message}")
            self._listed_at = self.clock()

    def _follow(self, ready: Collection[str]) -> None:
        """Take in what was loaded meanwhile, and forget what was unloaded."""
        for model, trial in list(self.trials.items()):
            if not trial.required and model not in ready:
                del self.trials[model]
        for client in list(self.registry.clients.values()):
            if client.served_by in ready:
                self.trials.setdefault(client.served_by, Trial(required=False))

    def due(self) -> Iterator[tuple[str, Trial]]:
        """Yield the models that should be tried now, and what is known of each."""
        notice, now, failing = self.notice(), self.clock(), self.server.failing()
        if notice.triton_fault or self._fault(notice):
            return
        for model, trial in list(self.trials.items()):
            is_new = trial.tried_in != notice.triton_starts
            wait = self.interval if trial.required or trial.reason else math.inf
            if (trial.required and trial.reason) or (
                self.model(model) in failing and not trial.reason
            ):
                wait = min(SOON_S, wait)
            waits = trial.began is None and trial.hung < MAX_HANGING
            if waits and (is_new or now >= trial.at + wait):
                yield model, trial

    def give_up(self) -> None:
        """Wait no longer for looks that do not come back: their threads cannot be ended."""
        longest = self.timeout + 2 * WORD_S
        for model, trial in list(self.trials.items()):
            with self._noting:
                if trial.began is None or self.clock() <= trial.began + longest:
                    continue
                trial.reason = (
                    f"its client has not come back from its own example in {longest:.0f} s"
                )
                trial.tried_in, trial.silent = self.notice().triton_starts, False
                trial.at, trial.began = self.clock(), None
                trial.hung += 1
            log.error("the model %s: %s; it is at\n%s", model, trial.reason, stack_of(trial.thread))
            if trial.hung == MAX_HANGING and trial.required and trial.well:
                log.error("fresh web workers are asked for, in which %s may answer", model)
                self.replace()

    def forgive(self) -> None:
        """Try models again whose clients did not come back: those are others now."""
        with self._noting:
            for trial in list(self.trials.values()):
                trial.hung = 0

    def look(self, model: str, trial: Trial) -> None:
        """Try a model, and note what was found."""
        began, starts = trial.began, self.notice().triton_starts
        trial.thread = threading.get_ident()
        trial.answered_in = max(trial.answered_in, self._remembered(model))
        try:
            reason, silent, answers = self._found(model, trial)
        except BaseException:  # whatever a client does, the trial comes to its end
            log.exception("the example of %s fails in its client", model)
            reason = "its client fails on its own example; the log has the traceback"
            silent, answers = False, False
        with self._noting:
            if trial.began != began:  # it was given up
                trial.hung = max(0, trial.hung - 1)
                return
            if reason != trial.reason:
                if reason:
                    log.warning("the model %s does not answer: %s", model, reason)
                else:
                    log.info("the model %s answers", model)
            trial.tried_in, trial.silent = starts, silent
            trial.reason, trial.at, trial.began = reason, self.clock(), None
            if answers and not reason:
                if not trial.well:  # a picture's first way through leaves 10 MB
                    trim_heap()
                trial.well = True
                if trial.answered_in != starts:
                    trial.answered_in = starts
                    self._remember(model, starts)

    def _remembered(self, model: str) -> int:
        try:
            return int((self.memory / model).read_text()) if self.memory else 0
        except (OSError, ValueError):
            return 0  # it has not answered yet, or there was no room to say so

    def _remember(self, model: str, starts: int) -> None:
        try:
            if self.memory:
                (self.memory / model).write_text(str(starts))
        except OSError as error:
            log.warning("that %s answers cannot be noted: %s", model, error.strerror)

    def _found(self, model: str, trial: Trial) -> tuple[str, bool, bool]:
        """Return why a model does not answer, whether it is its own fault, whether it answered."""
        name, model = model, self.model(model)
        before, trial.late, trial.part = self._answered(model), False, ""
        until = time.monotonic() + self.timeout
        try:
            if self._is_well(name, trial):
                trial.knocks += 1
                inputs = zeros(self.server.signature(model, timeout=self.timeout))
                self.server.knock(model, inputs, timeout=self.timeout)
                return "", False, False
            trial.knocks = 0
            return "", False, self.try_model(name, known=bool(trial.answered_in))
        except DeadlineExceeded as error:
            if part := self._part(error, model, trial):
                busy = self._answers(part, self._answered(part), time.monotonic() + WORD_S)
            else:
                busy = self._answered(model) > before
            trial.late = not busy
            return ("", False, True) if busy else (said(error, part), True, False)
        except ModelBusy as error:
            # Its own queue refused, perhaps at once: whether it answers others shows in a while.
            part = self._part(error, model, trial)
            before = self._answered(part) if part else before
            answers = self._answers(part or model, before, until)
            return ("", False, True) if answers else (said(error, part), False, False)
        except InferenceError as error:
            failed = isinstance(error, ModelFailed) and not isinstance(error, TooLargeAtOnce)
            return said(error, self._part(error, model, trial)), failed, False

    def _part(self, error: InferenceError, model: str, trial: Trial) -> str:
        """Note and return which other model it was that a client asked and that failed."""
        trial.part = "" if error.model == model else error.model
        return trial.part

    def _answers(self, model: str, before: int, until: float) -> bool:
        """Whether a model answers anybody more than `before` until then."""
        while not (more := self._answered(model) > before) and time.monotonic() < until:
            time.sleep(BUSY_LOOK_S)
        return more

    def _is_well(self, model: str, trial: Trial) -> bool:
        """Whether its example was answered lately, and all that was asked since."""
        return (
            not trial.reason
            and trial.answered_in == trial.tried_in == self.notice().triton_starts
            and trial.knocks < KNOCKS
            and self.has_model(model)
            and self.model(model) not in self.server.failing()
            and not self.registry.disabled(model)
        )

    def _answered(self, model: str) -> int:
        try:
            return self.server.answered(model, timeout=WORD_S)
        except InferenceError:
            return 0

    def try_model(self, model: str, *, known: bool) -> bool:
        """Ask a model its client's example; where it has no client, ask it zeros.

        Nobody said that it takes zeros, so that only one that is `known` to answer has to.

        Returns:
            whether it answered.

        Raises:
            InferenceError: it does not answer.

        """
        if reason := self.registry.disabled(model):
            raise ClientDisabled(reason)
        client = self.client(model)
        model = self.model(model)
        if client and has_example(client):
            try:
                ask_example(client, self.timeout)
            except TensorsRefused:  # by the model
                raise
            except BadRequest as error:  # nobody else has to change it
                hint = f" ({error.hint})" if error.hint else ""
                reason = f"its client refuses its own `example`: {error.message}{hint}"
                refusal = BadRequest(reason)
                refusal.model = error.model
                raise refusal from error
            return True
        signature = self.server.signature(model, timeout=self.timeout)
        try:
            self.server.infer(model, zeros(signature), timeout=self.timeout)
        except (DeadlineExceeded, ModelFailed, TensorsRefused):
            if known:
                raise
            return False
        return True

    def client(self, name: str) -> Client | None:
        """Return the client of this name; without one, any of the model of this name."""
        clients = dict(self.registry.clients)
        others = (one for one in clients.values() if one.served_by == name)
        return clients.get(self.registry.name(name)) or next(others, None)

    def model(self, name: str) -> str:
        """Return the model of a client of this name; the name itself where there is none."""
        client = self.registry.clients.get(self.registry.name(name))
        return client.served_by if client else name

    def has_model(self, name: str) -> bool:
        """Whether there is a model of its own for a name; a class may ask others alone, or none."""
        return self.model(name) in {state.name for state in self.states()}

    def is_ready(self, name: str) -> bool:
        """Whether the model of a name is ready, where it has one."""
        if not self.has_model(name) and self.registry.name(name) in self.registry.clients:
            return True
        return self.index is not None and self.model(name) in self.index.ready()

    def reasons(self) -> list[str]:
        """Return why the container cannot do its work, a sentence each; nothing where it can."""
        notice = self.notice()
        if notice.stopping:
            return ["the container is stopping"]
        if fault := notice.triton_fault or self._fault(notice):
            return [fault]
        now = self.clock()
        if now > self._listed_at + STALE_S:
            return [f"Triton was not asked for {now - self._listed_at:.0f} s"]
        reasons = [
            f"the required model {model!r} is not ready{self._why_not(model)}"
            for model in self.required
            if self.index and not self.is_ready(model)
        ]
        reasons = reasons or [
            f"the required model {model!r} does not answer all requests: {lost}"
            for model in self.required
            if (lost := self.maimed(self.model(model)))
        ]
        # What failed by itself comes before those that ask it.
        trials = sorted(self.trials.items(), key=lambda one: bool(one[1].part))
        return reasons or [
            f"the required model {model!r} does not answer: {reason}"
            for model, trial in trials
            if trial.required
            and (reason := trial.reason if trial.tried_in == notice.triton_starts else UNTRIED)
        ]

    def _why_not(self, model: str) -> str:
        """Return what is known of a model that is not ready, to be added to saying so."""
        own = self.model(model)
        its = "" if own == model else f": its model is {own!r}"
        return its + "".join(f": {s.why}" for s in self.states() if s.name == own and s.why)

    def states(self) -> list[ModelState]:
        """Return what Triton last said of its models."""
        return self.index.states if self.index else []

    def _fault(self, notice: Notice) -> str:
        if self.index is None or self.index.starts != notice.triton_starts:
            return "Triton was not asked yet"
        return self.index.fault

    def silent(self) -> bool:
        """Whether Triton said since it was started what it has, and says nothing any more."""
        notice = self.notice()
        return (
            not notice.triton_fault
            and self._listed_in == notice.triton_starts
            and bool(self._fault(notice))
        )

    def stuck(self, model: str) -> bool:
        """Whether a model answered since Triton was started, or before that, and does not now."""
        trial = self.trials.get(model)
        return (
            trial is not None
            and trial.silent
            # That it fails what is given to the process that it has lost is no news.
            and (trial.late or not self.maimed(self.model(model)))
            and trial.tried_in == self.notice().triton_starts
            and self._was_well(model)
        )

    def _was_well(self, model: str) -> bool:
        """Whether a model answered since Triton was started, or before that."""
        trial = self.trials.get(model)
        # It may have died before its first trial: then one more start tells.
        least = max(1, self.notice().triton_starts - 1)
        return trial is not None and trial.answered_in >= least

    def maimed(self, model: str) -> str:
        """Return why a model does not answer what Triton gives to some of its processes."""
        return self._losses.of(model, self.notice().triton_starts)

    def mendable(self) -> bool:
        """Whether a new start of Triton may help."""
        return self.silent() or any(
            self.stuck(model) or (self.maimed(self.model(model)) and self._was_well(model))
            for model in self.required
        )

    def refuse(self, model: str) -> None:
        """Say at once what a request to a model would find out by waiting.

        Raises:
            ModelUnavailable: there is nobody to answer it.

        """
        notice, index = self.notice(), self.index
        # What was found out before this start of Triton says nothing of it.
        known = index.fault if index and index.starts == notice.triton_starts else ""
        if fault := notice.triton_fault or known:
            raise ModelUnavailable(fault, hint="try again after Retry-After seconds")
        if self.stuck(model) and not self.trials[model].part:
            raise ModelUnavailable(
                f"the model {model!r} does not answer any more: {self.trials[model].reason}",
                hint="GET /health says more",
            )

    def report(self, model: str) -> dict[str, object] | None:
        """Return the last trial of a model as JSON; `None` where it is not tried."""
        trials = list(self.trials.items())
        required = (one for name, one in trials if one.required and self.model(name) == model)
        trial = next(required, None) or self.trials.get(model)
        if trial is None:
            return None
        age = round(self.clock() - trial.at, 1) if trial.at else None
        reason = trial.reason or self.maimed(model)
        return {"ok": not reason, "reason": reason, "age_s": age}
