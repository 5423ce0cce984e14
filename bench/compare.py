"""Compare settings and commits of this server, rivals and the in-process limit, in turn.

A SETTING is made of words: `commit=REVISION` is the server of that commit (in this environment),
with its own configuration of the model; every other word an environment variable of the server.
"default" changes nothing; twice, it shows the noise. All servers run side by side, and every round
asks them in turn, forwards and backwards. The tables on standard output have medians, and for each
contender its answers a second as a share of the limit's and of the first server's in the same
round. How an older version does beside this:

    python -m bench.compare --models resnet --callers 1 8 --settings commit=HEAD~1 default

What a precision brings: --settings MODEL_PRECISION=exact MODEL_PRECISION=auto
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from backends.engine_choice import EXACT, processor
from bench.load import load, models, work
from bench.load.limit import Limit, Sample, Way, best_ways
from bench.load.load import say
from bench.servers.contenders import PRECISION, Contender, Skipped, this_server, tidy
from bench.servers.processes import cpu_ms, memory_mb
from bench.servers.rival_servers import LITSERVE, RIVALS, TRITON, Place
from bench.servers.sessions import PRECISIONS, engines_at

DEFAULT = "default"
LIMIT = "in-process limit"
GOALS = {
    ("resnet", 1): (1.5, 1.0),
    **dict.fromkeys(
        [*product(["resnet"], (4, 8, 16)), *product(["bert_base"], (8, 16))], (1.0, 1.0)
    ),
}
"""Answers a second, by model and callers, as shares of LitServe's and of Triton HTTP's at least."""
P99_GOAL = 1.05
"""Of a ResNet-50 with several callers, as a share of the better one's at most."""
PAUSE_S = 0.2
CPUS = len(os.sched_getaffinity(0))
Found = dict[tuple[str, int], list[Sample]]
"""The samples of each contender with so many callers, by round."""


def main(argv: list[str]) -> int:
    """Measure what the arguments say."""
    options = parse_arguments(argv)
    cache = options.cache.absolute()
    (cache / "run").mkdir(parents=True, exist_ok=True)
    repository = models.lay_out(cache)
    sys.stdout.write(f"{CPUS} cores ({describe_processor()}), Python {platform.python_version()}, ")
    sys.stdout.write(f"{options.rounds} rounds of {options.seconds:g} s, medians\n")
    try:
        for model in options.models:
            found = compare(model, repository, cache, options)
            first = f"1: {options.settings[0]}"
            sys.stdout.write(table(model, found, first))
            sys.stdout.write("".join(f"- {line}\n" for line in judge(model, found, first)))
            sys.stdout.flush()
    finally:
        tidy()
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="*", choices=[*work.WORKS], default=[*work.WORKS])
    parser.add_argument("--callers", nargs="*", type=int, default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=EXACT,
        help="of the limit, of rivals, and of servers whose setting names none",
    )
    parser.add_argument("--settings", nargs="+", default=[DEFAULT])
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=[])
    parser.add_argument("--cache", type=Path, default=work.PROJECT / ".cache" / "bench")
    return parser.parse_args(argv)


def compare(model: str, repository: Path, cache: Path, options: argparse.Namespace) -> Found:
    """Start the contenders of one model, and measure them."""
    payload = work.payload(model)
    with ExitStack() as stack:
        limit = stack.enter_context(Limit(repository, model))
        right = limit.answer(payload)
        engines, seconds = engines_at(options.precision), options.seconds / 2
        ways = best_ways(limit, model, payload, CPUS, options.callers, seconds, engines)
        engine = max(ways.items())[1].engine
        say(f"{model}: the limit is best with {', '.join(map(str, ways.values()))}")
        servers = [
            stack.enter_context(
                with_setting(setting, number, repository, cache, model, options.precision)
            )
            for number, setting in enumerate(options.settings)
        ]
        for server in servers:
            server.wait(payload, model, right)
        place = Place(repository, cache, model, CPUS, options.precision, engine)
        for name in options.rivals:
            try:
                server = stack.enter_context(RIVALS[name](place))
                server.wait(payload, model, right)
                servers.append(server)
            except Skipped as reason:
                say(f"not measured: {reason}")
        return rounds(model, payload, limit, ways, servers, options)


def rounds(
    model: str,
    payload: Any,
    limit: Limit,
    ways: Mapping[int, Way],
    servers: Sequence[Contender],
    options: argparse.Namespace,
) -> Found:
    """Return the samples of the limit and of every server."""
    found: Found = {}
    seconds = options.seconds * (2 if model == "yolov5" else 1)  # it takes longest

    def note(name: str, callers: int, one: Sample) -> None:
        found.setdefault((name, callers), []).append(one)
        say(f"{model}, {callers} callers, {name}: {one.per_second:.1f}/s, p99 {one.p99:.0f} ms")

    for number, callers in product(range(options.rounds), options.callers):
        way = ways[callers]
        best = limit.measure(way, seconds, payload)
        note(f"{LIMIT}, {way}", callers, best)
        for server in servers[:: -1 if number % 2 else 1]:
            time.sleep(PAUSE_S)
            asked = server.request(payload)
            try:
                came = of_server(server, asked, callers, seconds, best.per_second)
                note(server.name, callers, came)
            except load.LoadError as error:
                say(f"{server.name}, {model}, {callers} callers: {error}")
    return found


