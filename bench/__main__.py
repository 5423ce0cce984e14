"""Measure the server beside the machine's limit and rivals: `make bench`.

Prints tables on standard output and its progress on standard error; writes result.json and
performance.svg into --out. Exit code 1 where a target is missed by more than the noise.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bench import measure, plot, report, start
from bench.load import growth, models, open_loop, overhead, work
from bench.load.limit import Limit
from bench.measure import Results, say
from bench.servers.contenders import PRECISION, Contender, also_asked, this_server, tidy
from bench.servers.rival_servers import RIVALS, Place
from bench.servers.sessions import AUTO, EXACT, PRECISIONS
from bench.targets import MISSED, verdicts

LOADS = (1, 4, 8, 16)
ONCE = {"nothing", "growth"}


def main(argv: list[str]) -> int:
    """Measure what the arguments say."""
    options = parsed(argv)
    if options.results:
        return reported(report.read_json(options.results), options.out, into_docs=options.docs)
    # What was started is stopped, whichever way this ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cache = options.cache.absolute()
    (cache / "run").mkdir(parents=True, exist_ok=True)
    repository = models.lay_out(cache)
    every: list[Results] = []
    for precision in options.precision:
        # What no engine has a part in is measured once, and so is what takes longest.
        parts = {*options.parts} - (ONCE if every else set())
        every.append(measured(precision, parts, options, repository, cache))
    return reported(every, options.out, into_docs=options.docs)


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    full = "--full" in argv
    parser.add_argument("--full", action="store_true", help="every model, rival and question")
    parser.add_argument("--rounds", type=int, default=5 if full else 3)
    parser.add_argument("--seconds", type=float, default=10.0 if full else 4.0)
    parser.add_argument(
        "--patience",
        type=float,
        default=1800 if full else 300,
        help="seconds in all to repeat what others on this machine disturbed",
    )
    words = partial(parser.add_argument, nargs="*")
    parser.add_argument(
        "--precision",
        nargs="+",
        action="extend",
        choices=PRECISIONS,
        help="MODEL_PRECISION of the server, one after the other; the limit has the best engine of "
        "the same",
    )
    words("--models", choices=work.WORKS, default=list(work.WORKS))
    words("--rivals", choices=RIVALS, default=list(RIVALS))
    words(
        "--rivals-on",
        choices=work.WORKS,
        default=list(work.WORKS) if full else ["resnet"],
        help="the models that rivals are asked as well",
    )
    parts = ["start", "rounds", "nothing", "open"]
    words("--parts", choices=[*parts, "growth"], default=[*parts, *(["growth"] if full else [])])
    folder = work.PROJECT / ".cache" / "bench"
    parser.add_argument("--cache", type=Path, default=folder)
    parser.add_argument("--out", type=Path, default=folder)
    parser.add_argument(
        "--docs", action="store_true", help="put tables and plot into docs/performance.md as well"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="show what an earlier run wrote, a result.json; measure nothing",
    )
    options = parser.parse_args(argv)
    options.precision = [*dict.fromkeys(options.precision or (PRECISIONS if full else [EXACT]))]
    return options


def measured(
    precision: str,
    parts: set[str],
    options: argparse.Namespace,
    repository: Path,
    cache: Path,
) -> Results:
    """Measure some parts at one precision of the server."""
    cpus = len(os.sched_getaffinity(0))
    results = Results(cpus, options.rounds, options.seconds, precision, patience_s=options.patience)
    settings = {PRECISION: precision}
    if "start" in parts:
        measure_start(results, options.rounds, settings)
    server = this_server(repository, cache / "run", "resnet", settings=settings)
    server.start()
    try:
        for model in options.models if "rounds" in parts else []:
            measure_model(results, server, model, options, repository, cache)
        payload = work.payload("resnet")
        with Limit(repository, "resnet") as limit:
            server.wait(payload, "resnet", limit.answer(payload))
        if "nothing" in parts:
            overhead.measure(results, server, repository, cache / "run")
        if "open" in parts:
            open_loop.measure(results, server, payload, options.seconds * 3, cache)
    finally:
        server.stop()
        tidy()
    if "growth" in parts:
        growth.measure(results, cache)
    return results


def measure_start(results: Results, runs: int, settings: Mapping[str, str]) -> None:
    if settings[PRECISION] == AUTO:
        # The first start chooses; the others find its choice.
        start.one_start(settings)
    for _ in range(runs):
        took, rows = start.one_start(settings)
        results.start_s.append(took)
        sizes: dict[str, float] = {}
        for name, size in rows:
            # Several processes of one model are judged each by itself; the web's all together.
            other = sizes.get(name, 0.0)
            sizes[name] = max(other, size) if "model" in name else other + size
        results.idle_mb = sizes
        say(f"/ping is 200 after {took:.2f} s")


def measure_model(
    results: Results,
    server: Contender,
    model: str,
    options: argparse.Namespace,
    repository: Path,
    cache: Path,
) -> None:
    loads = LOADS if options.full or model == "resnet" else tuple(n for n in LOADS if n != 4)
    ways, answer = measure.best_ways(results, repository, model, loads, options.seconds / 2)
    bare = partial(overhead.bare_route, server, repository, cache / "run", model)
    wanted = [partial(also_asked, server, model), bare]
    if model in options.rivals_on:
        engine = ways["throughput"].engine
        place = Place(repository, cache, model, results.cpus, results.precision, engine)
        wanted += [partial(RIVALS[name], place) for name in options.rivals]
    measure.rounds(results, repository, model, loads, wanted, ways, answer)


def reported(every: Sequence[Results], out: Path, *, into_docs: bool) -> int:
    """Write tables, plot and figures, and print the tables; return the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    tables = report.markdown(every)
    (out / "result.md").write_text(tables, encoding="utf-8")
    (out / "performance.svg").write_text(plot.svg(every), encoding="utf-8")
    report.write_json(every, out / "result.json")
    if into_docs:
        write_docs(tables, plot.svg(every))
    sys.stdout.write(tables)
    say(f"written: {out}/result.json, result.md and performance.svg")
    code = 0
    for results in every:
        for one in verdicts(results):
            if one.verdict == MISSED:
                code = 1
                came = f"{one.came.median:.3g}, wanted {one.wanted}"
                say(f"missed: {results.precision}, {one.what} is {came}")
    return code


def write_docs(tables: str, drawn: str) -> None:
    """Put what was measured where the documentation has what was measured before."""
    page = work.PROJECT / "docs" / "performance.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- measured -->\n")
    _, end, after = rest.partition("<!-- end of measured -->\n")
    page.write_text(f"{before}{begin}\n{tables}\n{end}{after}", encoding="utf-8")
    (page.parent / "pictures" / "performance.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
