"""The tables: machines and their price, surges, and which limit is reached first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench.capacity.answers import AFTER_S, Answer, Plan, Surged, needed
from bench.load.work import PROJECT
from container.programs.nginx import MOST_CONNECTIONS, REQUESTS_SHARE
from dispatcher.settings import with_others
from tool.cost.prices import Instance, Prices

NGINX_CPU_S = 0.2e-3
"""Of a request with a picture of 160 kB, without TLS: docs/performance.md, measured."""
IMAGE_BYTES = 1.2e9
"""README.md: the image with all three models."""
LINK_BITS = 10e9
NODES = 5000
"""Kubernetes' own limit: https://kubernetes.io/docs/setup/best-practices/cluster-large/"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def cheapest(prices: Prices, cores: int) -> Instance | None:
    """Return the cheapest type without a GPU that has so many CPUs, if there is one."""
    fits = [one for one in prices.instances.values() if one.vcpus == cores and not one.gpus]
    return min(fits, key=lambda one: one.usd_per_hour, default=None)


def machines(plan: Plan, found: Sequence[Answer], prices: Prices) -> str:
    """Return how many machines each traffic needs."""
    rows = []
    for one in found:
        if one.outcome is None:
            limit = f"a lone request takes {plan.alone(one.cores) * 1e3:.0f} ms at p99"
            rows.append([f"{one.rate:g}", one.cores, f"none: {limit}", *["–"] * 7])
            continue
        kind, outcome = cheapest(prices, one.cores), one.outcome
        hourly = float(kind.usd_per_hour) * one.machines if kind else math.nan
        rows.append(
            [
                f"{one.rate:g}",
                one.cores,
                one.machines,
                f"{outcome.quantile(0.5) * 1e3:.0f}",
                f"{outcome.quantile(0.99) * 1e3:.0f}",
                f"{outcome.utilisation:.0%}",
                f"{outcome.saturation:.2f}",
                f"{outcome.refused:.2%}",
                f"{hourly:,.2f} ({kind.name})" if kind else "no price",
                f"{hourly / one.rate / 3600 * 1e6:.2f}" if kind else "–",
            ]
        )
    head = [
        *("requests/s", "cores", "machines", "p50 ms", "p99 ms", "cores used", "saturation"),
        *("refused", "USD/hour", "USD/million"),
    ]
    mix = ", ".join(f"{part:.0%} {name}" for name, part in plan.mix.items())
    note = f"Prices of {prices.date}, {prices.region}: {prices.source}\n"
    return (
        f"{mix}; p99 at most {plan.p99 * 1e3:g} ms; balanced {plan.balance}\n\n"
        f"{table(head, rows)}\n{note}"
    )


def surges(begin: Answer, found: Sequence[Surged]) -> str:
    """Return what surges do."""
    rows = [
        [
            f"×{one.surge.factor:g} within {one.surge.over:g} s",
            f"{one.surge.delay:g} s",
            f"{one.target:.2f}",
            f"{one.before} → {one.after}",
            f"{one.worst * 1e3:.0f}",
            f"{one.refused:.0%}",
            f"not within {AFTER_S:.0f} s" if math.isinf(one.restored) else f"{one.restored:.0f} s",
            f"{one.headroom} (+{one.headroom / one.before - 1:.0%})",
        ]
        for one in found
    ]
    head = [
        *("surge", "machine answers after", "target", "machines", "worst p99 ms", "refused"),
        *("p99 kept again after", "machines before, to keep it"),
    ]
    return (
        f"\nFrom {begin.rate:g} requests/s on machines of {begin.cores} cores; p99 and refusals of "
        f"the worst minute\n\n{table(head, rows)}"
    )


def limits(plan: Plan, one: Answer) -> str:
    """Return which limit is reached at which traffic, the lowest first."""
    each = one.rate / one.machines
    services = plan.services(one.cores)
    bits = 8 * sum(
        part * (services[name].bytes_in + services[name].bytes_out)
        for name, part in plan.mix.items()
    )
    values = (PROJECT / "deploy/helm/triton-dispatcher/values.yaml").read_text(encoding="utf-8")
    found = re.search(r"maxReplicas: (\d+)", values)
    replicas = int(found[1]) if found else 0
    rows: list[tuple[float, str, str]] = [
        (
            replicas * each,
            f"`autoscaling.maxReplicas: {replicas}`",
            f"{each:.1f} requests/s a machine; the chart's values.yaml",
        ),
        (
            1 / NGINX_CPU_S,
            "a core of an ingress NGINX",
            "0.2 CPU-ms a request without TLS, as measured for the container's own",
        ),
        (NODES * each, f"{NODES} nodes of a cluster", "Kubernetes' documentation"),
    ]
    if bits:
        rows.append(
            (
                LINK_BITS / bits,
                f"a link of {LINK_BITS / 1e9:g} Gbit/s at the ingress",
                f"{bits / 8e3:.0f} kB a request, measured",
            )
        )
    rows += skew(plan, one)
    lines = table(
        ["reached at", "limit", "by"],
        ([f"{at:,.0f}/s", what, why] for at, what, why in sorted(rows)),
    )
    if one.outcome is None:
        return lines
    most = plan.limits(one.cores).workers * (with_others(plan.threads) + plan.queue)
    held = MOST_CONNECTIONS * REQUESTS_SHARE
    flying = one.rate * float(one.outcome.quantile(0.5))
    return (
        f"\nAt {one.rate:g} requests/s, {one.machines} machines of {one.cores} cores\n\n{lines}\n"
        f"Not reached: NGINX's {held:.0f} requests at a time; a machine has at most {most} running "
        f"and waiting. All machines have some {flying:,.0f} requests at a time. Half as many "
        f"machines again pull {one.machines / 2 * IMAGE_BYTES / 1e9:,.0f} GB of images: "
        f"{one.machines / 2 * IMAGE_BYTES * 8 / LINK_BITS:,.0f} s of a 10 Gbit/s registry.\n"
    )


def skew(plan: Plan, one: Answer) -> list[tuple[float, str, str]]:
    """Return the traffic that they bear where the heaviest model has twice its share."""
    if len(plan.mix) == 1:
        return []
    services = plan.services(one.cores)
    hot = max(plan.mix, key=lambda name: services[name].core_seconds())
    part = min(1.0, 2 * plan.mix[hot])
    rest = (1 - part) / (1 - plan.mix[hot])
    mix = {name: part if name == hot else share * rest for name, share in plan.mix.items()}
    again = needed(replace(plan, mix={k: v for k, v in mix.items() if v}), one.rate, one.cores)
    if not again.machines:
        return []
    return [
        (
            one.rate * one.machines / again.machines,
            f"a hot model: {part:.0%} {hot} in place of {plan.mix[hot]:.0%}",
            f"{again.machines} machines in place of {one.machines}, simulated",
        )
    ]
