"""How settings do on a machine with more cores: instances of the models, and web workers.

usage: python -m bench.scale [--models MODEL ...] [--callers N ...] [--settings SETTING ...]

A SETTING is made of words: `count=8` is the number of instances of the asked model, every other is
an environment variable of the server. "default" changes nothing. Servers of all settings run side
by side and are asked in turn, beside the in-process limit. The table is printed on standard output.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from bench import load, models, work
from bench.contenders import Contender, this_server
from bench.limit import Limit, Way
from bench.measure import say
from bench.processes import cpu_ms

DEFAULT = "default"
LIMIT = "in-process limit"
# answers a second, p50 and p99 in ms, CPU-ms of an answer
Figures = tuple[float, float, float, float]


def main(argv: list[str]) -> int:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--models", nargs="*", choices=work.WORKS, default=list(work.WORKS))
    parser.add_argument("--callers", nargs="*", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cache", type=Path, default=work.PROJECT / ".cache" / "bench")
    parser.add_argument("--settings", nargs="+", default=[DEFAULT])
    options = parser.parse_args(argv)
    cache = options.cache.absolute()
    (cache / "run").mkdir(parents=True, exist_ok=True)
    repository = models.lay_out(cache)
    for model in options.models:
        ways = best_ways(repository, model, options)
        with ExitStack() as stack:
            servers = [
                with_setting(setting, number, repository, cache, model)
                for number, setting in enumerate(options.settings)
            ]
            for server in servers:
                stack.callback(server.stop)
                server.start()
            sys.stdout.write(table(model, compare(model, repository, servers, ways, options)))
            sys.stdout.flush()
    return 0


def with_setting(setting: str, number: int, repository: Path, cache: Path, model: str) -> Contender:
    """Return this server with a repository of the asked model alone, not started yet."""
    own = cache / "scale" / str(number)
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(repository / model, own / model, symlinks=True)
    server = this_server(own, cache / "run", model, setting)
    variables = dict(word.split("=", 1) for word in setting.split() if "=" in word)
    if count := variables.pop("count", ""):
        config = own / model / "config.pbtxt"
        text, changed = re.subn(r"count: \d+", f"count: {count}", config.read_text())
        if not changed:
            raise SystemExit(f"{config} says no count that could be {count}")
        config.write_text(text)
    server.environment = {**server.environment, **variables}
    return server


def best_ways(repository: Path, model: str, options: argparse.Namespace) -> dict[int, Way]:
    """Return for each number of callers the limit's best way with no more payloads in hand."""
    cpus = len(os.sched_getaffinity(0))
    payload, lone = work.payload(model), Way(1, cpus)
    batches = {"resnet": (1, 8), "yolov5": (1,), "bert_base": (1, 4, 8, 16)}[model]
    widths = [width for width in (1, 2, 4, 8, 16, 32, 64) if width <= cpus]
    split = [Way(cpus // width, width, batch) for width, batch in product(widths, batches)]
    limit = Limit(repository, model)
    try:
        speeds = {
            way: limit.measure(way, options.seconds / 2, payload).per_second
            for way in dict.fromkeys([lone, *split])
            if way.threads * way.batch <= max(options.callers)
        }
    finally:
        limit.stop()
    for way, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        say(f"{model}, {way}: {speed:.1f}/s")
    return {
        callers: max(
            (way for way in speeds if way.threads * way.batch <= callers), key=speeds.__getitem__
        )
        for callers in options.callers
    }


def compare(
    model: str,
    repository: Path,
    servers: list[Contender],
    ways: dict[int, Way],
    options: argparse.Namespace,
) -> dict[tuple[str, int], list[Figures]]:
    """Return the figures of the limit and of every server, by callers."""
    payload = work.payload(model)
    limit = Limit(repository, model)
    found: dict[tuple[str, int], list[Figures]] = {}
    try:
        right = limit.answer(payload)
        for server in servers:
            server.wait(payload, model, right)
        for _, callers in product(range(options.rounds), options.callers):
            came = limit.measure(ways[callers], options.seconds, payload)
            one = (came.per_second, came.p50, came.p99, came.cpu_ms)
            found.setdefault((f"{LIMIT}, {ways[callers]}", callers), []).append(one)
            for server in servers:
                one = asked(server, payload, callers, options.seconds)
                say(f"{model}, {callers} callers, {server.name}: {one[0]:.1f}/s")
                found.setdefault((server.name, callers), []).append(one)
    finally:
        limit.stop()
    return found


def asked(server: Contender, payload: Any, callers: int, seconds: float) -> Figures:
    """Ask one server, in a closed loop."""
    before = cpu_ms(server.pid)
    loop = load.closed_loop(server.port, [server.request(payload)], callers, seconds, 1.0)
    used = (cpu_ms(server.pid) - before).total() / loop.answers
    return loop.per_second, loop.percentile(0.5), loop.percentile(0.99), used


def table(model: str, found: dict[tuple[str, int], list[Figures]]) -> str:
    """Return the medians over the rounds as a table."""
    best = {
        callers: statistics.median(figures[0] for figures in rounds)
        for (name, callers), rounds in found.items()
        if name.startswith(LIMIT)
    }
    lines = [
        f"\n{model}, {len(os.sched_getaffinity(0))} cores\n",
        "| callers | | answers/s | of the limit | p50 ms | p99 ms | CPU-ms each |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, callers), rounds in sorted(found.items(), key=lambda item: item[0][1]):
        speed, p50, p99, used = (
            statistics.median(figures[column] for figures in rounds) for column in range(4)
        )
        lines.append(
            f"| {callers} | {name} | {speed:.1f} | {speed / best[callers]:.2f} "
            f"| {p50:.1f} | {p99:.1f} | {used:.1f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
