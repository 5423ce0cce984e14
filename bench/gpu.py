"""What `--gpu` measures: the container on a GPU, beside its goals."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import onnxruntime

from bench.load import load, work
from bench.load.limit import Sample
from bench.load.load import LEAST_WARM_S, say
from bench.servers.contenders import Contender
from bench.servers.processes import cpu_ms

LAST_CELL_S = 435
"""After the start of the program; nothing is measured later."""
DRIVER = Path("/proc/driver/nvidia/version")
FIRST_MINUTE_S, LOOK_AT_GPU_S = 60, 1
GAUGE = re.compile(r"^nv_gpu_(\w+)\S* (\S+)$", re.MULTILINE)
HTTP_OFFSET = 1  # Triton's port behind the server's own
LONGEST_GOAL, LISTS_GOAL = 10, 0.8
"""Of the median run, and of the pictures in lists of eight."""


@dataclass(frozen=True)
class Kind:
    """What is asked in turn: a picture, a text of some tokens, or lists of some lengths.

    `goals` are answers a second by the number of callers.
    """

    name: str
    model: str
    goals: Mapping[int, int | None]
    tokens: int = work.TOKENS
    lengths: Sequence[int] = ()

    def bodies(self) -> list[Any]:
        one = work.body(self.model, tokens=self.tokens)
        return [{**one, "payload": [one["payload"]] * size} for size in self.lengths] or [one]


UNEQUAL, EIGHT = "lists of 1, 3 and 7", "lists of 8"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("ResNet-50", "resnet", {1: None, 16: 900, 64: 1200}),
        Kind("YOLOv5s", "yolov5", {1: None, 16: 500, 64: 950}),
        Kind("BERT, 9 tokens", "bert_base", {1: None, 16: 1350, 64: 3000}),
        Kind("BERT, 128 tokens", "bert_base", {16: None, 64: 2000}, tokens=128),
        Kind(f"ResNet-50, {UNEQUAL}", "resnet", {1: None}, lengths=(1, 3, 7)),
        Kind(f"ResNet-50, {EIGHT}", "resnet", {1: None}, lengths=(8,)),
        Kind(f"YOLOv5s, {UNEQUAL}", "yolov5", {1: None}, lengths=(1, 3, 7)),
        Kind(f"YOLOv5s, {EIGHT}", "yolov5", {1: None}, lengths=(8,)),
    )
}


@dataclass(frozen=True)
class Seen(Sample):
    """A measurement of so many pictures or texts a second.

    `memory_mb` is what all servers that run have on the GPU.
    """

    busy: float | None
    """The GPU's share of the time, of 1."""
    longest: float
    """Run, as a multiple of the median one; 0 within the first minute."""


Found = dict[tuple[str, str, int], list[Seen]]
"""What was seen in each round, by server, kind and number of callers."""


def report(servers: Sequence[Contender], options: argparse.Namespace) -> Iterator[str]:
    """Measure until a moment on the monotonic clock, `options.until`; yield the tables' lines."""
    yield from describe(servers, options.models)
    cells = [
        (kind, callers)
        for kind in KINDS.values()
        for callers in kind.goals
        if kind.model in options.models and callers in options.callers
    ]
    found = Found()
    for number, (kind, callers), server in product(range(options.rounds), cells, servers):
        if time.monotonic() > options.until:
            break
        what = f"round {number + 1}, {server.name}, {kind.name}, {callers} callers"
        try:
            seen = measure(server, kind, callers, options.seconds)
        except (load.LoadError, OSError) as error:
            say(f"{what}: {error}")
            continue
        found.setdefault((server.name, kind.name, callers), []).append(seen)
        say(f"{what}: {seen.per_second:.1f}/s, p50 {seen.p50:.1f}, p99 {seen.p99:.1f} ms")
    yield from table(found)
    yield from judge(found)


def find_missing() -> str:
    """Return what a GPU's measurement lacks here; nothing where all is there."""
    if not DRIVER.exists():
        return f"no GPU here (there is no {DRIVER})"
    providers = onnxruntime.get_available_providers()
    wanted = "CUDAExecutionProvider"
    return "" if wanted in providers else f"this ONNX Runtime has no {wanted}, only {providers}"


def describe(servers: Sequence[Contender], wanted: Sequence[str]) -> Iterator[str]:
    """Yield what is measured: the GPU, the cores, and what each server says that runs a model."""
    if DRIVER.exists():
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv"]
        yield subprocess.run(query, capture_output=True, encoding="utf-8", check=False).stdout
    yield f"{os.cpu_count()} cores"
    for server, model in product(servers, wanted):
        said = json.loads(read(server.port, f"/models/{model}"))
        runs = (str(said.get(name)) for name in ("engine", "precision", "engine_reason"))
        yield f"{server.name}, {model}: {', '.join(runs)}"


