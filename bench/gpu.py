"""What `--gpu` measures: the container on a GPU."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import onnxruntime

from bench.load import load, work
from bench.load.limit import Sample
from bench.measure import LEAST_WARM_S, say
from bench.servers.contenders import Contender
from bench.servers.processes import cpu_ms

LAST_CELL_S = 435
"""After the start of the program; nothing is measured later."""
DRIVER = Path("/proc/driver/nvidia/version")
LOOK_S = 1
GAUGE = re.compile(r"^nv_gpu_(\w+)\S* (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Kind:
    """What some callers ask in turn: a picture, a text of some tokens, or lists of some lengths."""

    name: str
    model: str
    callers: Sequence[int]
    tokens: int = work.TOKENS
    lengths: Sequence[int] = ()

    def bodies(self) -> list[Any]:
        one = work.body(self.model, tokens=self.tokens)
        return [{**one, "payload": [one["payload"]] * size} for size in self.lengths] or [one]


KINDS = (
    Kind("ResNet-50", "resnet", (1, 16, 64)),
    Kind("YOLOv5s", "yolov5", (1, 16, 64)),
    Kind("BERT, 9 tokens", "bert_base", (1, 16, 64)),
    Kind("BERT, 128 tokens", "bert_base", (16, 64), tokens=128),
    Kind("ResNet-50, lists of 1, 3 and 7", "resnet", (1,), lengths=(1, 3, 7)),
    Kind("ResNet-50, lists of 8", "resnet", (1,), lengths=(8,)),
    Kind("YOLOv5s, lists of 1, 3 and 7", "yolov5", (1,), lengths=(1, 3, 7)),
    Kind("YOLOv5s, lists of 8", "yolov5", (1,), lengths=(8,)),
)


@dataclass(frozen=True)
class Seen(Sample):
    """A measurement of so many pictures or texts a second.

    `memory_mb` is what all servers that run have on the GPU.
    """

    busy: float | None
    """The GPU's share of the time, of 1."""


Found = dict[tuple[str, str, int], list[Seen]]
"""What was seen in each round, by server, kind and number of callers."""


def report(servers: Sequence[Contender], options: argparse.Namespace) -> Iterator[str]:
    """Measure until a moment on the monotonic clock, `options.until`; yield the tables' lines."""
    yield from describe(servers, options.models)
    cells = [
        (kind, callers)
        for kind in KINDS
        for callers in kind.callers
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
    yield f"Rounds: {min(map(len, found.values()), default=0)}"


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
    """What `/metrics` says of the GPU while callers ask."""

    port: int
    busy: list[float] = field(default_factory=list)
    memory_mb: float = 0.0
    _looked_at: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Read the gauges, once in `LOOK_S`."""
        if time.monotonic() < self._looked_at + LOOK_S:
            return
        self._looked_at = time.monotonic()
        gauges = GAUGE.findall(read(self.port, "/metrics").decode())
        self.busy += [float(value) for name, value in gauges if name == "utilization"]
        used = sum(float(value) for name, value in gauges if name == "memory_used_bytes")
        self.memory_mb = max(self.memory_mb, used / 1e6)


def measure(server: Contender, kind: Kind, callers: int, seconds: float) -> Seen:
    """Let callers ask a server from several processes, and watch it.

    Raises:
        LoadError: an answer was not 200, or none came.

    """
    asked = [server.request(one) for one in kind.bodies()]
    watch, before = Watch(server.port), cpu_ms(server.pid)
    loop = load.ask_from_processes(server.port, asked, callers, seconds, LEAST_WARM_S, watch.look)
    used = cpu_ms(server.pid) - before
    return Seen(
        loop.per_second * mean(kind.lengths or [1]),
        loop.percentile(0.5),
        loop.percentile(0.99),
        {name: spent / loop.answers for name, spent in used.items()},
        watch.memory_mb,
        mean(watch.busy) if watch.busy else None,
    )


def table(found: Found) -> Iterator[str]:
    """Yield medians over the rounds."""
    names = ("a second", "p50/p99 ms", "CPU-ms of an answer", "GPU busy", "GPU MB")
    yield f"\n| | asked for | callers | {' | '.join(names)} |"
    yield "|---|---|---|---|---|---|---|---|"
    for (server, name, callers), seen in found.items():
        spent = {
            process: median(one.cpu_ms.get(process, 0) for one in seen)
            for process in sorted(seen[-1].cpu_ms)
        }
        busy = [one.busy for one in seen if one.busy is not None]
        cells = [
            f"{median(one.per_second for one in seen):.1f}",
            f"{median(one.p50 for one in seen):.1f}/{median(one.p99 for one in seen):.1f}",
            ", ".join(f"{process} {ms:.2f}" for process, ms in spent.items() if ms >= 0.01),
            f"{median(busy):.0%}" if busy else "–",
            f"{max(one.memory_mb for one in seen):.0f}" if busy else "–",
        ]
        yield f"| {server} | {name} | {callers} | {' | '.join(cells)} |"
