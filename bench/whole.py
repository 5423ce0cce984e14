"""Measure the container with all three models, in one of three ways.

--gpu       on a GPU, beside what it should reach there: at most eight minutes. Every round asks
            the same of a server with MODEL_PRECISION=exact and of one with auto, in turn: each
            model with 1, 16 and 64 callers, longer texts, and lists of pictures by one caller. The
            table has the processor time of an answer by process, what `/metrics` says of the GPU
            meanwhile, and the longest run after the first minute as a multiple of the median one.
            The goals are for an H100 or H200 with 16 cores
--mix       four callers of each model alone, and then all twelve together: the cores allow that
            the shares of what each model has alone make 1.0, and the goal is 0.9
--capacity  the highest rate of independent arrivals at which p99 is at most five times a lone
            request (MLPerf's server scenario), which k6 finds in a few steps

All figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench import gpu
from bench.load import load, models, work
from bench.load.load import LEAST_WARM_S, say
from bench.servers import contenders
from bench.servers.contenders import Contender, Skipped, install_rival, this_server
from bench.servers.sessions import PRECISIONS

CALLERS, SUM_GOAL = 4, 0.9
"""Of each model in the mix; and of the shares."""
TIMES_LONE, STEPS, SPREAD_S = 5, 5, 5
"""The bound of p99; the rates that are tried; by up to what k6 delays each request at random."""


def main(argv: list[str]) -> int:
    """Measure what the arguments say."""
    began = time.monotonic()
    options = parse_arguments(argv)
    if options.measure is gpu.report and not options.on_cpu and (missing := gpu.find_missing()):
        say(
            f"{missing}: run this on a machine with a GPU, in an environment with onnxruntime-gpu"
            " (docs/deploy-image.md#gpu); --on-cpu does the same here"
        )
        return 1
    cache = options.cache.absolute()
    try:
        repository = models.lay_out(cache)
        with ExitStack() as stack:
            servers = [
                stack.enter_context(whole_server(repository, cache, one, options.models))
                for one in options.precision
            ]
            options.until = began + gpu.LAST_CELL_S
            for line in options.measure(servers, options):
                sys.stdout.write(f"{line}\n")
    except Skipped as reason:
        say(f"not measured: {reason}")
        return 1
    finally:
        contenders.tidy()
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ways = parser.add_mutually_exclusive_group(required=True)
    for name, measure in (("gpu", gpu.report), ("mix", mix), ("capacity", capacity)):
        ways.add_argument(f"--{name}", dest="measure", action="store_const", const=measure)
    parser.add_argument("--on-cpu", action="store_true", help="--gpu where there is none")
    parser.add_argument("--models", nargs="+", choices=[*work.WORKS], default=[*work.WORKS])
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 16, 64], help="of --gpu")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds",
        type=float,
        default=2,
        help="of a measurement: --mix takes 5, --capacity 10 times as long",
    )
    parser.add_argument("--cache", type=Path, default=work.PROJECT / ".cache" / "bench")
    return parser.parse_args(argv)


@contextmanager
def whole_server(
    repository: Path, cache: Path, precision: str, wanted: Sequence[str]
) -> Iterator[Contender]:
    """Start this server with some models, and wait until each has answered.

    Raises:
        Skipped: it does not start.

    """
    own = cache / "compare" / precision
    shutil.rmtree(own, ignore_errors=True)
    for model in wanted:
        shutil.copytree(repository / model, own / model, symlinks=True)
    server = this_server(own, cache / "run", "", precision, {contenders.PRECISION: precision})
    with server:
        for model in wanted:
            server.wait_for(work.body(model))
        yield server


def mix(servers: Sequence[Contender], options: argparse.Namespace) -> Iterator[str]:
    """Yield a table of each model alone and beside the others."""
    yield f"| precision | {CALLERS} callers of | alone/s, p99 ms | beside the others | share |"
    yield "|---|---|---|---|---|"
    times = 5 * options.seconds, 2 * options.seconds
    for server in servers:
        groups = [([server.request(work.body(model))], CALLERS) for model in options.models]
        rounds = []
        for _ in range(options.rounds):
            alone = [load.ask_at_once(server.port, [group], *times)[0] for group in groups]
            rounds.append([*zip(alone, load.ask_at_once(server.port, groups, *times), strict=True)])
        for model, pairs in zip(options.models, zip(*rounds, strict=True), strict=True):
            cells = [
                f"{median(one.per_second for one in some):.1f}, "
                f"{median(one.percentile(0.99) for one in some):.0f}"
                for some in zip(*pairs, strict=True)
            ]
            share = median(two.per_second / one.per_second for one, two in pairs)
            yield f"| {server.name} | {model} | {' | '.join(cells)} | {share:.2f} |"
        total = median(sum(two.per_second / one.per_second for one, two in some) for some in rounds)
        goal = f"{SUM_GOAL}: {gpu.say_met(total >= SUM_GOAL)}"
        yield f"| {server.name} | all | | | {total:.2f} (goal: at least {goal}) |"


def capacity(servers: Sequence[Contender], options: argparse.Namespace) -> Iterator[str]:
    """Yield a table of the highest rate of each model."""
    cache = options.cache.absolute()
    k6, file = install_rival("k6", cache).with_name("k6"), cache / "run" / "body.json"
    yield "| precision | model | a lone request, ms | Poisson arrivals/s | p50/p99 ms |"
    yield "|---|---|---|---|---|"
    for server, model in ((server, model) for server in servers for model in options.models):
        asked = work.body(model)
        file.write_text(json.dumps(asked), encoding="utf-8")
        lone, most = (
            load.ask_in_a_loop(server.port, [server.request(asked)], callers, 3, LEAST_WARM_S)
            for callers in (1, 8)
        )
        bound, low, high, best = TIMES_LONE * lone.percentile(0.5), 0.0, most.per_second, "–"
        for _ in range(STEPS):
            rate = (low + high) / 2
            # What others disturb is asked again: that only ever makes it slower.
            tries = (arrive(k6, server.port, file, rate, 10 * options.seconds) for _ in range(2))
            if seen := next((one for one in tries if keeps(one, bound)), None):
                low, best = rate, f"{seen['p50']:.0f}/{seen['p99']:.0f}"
            else:
                high = rate
        lone_ms = f"{bound / TIMES_LONE:.1f}"
        yield f"| {server.name} | {model} | {lone_ms} | {low:.1f} | {best} |"


def keeps(seen: Mapping[str, Any], bound: float) -> bool:
    """Whether all requests were answered, and 99 of 100 within the bound in milliseconds."""
    say(f"p99 may be {bound:.0f}: {seen}")
    lost = seen["refused"] + seen["failed"] + seen["not_sent"]
    return not lost and seen["answered"] > 0 and seen["p99"] <= bound


def arrive(k6: Path, port: int, file: Path, rate: float, seconds: float) -> dict[str, Any]:
    """Have k6 send requests at a rate; return what `open_loop.js` prints."""
    variables = {
        "URL": f"http://127.0.0.1:{port}/invocations",
        "BODY": str(file),
        "RATE": f"{rate:.1f}",
        "SPREAD": str(SPREAD_S),
        "SECONDS": f"{seconds + SPREAD_S:.0f}",
    }
    script = contenders.BENCH / "load" / "open_loop.js"
    command = [str(k6), "run", "--quiet", "--no-usage-report", str(script)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return dict(json.loads(done.stdout))
