"""What an endpoint costs an hour, by a file of list prices with a date."""

from __future__ import annotations

from pathlib import Path

from tool.cost.prices import PRICES, read_prices
from tool.deploy.plan import Wanted


def price_line(wanted: Wanted, file: Path | None) -> str:
    """Return the cost per hour in a line; empty where nothing runs by the hour.

    Args:
        wanted: the endpoint.
        file: of prices, in the form of `tool/cost/prices.json`; None for that one.

    Raises:
        Trouble: it is no such file.

    """
    place = file or PRICES
    if not wanted.instances:
        return ""
    prices = read_prices(place)
    one = prices.instances.get(wanted.instances[0])
    if one is None:
        return f"{place} has no price of {wanted.instances[0]}"
    least = most = wanted.count
    if wanted.scaling:
        least, most = wanted.scaling.least, wanted.scaling.most
    bounds = sorted({count * len(wanted.variants) for count in (least, most)})
    counts = " to ".join(str(count) for count in bounds)
    costs = " to ".join(f"{count * one.usd_per_hour:.3f}" for count in bounds)
    return (
        f"costs {costs} USD an hour: {counts} × {one.name} at {one.usd_per_hour} "
        f"(list price, {prices.region}, {prices.date})"
    )
