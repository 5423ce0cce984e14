"""The instances that models need, and what one endpoint costs against several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from tool.cost.prices import Instance, Prices
from tool.cost.read import Traffic, Use
from tool.trouble import Trouble

MOST = 0.7  # of an instance's CPU, GPU and memory on average, so that peaks have room
GIB = 2**30
DAYS = 30  # in a month


@dataclass(frozen=True)
class Need:
    """What runs on an endpoint.

    Args:
        what: it is, in an error.
        cores: in use on average.
        gpus: in use on average.
        memory: bytes; 0 where that is not known.
        on_gpu: whether it needs a GPU.

    """

    what: str
    cores: float
    gpus: float
    memory: float
    on_gpu: bool


@dataclass(frozen=True)
class Endpoint:
    """Instances of one type."""

    instance: Instance
    count: int

    def usd(self, hours: Decimal = Decimal(1)) -> Decimal:
        """Return what some hours of it cost."""
        return self.instance.usd_per_hour * self.count * hours


@dataclass(frozen=True)
class Bill:
    """One endpoint against an endpoint for each model that was asked.

    Args:
        shared: for all models.
        separate: by model, each the cheapest that it needs.
        same: by model, each of the same type as the shared one.

    """

    shared: Endpoint
    separate: dict[str, Endpoint]
    same: dict[str, Endpoint]


def need(what: str, traffic: Traffic, uses: Iterable[Use]) -> Need:
    """Return what models need together, beside the programs of the container."""
    found = list(uses)
    return Need(
        what,
        cores=sum(use.cpu_seconds for use in found) / traffic.seconds,
        gpus=sum(use.gpu_seconds for use in found) / traffic.seconds,
        memory=traffic.memory + sum(use.memory_bytes for use in found),
        on_gpu=any(use.gpu_seconds for use in found),
    )


def endpoint(wanted: Need, instances: Sequence[Instance], where: str) -> Endpoint:
    """Return the cheapest endpoint for a need; each of its instances holds all of the memory.

    Args:
        wanted: the need.
        instances: to choose from, the cheapest first.
        where: they come from, for the error.

    Raises:
        Trouble: none has the memory or the GPU.

    """
    fits = [
        Endpoint(one, count(wanted, one))
        for one in instances
        if wanted.memory <= float(one.memory_gib) * GIB * MOST and (one.gpus or not wanted.on_gpu)
    ]
    if not fits:
        gpu = " and a GPU" if wanted.on_gpu else ""
        raise Trouble(
            f"{wanted.what} needs an instance with {wanted.memory / GIB / MOST:.1f} GiB of memory"
            f"{gpu}; none of {where} has that: choose another --instance, or add one to the prices"
        )
    return min(fits, key=Endpoint.usd)


def count(wanted: Need, one: Instance) -> int:
    """Return how many instances of a type the load needs."""
    gpus = wanted.gpus / one.gpus if one.gpus else 0
    return max(1, math.ceil(max(wanted.cores / one.vcpus, gpus) / MOST))


def bill(traffic: Traffic, prices: Prices, chosen: str = "") -> Bill:
    """Compare one endpoint with several.

    Args:
        traffic: of the models.
        prices: of the instances.
        chosen: the type of the shared endpoint; the cheapest that fits if empty.

    Raises:
        Trouble: nothing was asked, or no instance fits.

    """
    asked = {name: use for name, use in sorted(traffic.models.items()) if use.was_asked}
    if not asked or not traffic.seconds:
        raise Trouble(
            "no request to a model was counted, so there is nothing to divide the price by: send "
            "requests meanwhile, or take a longer time (--seconds)"
        )
    if chosen and chosen not in prices.instances:
        raise Trouble(
            f"there is no price for {chosen}; there are: {', '.join(prices.instances)}. "
            "Give --prices FILE with one"
        )
    every = list(prices.instances.values())
    picked = [prices.instances[chosen]] if chosen else every
    where = chosen or "the prices"
    shared = endpoint(need("all models together", traffic, traffic.models.values()), picked, where)
    needs = {name: need(name, traffic, [use]) for name, use in asked.items()}
    kind = shared.instance
    return Bill(
        shared,
        {name: endpoint(one, every, "the prices") for name, one in needs.items()},
        {name: Endpoint(kind, count(one, kind)) for name, one in needs.items()},
    )


def machine_share(use: Use, traffic: Traffic, shared: Endpoint) -> float:
    """Return which part of the shared endpoint a model uses: of its CPUs or its GPUs."""
    whole = traffic.seconds * shared.count
    cpu = use.cpu_seconds / (whole * shared.instance.vcpus)
    return max(cpu, use.gpu_seconds / (whole * shared.instance.gpus) if shared.instance.gpus else 0)


def per_thousand(use: Use, traffic: Traffic, shared: Endpoint) -> float | None:
    """Return the USD of 1,000 answers: the whole bill, idle time too, divided by use.

    `None` without an answer.
    """
    shares = sum(machine_share(one, traffic, shared) for one in traffic.models.values())
    if not use.answers or not shares:
        return None
    part = machine_share(use, traffic, shared) / shares
    return float(shared.usd()) * traffic.seconds / 3600 * part / use.answers * 1000