def of_server(server: Contender, asked: bytes, callers: int, seconds: float, rate: float) -> Sample:
    """Ask a server in a closed loop.

    The callers send the whole request `asked`; `rate` is how many answers per second can be
    expected.

    Raises:
        LoadError: an answer was not 200, or none came.

    """
    # Until all have waited for all others once, their times are those of a burst on an idle server:
    # too short for the first ones, and for the last of 16 they were 1.25 times those of later.
    warm = max(load.LEAST_WARM_S, 2 * callers / rate)
    before = cpu_ms(server.pid)
    loop = load.ask_in_a_loop(server.port, [asked], callers, seconds, warm)
    used = cpu_ms(server.pid) - before
    return Sample(
        loop.per_second,
        loop.percentile(0.5),
        loop.percentile(0.99),
        {name: spent / loop.answers for name, spent in used.items()},
        memory_mb(server.pid),
    )


def with_setting(
    setting: str, number: int, repository: Path, cache: Path, model: str, precision: str = EXACT
) -> Contender:
    """Return this server with a repository of the asked model alone, not started yet."""
    own = cache / "compare" / str(number)
    shutil.rmtree(own, ignore_errors=True)
    # Two that are the same show how much is noise.
    server = this_server(own, cache / "run", model, f"{number + 1}: {setting}")
    variables = dict(word.split("=", 1) for word in setting.split() if "=" in word)
    revision = variables.pop("commit", "")
    files = check_out(revision, cache / "commits") if revision else None
    shutil.copytree(repository / model, own / model, symlinks=True)
    if files:
        server.command = [str(files / "serve")]
        its = files / "model_repository" / model / "config.pbtxt"
        # Not one that does not fit the weights, which are this one's: those of pictures take bytes.
        if its.exists() and (model == "bert_base" or "TYPE_UINT8" in its.read_text("utf-8")):
            shutil.copy(its, own / model)
    server.environment = {**server.environment, PRECISION: precision, **variables}
    return server


def check_out(revision: str, folder: Path) -> Path:
    """Return the files of a commit, in a folder of its own."""
    git = ["git", "-C", str(work.PROJECT)]
    parse = [*git, "rev-parse", "--verify", f"{revision}^{{commit}}"]
    named = subprocess.run(parse, capture_output=True, encoding="utf-8", check=False)
    if named.returncode:
        raise SystemExit(f"commit={revision}: {named.stderr.strip()}")
    commit = named.stdout.strip()
    files = folder / commit
    if not files.exists():
        part = folder / f"{commit}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        archive = subprocess.run([*git, "archive", commit], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(part)], input=archive.stdout, check=True)
        part.rename(files)
    return files


def describe_processor() -> str:
    """Return what the processor calls itself, and which wide arithmetic it has."""
    name, _, flags = processor().partition(" fpu ")
    features = {"avx512f", "avx512_vnni", "avx512_bf16"}.intersection(flags.split())
    return f"{name or 'unknown'}, {' '.join(sorted(features)) or 'no AVX-512'}"


def table(model: str, found: Found, first: str) -> str:
    """Return the medians over the rounds as a table."""
    limits = {
        callers: samples for (name, callers), samples in found.items() if name.startswith(LIMIT)
    }
    lines = [
        f"\n{model}\n",
        f"| callers | | answers/s | of the limit | of {first} | p50 ms | p99 ms | CPU-ms | MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, callers), samples in sorted(found.items(), key=lambda item: item[0][1]):
        shares = [share(samples, of) for of in (limits.get(callers), found.get((first, callers)))]
        figures = zip(
            *((one.p50, one.p99, sum(one.cpu_ms.values()), one.memory_mb) for one in samples),
            strict=True,
        )
        speed = statistics.median(one.per_second for one in samples)
        cells = [f"{speed:.1f}", *shares, *(f"{statistics.median(one):.1f}" for one in figures)]
        lines.append(f"| {callers} | {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def judge(model: str, found: Found, first: str) -> Iterator[str]:
    """Yield what the first server has beside LitServe and Triton HTTP, and whether it should."""
    for callers in sorted({callers for _, callers in found}):
        own, *rivals = (found.get((name, callers), []) for name in (first, LITSERVE, TRITON))
        goals = GOALS.get((model, callers))
        if not goals or not own or any(len(one) != len(own) for one in rivals):
            continue
        words = []
        for name, rival, goal in zip((LITSERVE, TRITON), rivals, goals, strict=True):
            part = median_share((one.per_second for one in own), (one.per_second for one in rival))
            words.append(f"{part:.2f} of {name} (goal: {goal}{'' if part >= goal else ', MISSED'})")
        if model == "resnet" and callers > 1:
            better = (min(one.p99 for one in some) for some in zip(*rivals, strict=True))
            part = median_share((one.p99 for one in own), better)
            missed = "" if part <= P99_GOAL else ", MISSED"
            words.append(f"p99 {part:.2f} of the better one's (goal: {P99_GOAL}{missed})")
        yield f"{callers} callers: {', '.join(words)}"


def median_share(figures: Iterable[float], others: Iterable[float]) -> float:
    return statistics.median(one / two for one, two in zip(figures, others, strict=True))


def share(samples: Sequence[Sample], others: Sequence[Sample] | None) -> str:
    """Return the answers per second as shares of others' in the same round: median and range."""
    if not others or len(others) != len(samples):
        return "–"
    shares = [one.per_second / two.per_second for one, two in zip(samples, others, strict=True)]
    return f"{statistics.median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
