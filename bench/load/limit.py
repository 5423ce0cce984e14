"""The in-process limit: the whole work in one program, without HTTP.

usage: python -m bench.load.limit REPOSITORY MODEL, then one JSON object a line on standard input
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, cast

from bench.load import work
from bench.servers.sessions import Engine, open_session
from container.programs.malloc import ALLOCATOR

BATCHES = {"resnet": (1, 4, 8), "yolov5": (1,), "bert_base": (1, 8, 16)}


@dataclass(frozen=True)
class Way:
    """How the work is spread over the cores.

    Args:
        threads: that do the whole work, each for itself.
        intra_op_threads: of one run in the engine.
        batch: payloads that a thread runs at once.
        engine: that runs the model.
        streams: runs at a time that OpenVINO has threads for; the threads share them.

    """

    threads: int
    intra_op_threads: int
    batch: int = 1
    engine: Engine = Engine.ONNXRUNTIME
    streams: int = 1

    def __str__(self) -> str:
        batch = f", batches of {self.batch}" if self.batch > 1 else ""
        each = f"{self.intra_op_threads} intra-op"
        if self.engine is not Engine.ONNXRUNTIME:
            each = f"{self.streams} streams of {self.intra_op_threads}"
        return f"{self.engine}, {self.threads} threads × {each}{batch}"

    @property
    def in_hand(self) -> int:
        """How many payloads are worked on at a time."""
        return self.threads * self.batch


def divide_cores(engine: Engine, cpus: int, width: int, batch: int = 1) -> Way:
    """Return the way in which each run has so many of the cores."""
    count = cpus // width
    streams = 1 if engine is Engine.ONNXRUNTIME else count
    return Way(count, width, batch, engine=engine, streams=streams)


def ways_of(engine: Engine, cpus: int, batch: int) -> list[Way]:
    """Return the ways to try: a run on each core, and each run on all cores."""
    each, whole = divide_cores(engine, cpus, 1, batch), divide_cores(engine, cpus, cpus, batch)
    # With OpenVINO a second thread can prepare while the payloads of the first one run.
    more = [] if engine is Engine.ONNXRUNTIME else [replace(whole, threads=2)]
    more += [replace(each, threads=cpus + 1)] if batch == 1 else []
    return [*dict.fromkeys([each, whole, *more])]


@dataclass(frozen=True)
class Sample:
    """One contender under one load; times in milliseconds of one request, or of a limit's batch."""

    per_second: float
    p50: float
    p99: float
    cpu_ms: dict[str, float]
    """By process."""
    memory_mb: float


class Limit(subprocess.Popen[str]):
    """The program, kept for many measurements; it sleeps between them."""

    def __init__(self, repository: Path, modelname: str) -> None:
        super().__init__(
            [sys.executable, "-m", "bench.load.limit", str(repository), modelname],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            cwd=work.PROJECT,
            # Its own best settings: the allocator's are the server's.
            env={**os.environ, **ALLOCATOR, "TRANSFORMERS_VERBOSITY": "error"},
        )

    def measure(self, way: Way, seconds: float, payload: Any) -> Sample:
        """Work for some seconds, over and over on the same payload."""
        return Sample(**self._ask(way=asdict(way), seconds=seconds, payload=payload))

    def answer(self, payload: Any, engine: Engine = Engine.ONNXRUNTIME) -> list[Any]:
        """Return the right answer."""
        return cast("list[Any]", self._ask(answer=payload, engine=engine))

    def _ask(self, **command: Any) -> Any:
        if not self.stdin or not self.stdout:
            raise RuntimeError("the limit has no pipes")
        self.stdin.write(json.dumps(command) + "\n")
        self.stdin.flush()
        if not (line := self.stdout.readline()):
            raise RuntimeError(f"the in-process limit ended with {self.wait()}")
        return json.loads(line)


def best_ways(
    limit: Limit,
    model: str,
    payload: Any,
    cpus: int,
    loads: Sequence[int],
    seconds: float,
    engines: Sequence[Engine],
) -> dict[int, Way]:
    """Measure the ways in which the limit can work, and return the best one for each load.

    For one caller that is the way with the shortest time to an answer; for several, the one with
    the most answers that has no more requests in hand than there are callers.
    """

    @cache
    def measured(way: Way) -> list[Sample]:
        return [limit.measure(way, seconds, payload) for _ in range(2)]

    found: dict[int, Way] = {}
    batches = BATCHES[model]
    for callers in loads:
        sizes = sorted({*batches, max(1, callers // cpus), min(callers, max(batches))})
        ways = [
            way
            for engine, size in product(engines, sizes)
            for way in ways_of(engine, cpus, size)
            if way.in_hand <= callers
        ]
        if callers == 1:
            found[1] = min(ways, key=lambda way: min(one.p50 for one in measured(way)))
        else:
            fastest = max(ways, key=lambda way: max(one.per_second for one in measured(way)))
            found[callers] = fastest
    return found


def main(repository: str, modelname: str) -> None:
    """Obey."""
    kind = work.WORKS[modelname](Path(repository))

    @cache
    def session(
        engine: Engine,
        threads: int,
        streams: int,
        number: int,  # noqa: ARG001  sessions of several numbers are several
    ) -> Any:
        how = partial(open_session, engine=engine, threads=threads, streams=streams)
        few = kind.file.resolve().with_suffix(work.FEW)
        if isinstance(kind, work.Bert) and few.exists():
            return work.FewRows(how(few), kind.mask)
        return how(kind.file)

    def sessions(way: Way) -> list[Any]:
        """Return one for each thread: in ONNX Runtime, runs on several cores share none."""
        shared = way.engine is not Engine.ONNXRUNTIME or way.intra_op_threads == 1
        wanted = way.engine, way.intra_op_threads, way.streams
        return [session(*wanted, 0 if shared else number) for number in range(way.threads)]

    for line in sys.stdin:
        command = json.loads(line)
        if "answer" in command:
            way = Way(1, 1, engine=Engine(command["engine"]))
            reply: Any = work.answer_batch(kind, sessions(way)[0], [command["answer"]])[0]
        else:
            way = Way(**{**command["way"], "engine": Engine(command["way"]["engine"])})
            figures = run_work(kind, sessions(way), way, command["seconds"], command["payload"])
            reply = asdict(figures)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def work_over_and_over(
    kind: work.Work, payloads: list[Any], seconds: float, session: Any
) -> tuple[list[float], float]:
    """Do the whole work until the time is up; return how long each took, and all of them."""
    times: list[float] = []
    began = before = time.perf_counter()
    while before < began + seconds:
        work.answer_batch(kind, session, payloads)
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times, before - began


def run_work(
    kind: work.Work, sessions: list[Any], way: Way, seconds: float, payload: Any
) -> Sample:
    payloads = [payload] * way.batch
    for session in {id(one): one for one in sessions}.values():
        work.answer_batch(kind, session, payloads)  # OpenVINO prepares itself for each new shape
    cpu = time.process_time()
    with ThreadPoolExecutor(len(sessions)) as threads:
        work_of_one = partial(work_over_and_over, kind, payloads, seconds)
        done_by = list(threads.map(work_of_one, sessions))
    cpu = time.process_time() - cpu
    times = sorted(taken for its, _ in done_by for taken in its)
    done = len(times) * way.batch
    return Sample(
        # Each thread by its own time: they do not end in the same moment.
        per_second=sum(len(its) * way.batch / took for its, took in done_by),
        p50=times[len(times) // 2] * 1e3,
        p99=times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3,
        cpu_ms={"limit": cpu / done * 1e3},
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
