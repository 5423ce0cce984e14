"""Measure the container with all three models, in one of two ways.

--gpu  on a GPU: at most eight minutes. Every round asks the same of a server with
       MODEL_PRECISION=exact and of one with auto, in turn: each model with 1, 16 and 64 callers,
       longer texts, and lists of pictures by one caller. The table has the processor time of an
       answer by process, and what `/metrics` says of the GPU meanwhile
--mix  four callers of each model alone, and then all twelve together: the cores allow that the
       shares of what each model has alone make 1.0

All figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench import gpu
from bench.load import load, models, work
from bench.measure import say
from bench.servers import contenders
from bench.servers.contenders import Contender, Skipped, this_server
from bench.servers.sessions import PRECISIONS

CALLERS = 4  # of each model in the mix


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
    for name, measure in (("gpu", gpu.report), ("mix", mix)):
        ways.add_argument(f"--{name}", dest="measure", action="store_const", const=measure)
    parser.add_argument("--on-cpu", action="store_true", help="--gpu where there is none")
    parser.add_argument("--models", nargs="+", choices=[*work.WORKS], default=[*work.WORKS])
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 16, 64], help="of --gpu")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=2, help="of a measurement: --mix takes 5 times as long"
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
        yield f"| {server.name} | all | | | {total:.2f} |"
