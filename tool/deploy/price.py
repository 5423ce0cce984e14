"""What an endpoint costs an hour, by a file of list prices with a date."""

from __future__ import annotations

import json
from pathlib import Path

from tool.deploy.plan import Wanted
from tool.trouble import Trouble

PRICES = Path(__file__).parents[1] / "cost" / "prices.json"


def price_line(wanted: Wanted, file: Path | None) -> str:
    """Return the cost per hour in a line; empty where nothing runs by the hour.

    Args:
        wanted: the endpoint.
        file: `{"date", "region", "instances": {TYPE: {"usd_per_hour"}}}`; None for PRICES.

    Raises:
        Trouble: it is no such file.

    """
    place = file or PRICES
    if not wanted.instances or (file is None and not place.is_file()):
        return ""
    one = wanted.instances[0]
    try:
        prices = json.loads(place.read_bytes())
        where = f"{prices['region']}, {prices['date']}"
        known = prices["instances"].get(one)
        price = known and float(known["usd_per_hour"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Trouble(
            f"--prices {place}: {error!r}; expected JSON with date, region and instances, each "
            "with usd_per_hour"
        ) from error
    if price is None:
        return f"{place} has no price of {one}"
    least, most = wanted.count, wanted.count
    if wanted.scaling:
        least, most = wanted.scaling.least, wanted.scaling.most
    counts = f"{least}" if least == most else f"{least} to {most}"
    costs = (
        f"{least * price:.3f}" if least == most else f"{least * price:.3f} to {most * price:.3f}"
    )
    return f"costs {costs} USD an hour: {counts} × {one} at {price} (list price, {where})"
