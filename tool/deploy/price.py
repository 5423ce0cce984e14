"""What an endpoint costs an hour, by a file of list prices with a date."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from clients.repository.files import text_of
from tool.deploy.plan import Wanted
from tool.trouble import Trouble

PRICES = Path(__file__).with_name("prices.json")
"""The one that is taken where no other is given."""

TOO_MUCH = 10**6


def price_line(wanted: Wanted, file: Path | None) -> str:
    """Return the cost per hour in a line; empty where nothing runs by the hour.

    Args:
        wanted: the endpoint.
        file: of prices, in the form of `prices.json` beside this module; None for that one.

    Raises:
        Trouble: it is no such file.

    """
    place = file or PRICES
    if not wanted.instances:
        return ""
    name = wanted.instances[0]
    prices = read_prices(place)
    if name not in prices["instances"]:
        return f"{place} has no price of {name}"
    price = per_hour(place, name, prices["instances"][name])
    least = most = wanted.count
    if wanted.scaling:
        least, most = wanted.scaling.least, wanted.scaling.most
    bounds = sorted({count * len(wanted.variants) for count in (least, most)})
    counts = " to ".join(str(count) for count in bounds)
    costs = " to ".join(f"{count * price:.3f}" for count in bounds)
    return (
        f"costs {costs} USD an hour: {counts} × {name} at {price} "
        f"(list price, {prices['region']}, {prices['date']})"
    )


def read_prices(path: Path) -> dict[str, Any]:
    """Read a file of prices.

    Raises:
        Trouble: it is not JSON, or lacks something.

    """
    example = f"{PRICES} shows the form"
    try:
        document: Any = json.loads(text_of(path), parse_float=Decimal)
    except OSError as error:
        raise Trouble(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Trouble(f"{path} is not JSON: {error}; {example}") from error
    given: dict[str, Any] = document if isinstance(document, dict) else {}
    if not isinstance(given.get("instances"), dict) or not given["instances"]:
        raise Trouble(f'{path} has no object "instances" with at least one type; {example}')
    for name in ("date", "region"):
        if not isinstance(given.get(name), str) or not given[name]:
            raise Trouble(f'{path} has no text "{name}": prices change, so say it; {example}')
    return given


def per_hour(path: Path, name: str, fields: Any) -> Decimal:
    """Return the price of a type of instance in USD."""
    value: Any = fields.get("usd_per_hour") if isinstance(fields, dict) else None
    if type(value) not in {int, Decimal} or not 0 < value < TOO_MUCH:
        said = json.dumps(value, default=str)
        raise Trouble(f"{path}: usd_per_hour of {name} is {said}; expected a number above 0")
    return Decimal(value)
