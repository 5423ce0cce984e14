"""How the runs of a model share the cores of a CPU: in turn, side by side, or joined.

A lone request has all cores. Under load a run has its share of them: none of its threads waits for
another, which may have lost its core to a web worker that decodes a picture. So a model is opened
twice where that pays, and requests share runs where a row costs less then; `backends.measure_runs`
finds out.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

from backends.batching.item import ByRows
from backends.batching.run_items import rows_of, run_items
from backends.engine_choice import ENGINE, ONNXRUNTIME, OPENVINO
from backends.machine.allocator import resident
from backends.machine.cpu_share import CORES_OF_A_RUN, threads_of_an_instance, usable_cpus
from backends.measure_runs import TOGETHER, Busy, MeasuredRuns, measure_runs
from backends.model_config import (
    DYNAMIC,
    DYNAMIC_BATCHING,
    count_of,
    dims_of,
    has_operator,
    instance_count,
    max_batch_size,
    read_parameters,
)
from backends.onnxruntime.session import SCALED_BY_THREAD, OnnxSession
from backends.onnxruntime.session_settings import own_settings
from backends.openvino.session import STREAMS, THREADS, OpenVinoSession, properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import Item, Tensors
    from backends.engine_choice import EngineChoice
    from backends.onnxruntime.session_settings import SessionSettings

MOST_AT_ONCE = 8
"""Runs of one instance: each needs memory for what it computes, and the more there are, the longer
no request is answered where all began together."""

SMALL = 128 * 2**20
"""Bytes of a model up to which it may be opened twice."""


@dataclass(frozen=True)
class Schedule:
    """How an instance runs a model: as `MeasuredRuns` has it, with `threads` in all.

    With `in_turn` 0 no run has more than its share of them. Where requests are not `joined`, each
    has a run of its own. `is_guessed` where nothing was measured, nor said.
    """

    threads: int
    at_once: int = 1
    in_turn: int = 1
    joined: bool = True
    is_guessed: bool = False


def schedule_runs(
    config: Mapping[str, Any], runs: MeasuredRuns | None, size: int, cpus: int | None = None
) -> Schedule:
    """Return how an instance with a configuration runs a model, whose files have `size` bytes.

    What the configuration says is done: threads, streams, several instances, Triton's batches of a
    preferred size. `runs` decides on the rest. Where nothing was measured, on these cores, a small
    model is opened twice, and only what has no fixed size, such as texts, shares runs.

    Raises ModelConfigError: a number of threads is none.
    """
    cpus = cpus or usable_cpus()
    texts = read_parameters(config)
    is_read = texts.get(ENGINE) != ONNXRUNTIME and not own_settings(config)
    streams, threads = (count_of(config, key) if is_read else 0 for key in (STREAMS, THREADS))
    threads = threads or count_of(config, "intra_op_thread_count")
    count = instance_count(config)
    is_own = any(key.startswith("session.") for key in texts)
    if threads or streams or is_own or count > 1 or "sequence_batching" in config:
        return Schedule(threads or threads_of_an_instance(count, cpus), streams or 1, in_turn=0)
    is_fixed = all(DYNAMIC not in dims_of(one) for one in config.get("input") or [])
    joined = runs.joined if runs else not is_fixed
    joined |= wants_batches(config)
    few = max(1, cpus // CORES_OF_A_RUN)
    if size > SMALL:  # opened once: its runs share the weights
        return Schedule(cpus, few, in_turn=0, joined=joined, is_guessed=few == 1 and not runs)
    if runs and runs.cpus == cpus:
        return Schedule(cpus, runs.at_once, runs.in_turn, joined)
    at_once = few if joined else min(cpus, MOST_AT_ONCE)
    return Schedule(cpus, at_once, joined=joined, is_guessed=True)


def wants_batches(config: Mapping[str, Any]) -> bool:
    """Whether a configuration has a smaller preferred size of batches, or a delay for them.

    Triton hands over `dynamic_batching { }` with the largest batch as the preferred one.
    """
    batching = config.get(DYNAMIC_BATCHING) or {}
    sizes = batching.get("preferred_batch_size") or []
    is_said = sizes not in ([], [max_batch_size(config)])
    return is_said or bool(int(batching.get("max_queue_delay_microseconds") or 0))


class ScheduledSession:
    """A model that is opened for runs in turn, and once more for runs side by side.

    `open_session` opens it for so many threads in all, and runs at a time.
    """

    on_cpu = True

    def __init__(self, open_session: Callable[[int, int], Any], schedule: Schedule) -> None:
        self.schedule, self.at_once = schedule, schedule.at_once
        self._in_turn = self._beside = open_session(schedule.threads, schedule.at_once)
        self._megabytes = 0
        if schedule.at_once > 1 and schedule.in_turn:
            before = resident()
            try:
                self._in_turn = open_session(schedule.threads, 1)
            except Exception:
                self._beside.close()
                raise
            self._megabytes = max(0, resident() - before) >> 20
        own = self._beside.by_rows
        self.by_rows = own and ByRows(own.outputs, self.run)
        self._here = self._running_beside = self.begun = 0
        self._is_taken = self.is_closing = False
        one_changes = Lock()
        self._changed, self._left = Condition(one_changes), Condition(one_changes)

    @property
    def joined(self) -> bool:
        return self.schedule.joined

    def run(
        self, inputs: Tensors, outputs: Sequence[str], *rows: Mapping[str, Any]
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs; raise what the engine raises."""
        with self._session() as session:
            answers: dict[str, NDArray[Any]] = session.run(inputs, outputs, *rows)
            return answers

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with self._changed:
            self._here += 1
            self.begun += 1
            is_few = self._here <= self.schedule.in_turn
            while is_few and self._is_taken:
                self._changed.wait()
            self._is_taken |= is_few
            self._running_beside += not is_few
        try:
            yield self._in_turn if is_few else self._beside
        finally:
            with self._changed:
                self._here -= 1
                self._running_beside -= not is_few
                self._is_taken &= not is_few
                self._changed.notify()
                self._left.notify()

    def measure(self, item: Item, max_batch_size: int) -> MeasuredRuns:
        """Return how runs share the cores best, by runs of such requests.

        Raises Busy: others need the cores meanwhile. Raises Exception: what the engine raises.
        """

        def run(session: Any, requests: int) -> None:
            if self.begun > begun or self.is_closing:
                raise Busy
            came = run_items(
                [item] * requests,
                session.run,
                max_batch_size=max_batch_size,
                by_rows=session.by_rows,
            )
            for error in (one for one in came if isinstance(one, Exception)):
                raise error

        begun = self.begun
        rows = rows_of(item, max_batch_size) if max_batch_size else 1
        if rows * TOGETHER > max_batch_size >= TOGETHER:
            raise ValueError(f"{rows} rows are too many to be joined.")
        measured = measure_runs(
            partial(run, self._in_turn),
            partial(run, self._beside),
            self.at_once,
            self.schedule.threads,
            max_batch_size // max(1, rows),
        )
        return replace(measured, megabytes=self._megabytes)

    def follow(self, schedule: Schedule) -> None:
        """Run from now on as it was measured; free what was opened for nothing."""
        with self._changed:
            if schedule.at_once > 1:
                self.schedule = schedule
                return
            self.schedule = replace(schedule, in_turn=self.at_once)
            self.at_once = 1
            self._left.wait_for(lambda: not self._running_beside)
            if self._beside is not self._in_turn:
                self._beside.close()
                self._beside = self._in_turn

    def close(self) -> None:
        for session in {id(one): one for one in (self._in_turn, self._beside)}.values():
            session.close()


def open_on_cpu(
    file: Path,
    found: EngineChoice,
    schedule: Schedule,
    settings: SessionSettings,
    shared: Path | None = None,
) -> ScheduledSession:
    """Open a model on the engine that was found best; `settings` are for ONNX Runtime.

    `shared` is a folder for what the instances of one container share, if any.

    Raises ModelConfigError: the engine cannot open it.
    """

    def open_session(threads: int, at_once: int) -> OpenVinoSession | OnnxSession:
        if found.engine == OPENVINO:
            return OpenVinoSession(file, properties(found.precision, threads, at_once), shared)
        # Those who call compute too; a session's own threads serve all of them.
        share = replace(settings, intra_op_threads=max(1, threads - at_once + 1))
        return OnnxSession(file, share)

    if found.engine != OPENVINO and has_operator(file, SCALED_BY_THREAD):
        schedule = replace(schedule, in_turn=0, is_guessed=False)
    return ScheduledSession(open_session, schedule)