def read(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return bytes(answer.read())


@dataclass
class Watch:
    """What a model's runs and the GPU do while callers ask."""

    port: int
    model: str
    runs: list[tuple[int, float]] = field(default_factory=list)
    """For each look how many runs have ended since the last one, and their milliseconds."""
    busy: list[float] = field(default_factory=list)
    memory_mb: float = 0.0

    def __post_init__(self) -> None:
        self._ended, self._gpu_at = self._read_runs(), time.monotonic()

    def look(self) -> None:
        (count, ms), before = self._read_runs(), self._ended
        if count > before[0]:
            self.runs.append((count - before[0], ms - before[1]))
            self._ended = count, ms
        if time.monotonic() > self._gpu_at + LOOK_AT_GPU_S:
            self._gpu_at = time.monotonic()
            self._look_at_gpu()

    def _read_runs(self) -> tuple[int, float]:
        said = read(self.port + HTTP_OFFSET, f"/v2/models/{self.model}/stats")
        sizes = json.loads(said)["model_stats"][0].get("batch_stats", ())
        each = [one["compute_infer"] for one in sizes]
        return sum(one["count"] for one in each), sum(one["ns"] for one in each) / 1e6

    def _look_at_gpu(self) -> None:
        gauges = GAUGE.findall(read(self.port, "/metrics").decode())
        self.busy += [float(value) for name, value in gauges if name == "utilization"]
        used = sum(float(value) for name, value in gauges if name == "memory_used_bytes")
        self.memory_mb = max(self.memory_mb, used / 1e6)

    def longest(self) -> float:
        """Return the longest run as a multiple of the median one; 0 where none was seen.

        Where several ended between two looks, one of them may have taken all that the others, with
        the median each, leave of their time.
        """
        if not self.runs:
            return 0.0
        usual = median(ms / count for count, ms in self.runs for _ in range(count))
        return max(ms - (count - 1) * usual for count, ms in self.runs) / usual


def measure(server: Contender, kind: Kind, callers: int, seconds: float) -> Seen:
    """Let callers ask a server from several processes, and watch it.

    Raises:
        LoadError: an answer was not 200, or none came.

    """
    asked = [server.request(one) for one in kind.bodies()]
    is_late = time.monotonic() - server.since > FIRST_MINUTE_S
    watch, before = Watch(server.port, kind.model), cpu_ms(server.pid)
    loop = load.ask_from_processes(server.port, asked, callers, seconds, LEAST_WARM_S, watch.look)
    used = cpu_ms(server.pid) - before
    return Seen(
        loop.per_second * mean(kind.lengths or [1]),
        loop.percentile(0.5),
        loop.percentile(0.99),
        {name: spent / loop.answers for name, spent in used.items()},
        watch.memory_mb,
        mean(watch.busy) if watch.busy else None,
        watch.longest() if is_late else 0.0,
    )


def table(found: Found) -> Iterator[str]:
    """Yield medians over the rounds, and goals beside them."""
    names = ("a second", "goal", "p50/p99 ms", "CPU-ms of an answer", "GPU busy", "GPU MB")
    yield f"\n| | asked for | callers | {' | '.join(names)} | longest run / median |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (server, name, callers), seen in found.items():
        goal, speed = KINDS[name].goals[callers], median(one.per_second for one in seen)
        spent = {
            process: median(one.cpu_ms.get(process, 0) for one in seen)
            for process in sorted(seen[-1].cpu_ms)
        }
        busy = [one.busy for one in seen if one.busy is not None]
        cells = [
            f"{speed:.1f}",
            f"{goal}: {say_met(speed >= goal)}" if goal else "–",
            f"{median(one.p50 for one in seen):.1f}/{median(one.p99 for one in seen):.1f}",
            ", ".join(f"{process} {ms:.2f}" for process, ms in spent.items() if ms >= 0.01),
            f"{median(busy):.0%}" if busy else "–",
            f"{max(one.memory_mb for one in seen):.0f}" if busy else "–",
            f"{longest:.1f}" if (longest := max(one.longest for one in seen)) else "–",
        ]
        yield f"| {server} | {name} | {callers} | {' | '.join(cells)} |"


def judge(found: Found) -> Iterator[str]:
    """Yield whether lists of unequal lengths are as fast as equal ones, and whether runs stall."""
    yield ""
    for (server, name, callers), seen in found.items():
        equal = found.get((server, name.replace(UNEQUAL, EIGHT), callers))
        if UNEQUAL in name and equal:
            pairs = zip(seen, equal, strict=False)
            share = median(one.per_second / two.per_second for one, two in pairs)
            goal = f"goal: at least {LISTS_GOAL}: {say_met(share >= LISTS_GOAL)}"
            yield f"{server}, {name}: {share:.2f} of the pictures in {EIGHT} ({goal})"
    if longest := max((one.longest for seen in found.values() for one in seen), default=0.0):
        goal = f"goal: at most {LONGEST_GOAL}: {say_met(longest <= LONGEST_GOAL)}"
        yield f"Longest run after the first minute: {longest:.1f} × the median ({goal})"
    yield f"Rounds: {min(map(len, found.values()), default=0)}"


def say_met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"
