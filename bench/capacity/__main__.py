"""How many machines of which size a traffic needs: `python -m bench.capacity`.

Simulates machines behind a load balancer with service times that were measured, and prints tables.
docs/capacity.md explains what is simulated, and how far it can be trusted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from bench.capacity import measure, report
from bench.capacity.answers import Plan, Surge, needed, surged
from bench.capacity.service import Sizes, from_metrics, mix_of, read_services, written
from bench.capacity.simulation import BALANCERS
from bench.load import work
from bench.measure import Results, say
from bench.servers.contenders import Skipped
from tool.cost.cost import positive, scrape
from tool.cost.prices import PRICES, read_prices
from tool.cost.read import Page
from tool.trouble import Trouble

MEASURED = Path(__file__).with_name("measured.json")
"""Of the machine on which docs/capacity.md was written."""
SHARES = (0.5, 0.7, 0.85)
LEAST_REQUESTS, MOST_REQUESTS = 1000, 1_000_000
MOST_SURGED, HOUR_S = 10, 3600


def main(argv: Sequence[str]) -> int:
    """Do what the arguments say; return 2 for a mistake in them."""
    options = parsed(argv)
    try:
        if options.check or options.measure:
            measured(options)
        else:
            answer(options)
    except (Trouble, Skipped) as trouble:
        sys.stderr.write(f"bench.capacity: {trouble}\n")
        return 2
    return 0


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--service", type=Path, metavar="FILE", help="service times (default: those measured here)"
    )
    source.add_argument(
        "--metrics",
        metavar="URL",
        help="instead: the means of a running server, http://HOST:PORT, or of a saved page of "
        "/metrics; without spread, so the p99 is too low",
    )
    add("--metrics-cores", type=whole, default=2, metavar="N", help="of that server (default: 2)")
    add("--mix", nargs="+", metavar="MODEL=WEIGHT", help="which models (default: the first)")
    add("--rates", nargs="+", type=positive, default=[100.0], metavar="N", help="requests a second")
    add("--p99", type=positive, default=500.0, metavar="MS", help="to keep (default: 500)")
    add("--cores", nargs="+", type=whole, default=[1, 2, 4, 8], help="of a machine")
    add("--balance", choices=BALANCERS, default="random", help="how a machine is chosen")
    add("--queue", type=whole, default=64, help="MODEL_SERVER_QUEUE (default: 64)")
    add("--threads", type=whole, default=16, help="MODEL_SERVER_THREADS (default: 16)")
    add("--prices", type=Path, default=PRICES, help="prices (default: tool/cost/prices.json)")
    add("--surge", nargs="+", type=factor, default=[], metavar="FACTOR", help="of the last traffic")
    add("--over", nargs="+", type=not_negative, default=[0.0], metavar="S", help="the surge grows "
        "within this time (default: 0)")  # fmt: skip
    add("--delay", nargs="+", type=not_negative, default=[60.0], metavar="S", help="until a new "
        "machine answers: its node, image, start and readiness (default: 60)")  # fmt: skip
    add("--target", type=positive, default=0.0, metavar="RATIO", help="the autoscaler's saturation "
        "(default: what the machines have before the surge)")  # fmt: skip
    add("--limits", action="store_true", help="also: which limit is reached at which traffic")
    add("--seed", type=int, default=1)
    add("--requests", type=requests, default=20_000, help="of one simulation (default: 20000)")
    add("--check", action="store_true", help="run real servers, and compare them")
    add("--measure", nargs="+", choices=work.WORKS, metavar="MODEL", help="measure service times")
    add("--models", nargs="+", choices=work.WORKS, default=["resnet", "bert_base"], help="to check")
    add("--check-cores", nargs="+", type=whole, default=[1, 2])
    add("--loads", nargs="+", type=share, default=list(SHARES), help="shares of the capacity")
    add("--seconds", type=positive, default=20.0, help="of one load, or of six measurements")
    add("--patience", type=not_negative, default=120.0, metavar="S", help="to repeat what other "
        "programs of this machine disturbed (default: 120)")  # fmt: skip
    add("--into", type=Path, metavar="FILE", help="write the service times that were measured")
    add("--cache", type=Path, default=work.PROJECT / ".cache" / "bench")
    options = parser.parse_args(argv)
    most = len(os.sched_getaffinity(0))
    if (options.check or options.measure) and max(options.check_cores) > most:
        parser.error(f"--check-cores {max(options.check_cores)}: this process has {most}")
    if options.target > 1:
        parser.error(f"--target {options.target:g}: a saturation is at most 1")
    return options


def measured(options: argparse.Namespace) -> None:
    """Measure, and compare where that is asked for."""
    models = options.measure or options.models
    shares = options.loads if options.check else []
    cache = options.cache.absolute()
    (cache / "run").mkdir(parents=True, exist_ok=True)
    # The servers are stopped, whichever way this ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = Results(len(measure.ALL), 1, options.seconds, patience_s=options.patience)

    def save(services: Mapping[str, Sizes]) -> None:
        if options.into:
            try:
                options.into.write_text(written(services, measure.machine()), encoding="utf-8")
            except OSError as error:
                raise Trouble(f"{options.into} cannot be written: {error.strerror}") from error

    save({})
    services, found = measure.check(models, options.check_cores, shares, results, cache, save)
    if found:
        sys.stdout.write(measure.table(found))
    elif not options.into:
        sys.stdout.write(written(services, measure.machine()))


def answer(options: argparse.Namespace) -> None:
    """Print the tables."""
    prices = read_prices(options.prices)
    sizes, where = services_of(options)
    mix = mix_of(options.mix or [next(iter(sizes))], sizes, where)
    plan = Plan(
        sizes,
        mix,
        options.p99 / 1e3,
        options.balance,
        options.queue,
        options.threads,
        options.seed,
        options.requests,
    )
    found = []
    for rate in options.rates:
        for cores in options.cores:
            found.append(needed(plan, rate, cores))
            count = found[-1].machines or "no number of"
            say(f"{rate:g} a second on {cores} cores: {count} machines")
    sys.stdout.write(report.machines(plan, found, prices))
    best = [one for one in found if one.machines and one.rate == max(options.rates)]
    if not best:
        return
    cheapest = min(best, key=lambda one: (one.machines * one.cores, one.cores))
    surges = []
    for growth in options.surge:
        after = needed(plan, cheapest.rate * growth, cheapest.cores)
        for over, delay in product(options.over, options.delay):
            surge = Surge(growth, over, delay)
            if found_one := surged(plan, cheapest, after, surge, options.target):
                surges.append(found_one)
                say(f"×{growth:g} within {over:g} s, machines after {delay:g} s: done")
    if surges:
        sys.stdout.write(report.surges(cheapest, surges))
    if options.limits:
        sys.stdout.write(report.limits(plan, cheapest))


def services_of(options: argparse.Namespace) -> tuple[Mapping[str, Sizes], str]:
    """Return the service times that were named, and where they are from."""
    if not options.metrics:
        path = options.service or MEASURED
        return read_services(path), str(path)
    if "://" not in options.metrics:
        try:
            page = Page(
                Path(options.metrics).read_text(errors="replace", encoding="utf-8"), options.metrics
            )
        except OSError as error:
            raise Trouble(f"{options.metrics} cannot be read: {error.strerror}") from error
    else:
        page = page_of(options.metrics)
    return from_metrics(page, options.metrics_cores), options.metrics


def page_of(url: str) -> Page:
    """Return the metrics of a running server."""
    address = f"{url.rstrip('/').removesuffix('/metrics')}/metrics"
    if not address.startswith(("http://", "https://")):
        raise Trouble(f"{url} is no address; expected http://HOST:PORT")
    return scrape(address, os.environ.get("DISPATCHER_API_KEY", ""))


def factor(text: str) -> float:
    if not 1 < float(text) <= MOST_SURGED:
        raise argparse.ArgumentTypeError(f"{text} is not above 1 and at most {MOST_SURGED}")
    return float(text)


def not_negative(text: str) -> float:
    if not 0 <= float(text) <= HOUR_S:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {HOUR_S} seconds")
    return float(text)


def share(text: str) -> float:
    if not 0 < float(text) <= 2:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 2")
    return float(text)


def whole(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to 10000")
    return int(text)


def requests(text: str) -> int:
    if not text.isdecimal() or not LEAST_REQUESTS <= int(text) <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(
            f"{text} is not a whole number from {LEAST_REQUESTS} to {MOST_REQUESTS}"
        )
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
