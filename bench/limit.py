"""The in-process limit: the whole work in one program, without HTTP. Commanded by `Limit`.

usage: python -m bench.limit REPOSITORY MODEL, then one JSON object a line on standard input
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from bench import work
from bench.processes import memory_mb
from container.programs import ALLOCATOR


@dataclass(frozen=True)
class Way:
    """How the work is spread over the cores.

    Args:
        threads: that do the whole work, each for itself.
        intra_op_threads: of ONNX Runtime, shared by them.
        batch: payloads that a thread runs at once.
        spinning: whether ONNX Runtime's threads look for work in a loop before they sleep.

    """

    threads: int
    intra_op_threads: int
    batch: int = 1
    spinning: bool = False

    def __str__(self) -> str:
        spinning = " spinning" if self.spinning else ""
        batch = f", batches of {self.batch}" if self.batch > 1 else ""
        return f"{self.threads} threads × {self.intra_op_threads} intra-op{spinning}{batch}"


@dataclass(frozen=True)
class Figures:
    """What one measurement gave; times in milliseconds of one payload, or of one batch.

    `onnxruntime_ms` is the processor time of a payload inside of ONNX Runtime; it is known where
    that has no threads of its own.
    """

    per_second: float
    p50: float
    p99: float
    cpu_ms: float
    onnxruntime_ms: float
    memory_mb: float


class Limit:
    """The program, kept for many measurements; it sleeps between them."""

    def __init__(self, repository: Path, modelname: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.limit", str(repository), modelname],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=work.PROJECT,
            # Its own best settings: the allocator's are the server's.
            env={**os.environ, **ALLOCATOR, "TRANSFORMERS_VERBOSITY": "error"},
        )

    def measure(self, way: Way, seconds: float, payload: Any) -> Figures:
        """Work for some seconds, over and over on the same payload."""
        return Figures(**self._ask(way=asdict(way), seconds=seconds, payload=payload))

    def answer(self, payload: Any) -> list[Any]:
        """Return the right answer."""
        return cast("list[Any]", self._ask(answer=payload))

    def stop(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()

    def _ask(self, **command: Any) -> Any:
        if not self.process.stdin or not self.process.stdout:
            raise RuntimeError("the limit has no pipes")
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the in-process limit ended with {self.process.wait()}")
        return json.loads(line)


def main(repository: str, modelname: str) -> None:
    """Obey."""
    kind = work.WORKS[modelname](Path(repository))

    def opened(threads: int, *, spinning: bool = False) -> Any:
        if isinstance(kind, work.Bert):
            few = kind.file.resolve().with_suffix(work.FEW)
            return work.FewRows(work.session(few, threads, spinning=spinning), kind.mask)
        return work.session(kind.file, threads, spinning=spinning)

    @cache
    def all_opened(way: Way) -> list[Any]:
        """Return a session for each thread: one that has threads of its own shares none."""
        if way.intra_op_threads == 1:
            return [single()] * way.threads
        return [opened(way.intra_op_threads, spinning=way.spinning) for _ in range(way.threads)]

    @cache
    def single() -> Any:
        return opened(1)

    for line in sys.stdin:
        command = json.loads(line)
        if "answer" in command:
            reply: Any = work.answered(kind, single(), [command["answer"]])[0]
        else:
            way = Way(**command["way"])
            some = all_opened(replace(way, batch=1))
            reply = asdict(worked(kind, some, way, command["seconds"], command["payload"]))
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


class Timed:
    """A session that counts the processor time of the threads that run it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.seconds = 0.0

    def run(self, outputs: list[str], inputs: work.Tensors) -> Any:
        before = time.thread_time()
        answer = self._session.run(outputs, inputs)
        self.seconds += time.thread_time() - before
        return answer


class Worker(threading.Thread):
    """One of the limit's threads: the whole work, over and over, until the time is up."""

    def __init__(self, kind: work.Work, session: Any, payloads: list[Any], seconds: float) -> None:
        super().__init__()
        self.timed = Timed(session)
        self.times: list[float] = []
        self.took = 0.0
        self._job = (kind, payloads, seconds)

    def run(self) -> None:
        kind, payloads, seconds = self._job
        began = before = time.perf_counter()
        while before < began + seconds:
            work.answered(kind, self.timed, payloads)
            now = time.perf_counter()
            self.times.append(now - before)
            before = now
        self.took = before - began


def worked(
    kind: work.Work, sessions: Sequence[Any], way: Way, seconds: float, payload: Any
) -> Figures:
    workers = [Worker(kind, session, [payload] * way.batch, seconds) for session in sessions]
    cpu = time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    cpu = time.process_time() - cpu
    times = sorted(taken for worker in workers for taken in worker.times)
    done = len(times) * way.batch
    return Figures(
        # Each thread by its own time: they do not end in the same moment.
        per_second=sum(len(one.times) * way.batch / one.took for one in workers),
        p50=times[len(times) // 2] * 1e3,
        p99=times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3,
        cpu_ms=cpu / done * 1e3,
        onnxruntime_ms=sum(one.timed.seconds for one in workers) / done * 1e3,
        memory_mb=memory_mb(os.getpid())[0][1]["peak"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
