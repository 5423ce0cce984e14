"""Compare settings, numbers of instances or other commits, in turn.

A SETTING is made of words: `commit=REVISION` is the server of that commit (in this environment),
with its own configuration of the model; `count=8` the number of instances of the asked model, every
other word an environment variable of the server. "default" changes nothing; twice, it shows the
noise. The servers of all settings run side by side, and every round asks them in turn, forwards and
backwards, beside the in-process limit. The table on standard output has medians, and for each
setting its answers a second as a share of the first one's in the same round. How an older version
does beside this one:

    python -m bench.compare --models resnet --callers 1 8 --settings commit=HEAD~1 default

And how much a precision brings, with the limit at that precision beside it:

    python -m bench.compare --precision auto --settings default MODEL_PRECISION=auto
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from bench.load import load, models, overhead, work
from bench.load.limit import Limit, Way
from bench.measure import LIMIT, in_hand, say, sweep
from bench.servers.contenders import Contender, Skipped, this_server
from bench.servers.processes import cpu_ms
from bench.servers.sessions import EXACT, PRECISIONS, engines_at

DEFAULT = "default"
NOTHING = "nothing"
# answers a second, p50 and p99 in ms, CPU-ms of an answer; NaN where it is not known
Figures = tuple[float, float, float, float]
Found = dict[tuple[str, int], list[Figures]]


def main(argv: list[str]) -> int:
    """Measure what the arguments say."""
    options = parsed(argv)
    cache = options.cache.absolute()
    (cache / "run").mkdir(parents=True, exist_ok=True)
    repository = models.lay_out(cache)
    for model in options.models:
        ways = best_ways(repository, model, options) if has_limit(model, options) else {}
        with ExitStack() as stack:
            servers = [
                with_setting(setting, number, repository, cache, model)
                for number, setting in enumerate(options.settings)
            ]
            for server in servers:
                stack.callback(server.stop)
                server.start()
            try:
                found = compare(model, repository, servers, ways, options)
            except Skipped as reason:
                raise SystemExit(str(reason)) from reason
            sys.stdout.write(table(model, found, servers[0].name))
            sys.stdout.flush()
    return 0


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*work.WORKS, NOTHING]
    parser.add_argument("--models", nargs="*", choices=names, default=list(work.WORKS))
    parser.add_argument("--callers", nargs="*", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--megapixels", type=float, default=work.MEGAPIXELS, help="of the JPEG")
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=[work.TOKENS], help="of the texts; they take turns"
    )
    parser.add_argument(
        "--limit",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the in-process limit too; there is none for texts of several lengths",
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=EXACT, help="of the in-process limit"
    )
    parser.add_argument("--cache", type=Path, default=work.PROJECT / ".cache" / "bench")
    parser.add_argument("--settings", nargs="+", default=[DEFAULT])
    return parser.parse_args(argv)


def has_limit(model: str, options: argparse.Namespace) -> bool:
    return options.limit and model != NOTHING and len(payloads(model, options)) == 1


def payloads(model: str, options: argparse.Namespace) -> list[Any]:
    """Return what is asked in turn."""
    if model == NOTHING:
        return [overhead.PAYLOAD]
    lengths = options.tokens if model == "bert_base" else options.tokens[:1]
    return [work.payload(model, megapixels=options.megapixels, tokens=tokens) for tokens in lengths]


def with_setting(setting: str, number: int, repository: Path, cache: Path, model: str) -> Contender:
    """Return this server with a repository of the asked model alone, not started yet."""
    own = cache / "compare" / str(number)
    shutil.rmtree(own, ignore_errors=True)
    # Two that are the same show how much is noise.
    server = this_server(own, cache / "run", model, f"{number + 1}: {setting}")
    variables = dict(word.split("=", 1) for word in setting.split() if "=" in word)
    revision, count = variables.pop("commit", ""), variables.pop("count", "")
    files = checked_out(revision, cache / "commits") if revision else None
    shutil.copytree(repository / model, own / model, symlinks=True)
    config = own / model / "config.pbtxt"
    if files:
        server.command = [str(files / "serve")]
        if (its := files / "model_repository" / model / "config.pbtxt").exists():
            shutil.copy(its, config)
    if count:
        text, changed = re.subn(
            r"count: \d+", f"count: {count}", config.read_text(encoding="utf-8")
        )
        if not changed:
            raise SystemExit(f"{config} says no count that could be {count}")
        config.write_text(text, encoding="utf-8")
    server.environment = {**server.environment, **variables}
    return server


def checked_out(revision: str, folder: Path) -> Path:
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


def best_ways(repository: Path, model: str, options: argparse.Namespace) -> dict[int, Way]:
    """Return the ways in which the limit is best, by callers."""
    (payload,) = payloads(model, options)
    cpus, seconds = len(os.sched_getaffinity(0)), options.seconds / 2
    with Limit(repository, model) as limit:
        ways = sweep(
            limit, model, payload, cpus, options.callers, seconds, engines_at(options.precision)
        )
    say(f"{model}: the limit is best with {', '.join(map(str, ways.values()))}")
    return {
        callers: ways["lone"] if callers == 1 else ways.get(in_hand(callers), ways["throughput"])
        for callers in options.callers
    }


def compare(
    model: str,
    repository: Path,
    servers: list[Contender],
    ways: dict[int, Way],
    options: argparse.Namespace,
) -> Found:
    """Return the figures of the limit and of every server, by callers."""
    wanted = payloads(model, options)
    found: Found = {}
    with ExitStack() as stack:
        if model == NOTHING:
            for server in servers:
                server.wait_for(overhead.PAYLOAD)
        else:
            limit = stack.enter_context(Limit(repository, model))
            right = limit.answer(wanted[0])
            for server in servers:
                server.wait(wanted[0], model, right)
        for number, callers in product(range(options.rounds), options.callers):
            if way := ways.get(callers):
                came = limit.measure(way, options.seconds, wanted[0])
                one = (came.per_second, came.p50, came.p99, came.cpu_ms)
                found.setdefault((f"{LIMIT}, {way}", callers), []).append(one)
            for server in servers[:: -1 if number % 2 else 1]:
                one = asked(server, model, wanted, callers, options.seconds)
                say(f"{model}, {callers} callers, {server.name}: {one[0]:.1f}/s")
                found.setdefault((server.name, callers), []).append(one)
    return found


def asked(
    server: Contender, model: str, wanted: list[Any], callers: int, seconds: float
) -> Figures:
    """Ask one server, in a closed loop."""
    if model == NOTHING:
        speed = overhead.asked(server, callers, max(1, round(seconds)))
        return speed, math.nan, math.nan, math.nan
    before = cpu_ms(server.pid)
    requests = [server.request(payload) for payload in wanted]
    loop = load.closed_loop(server.port, requests, callers, seconds, 1.0)
    used = (cpu_ms(server.pid) - before).total() / loop.answers
    return loop.per_second, loop.percentile(0.5), loop.percentile(0.99), used


def table(model: str, found: Found, first: str) -> str:
    """Return the medians over the rounds as a table."""
    best = {
        callers: statistics.median(figures[0] for figures in rounds)
        for (name, callers), rounds in found.items()
        if name.startswith(LIMIT)
    }
    lines = [
        f"\n{model}, {len(os.sched_getaffinity(0))} cores\n",
        f"| callers | | answers/s | of the limit | of {first} | p50 ms | p99 ms | CPU-ms each |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, callers), rounds in sorted(found.items(), key=lambda item: item[0][1]):
        speed, p50, p99, used = (
            statistics.median(figures[column] for figures in rounds) for column in range(4)
        )
        shares = [
            one[0] / other[0] for one, other in zip(rounds, found[first, callers], strict=True)
        ]
        lines.append(
            f"| {callers} | {name} | {speed:.1f} | {shown(speed / best.get(callers, math.nan), 2)} "
            f"| {statistics.median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f}) "
            f"| {shown(p50, 1)} | {shown(p99, 1)} | {shown(used, 1)} |"
        )
    return "\n".join([*lines, ""])


def shown(figure: float, places: int) -> str:
    return "–" if math.isnan(figure) else f"{figure:.{places}f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
