"""`dispatcher cost`: what sharing one endpoint costs, by the traffic that there was."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from tool.commands.invoke import URL, address, opener
from tool.commands.models import table
from tool.cost.compute import (
    DAYS,
    Bill,
    bill,
    machine_share,
    per_thousand,
)
from tool.cost.prices import PRICES, Prices, read_prices
from tool.cost.read import SIGN, Page, Traffic, read_log, read_metrics
from tool.trouble import Trouble

WATCHED_S = 60.0
TIME_S = 10.0
DAY_H = 24
MIB = 2**20


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Compare one endpoint for all models with one endpoint for each, by real traffic: of a "
        "running container, of two saved pages of /metrics, or of a log. docs/cost.md explains "
        "the numbers."
    )
    add = parser.add_argument
    add("url", nargs="?", default="", metavar="URL", help=f"a running container (default: {URL})")
    add(
        "--metrics",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="instead: pages of /metrics, before and after; one alone has the traffic since the "
        "start, and needs --seconds",
    )
    add("--log", type=Path, metavar="FILE", help="instead: a log with a line for each request")
    add(
        "--seconds",
        type=positive,
        help=f"how long to watch (default: {WATCHED_S:g}), or the time between the "
        "pages (default: between the times of the files), or of the log (default: from its first "
        "request to its last)",
    )
    add(
        "--prices",
        type=Path,
        default=PRICES,
        metavar="FILE",
        help="prices (default: tool/cost/prices.json)",
    )
    add(
        "--hours-per-day",
        type=hours,
        default=Decimal(DAY_H),
        metavar="H",
        help=f"that the endpoints run (default: {DAY_H})",
    )
    add("--instance", default="", metavar="TYPE", help="the type of the shared endpoint")
    add(
        "--cores",
        type=positive,
        default=1.0,
        metavar="N",
        help="that an inference uses, where CPU seconds are not measured (default: 1)",
    )
    add("--json", action="store_true", help="print JSON")
    add(
        "--api-key",
        default=os.environ.get("DISPATCHER_API_KEY", ""),
        help="key for /metrics (default: the variable DISPATCHER_API_KEY)",
    )


def positive(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def hours(text: str) -> Decimal:
    if not 0 < positive(text) <= DAY_H:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {DAY_H}")
    return Decimal(text)


def run(options: argparse.Namespace) -> int:
    """Print the table; return 0."""
    if sum(map(bool, (options.url, options.metrics, options.log))) > 1:
        raise Trouble("give one of URL, --metrics and --log")
    prices = read_prices(options.prices)
    traffic = traffic_of(options)
    costs = bill(traffic, prices, options.instance)
    found = report(traffic, prices, costs, options.hours_per_day)
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n" if options.json else text(found))
    return 0


def traffic_of(options: argparse.Namespace) -> Traffic:
    """Return the traffic of what was named."""
    if options.log:
        with options.log.open(encoding="utf-8", errors="replace") as lines:
            return read_log(lines, str(options.log), options.cores, options.seconds or 0.0)
    if options.metrics:
        return saved(options.metrics, options.seconds, options.cores)
    url = f"{address(options.url or URL)}/metrics"
    before, began = scrape(url, options.api_key), time.monotonic()
    watched = options.seconds or WATCHED_S
    sys.stderr.write(f"counting the requests of the next {watched:g} s\n")
    time.sleep(watched)
    after = scrape(url, options.api_key)
    return read_metrics(after, before, time.monotonic() - began, options.cores)


def saved(files: list[Path], seconds: float | None, cores: float) -> Traffic:
    """Return the traffic between saved pages."""
    if len(files) > 2:
        raise Trouble(f"--metrics has {len(files)} files; expected one before and one after")
    pages = [Page(file.read_text(errors="replace", encoding="utf-8"), str(file)) for file in files]
    if not seconds and len(files) == 2:
        seconds = files[1].stat().st_mtime - files[0].stat().st_mtime
    if not seconds or seconds <= 0:
        raise Trouble(
            "the time between the pages is not known by the times of the files: give the earlier "
            "one first, or --seconds"
        )
    first = pages[0] if len(pages) == 2 else Page(f"{SIGN} 0\n", "")
    return read_metrics(pages[-1], first, seconds, cores)


def scrape(url: str, key: str) -> Page:
    """Return the metrics of a running container."""
    request = urllib.request.Request(url, headers={"x-api-key": key} if key else {})  # noqa: S310  its kind is looked at
    try:
        with opener(request.host).open(request, timeout=TIME_S) as response:
            return Page(response.read().decode(errors="replace"), url)
    except urllib.error.HTTPError as error:
        with error:
            fix = "give --api-key" if error.code in {401, 403} else "is it this container's port?"
            raise Trouble(f"{url} answers {error.code}; {fix}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Trouble(
            f"{url} does not answer: {getattr(error, 'reason', error)}; is the container running "
            "there? `make serve` starts one; --metrics and --log take files"
        ) from error


def report(traffic: Traffic, prices: Prices, costs: Bill, per_day: Decimal) -> dict[str, Any]:
    """Return all numbers, as --json prints them."""
    endpoints = {
        "shared": {"": costs.shared},
        "separate": costs.separate,
        "separate_same_type": costs.same,
    }
    notes = list(traffic.notes)
    if idle := sorted(name for name, use in traffic.models.items() if not use.was_asked):
        notes.append(f"not asked, and without an endpoint of their own: {', '.join(idle)}")
    return {
        "seconds": traffic.seconds,
        "hours_per_day": float(per_day),
        "models": [
            {
                "model": name,
                **asdict(use),
                "machine_share": machine_share(use, traffic, costs.shared),
                "usd_per_1000_answers": per_thousand(use, traffic, costs.shared),
            }
            for name, use in sorted(traffic.models.items())
        ],
        "programs_memory_bytes": traffic.memory,
        "endpoints": {
            name: {
                "instances": [
                    {"model": model, "instance": one.instance.name, "count": one.count}
                    for model, one in found.items()
                ],
                "usd_per_hour": float(sum(one.usd() for one in found.values())),
                "usd_per_day": float(sum(one.usd(per_day) for one in found.values())),
                "usd_per_30_days": float(sum(one.usd(per_day * DAYS) for one in found.values())),
            }
            for name, found in endpoints.items()
        },
        "prices": {"date": prices.date, "region": prices.region, "source": prices.source},
        "notes": notes,
    }


ENDPOINTS = ("one endpoint", "one for each model", "one for each model, of the same type")
HEAD = "MODEL REQUESTS FAILED ANSWERS SECONDS CPU-S GPU-S MIB SHARE USD/1,000"


def text(found: dict[str, Any]) -> str:
    """Return the report for a person."""
    rows = [tuple(HEAD.split())]
    for one in found["models"]:
        usd = one["usd_per_1000_answers"]
        rows.append(
            (
                one["model"],
                *(str(one[name]) for name in ("requests", "failed", "answers")),
                *(f"{one[name]:.2f}" for name in ("seconds", "cpu_seconds", "gpu_seconds")),
                f"{one['memory_bytes'] / MIB:.0f}" if one["memory_bytes"] else "?",
                f"{one['machine_share']:.1%}",
                "-" if usd is None else f"{usd:.6f}",
            )
        )
    bills = [("", "USD/HOUR", f"DAY OF {found['hours_per_day']:g} H", f"{DAYS} DAYS")]
    for name, one in zip(ENDPOINTS, found["endpoints"].values(), strict=True):
        types: Counter[str] = Counter()
        for some in one["instances"]:
            types[some["instance"]] += some["count"]
        bills.append(
            (
                f"{name}: {' + '.join(f'{count} × {kind}' for kind, count in types.items())}",
                f"{one['usd_per_hour']:.3f}",
                f"{one['usd_per_day']:.2f}",
                f"{one['usd_per_30_days']:.2f}",
            )
        )
    prices = found["prices"]
    beside = found["programs_memory_bytes"]
    room = f"; {beside / MIB:.0f} MiB beside the models" if beside else ""
    return "".join(
        (
            f"Traffic of {found['seconds']:.0f} s{room}\n\n",
            table(rows),
            "\n",
            table(bills),
            f"\nPrices of {prices['date']}, {prices['region']}: {prices['source']}\n",
            *(f"Note: {one}\n" for one in found["notes"]),
        )
    )
