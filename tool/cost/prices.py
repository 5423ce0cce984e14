"""A file of prices of instances, with its date."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from clients.repository.files import text_of
from tool.trouble import Trouble

PRICES = Path(__file__).with_name("prices.json")
"""The one that is taken where no other is given."""

TOO_MUCH = 10**6  # of anything
FIELDS = ("usd_per_hour", "vcpus", "memory_gib", "gpus")
EXAMPLE = "tool/cost/prices.json shows the form"


@dataclass(frozen=True)
class Instance:
    """A type of instance, and its price in USD per hour."""

    name: str
    usd_per_hour: Decimal
    vcpus: int
    memory_gib: Decimal
    gpus: int


@dataclass(frozen=True)
class Prices:
    """A file of prices.

    Args:
        date: on which they were known; a year or a month will do.
        region: where they hold.
        source: where they come from.
        instances: by name, the cheapest first.

    """

    date: str
    region: str
    source: str
    instances: dict[str, Instance]


def read_prices(path: Path) -> Prices:
    """Read a file of prices.

    Raises:
        Trouble: it is not JSON, or lacks something.

    """
    try:
        document: Any = json.loads(text_of(path), parse_float=Decimal)
    except OSError as error:
        raise Trouble(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Trouble(f"{path} is not JSON: {error}; {EXAMPLE}") from error
    given = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(given, dict) or not given:
        raise Trouble(f'{path} has no object "instances" with at least one type; {EXAMPLE}')
    for name in ("date", "region", "source"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise Trouble(f'{path} has no text "{name}": prices change, so say it; {EXAMPLE}')
    instances = [read_instance(path, name, fields) for name, fields in given.items()]
    instances.sort(key=lambda one: (one.usd_per_hour, one.name))
    by_name = {one.name: one for one in instances}
    return Prices(document["date"], document["region"], document["source"], by_name)


def read_instance(path: Path, name: str, fields: Any) -> Instance:
    """Return one type of a file of prices."""
    found = fields if isinstance(fields, dict) else {}
    for key in FIELDS:
        value: Any = found.get(key)
        whole = key in {"vcpus", "gpus"}
        right = type(value) is int or (type(value) is Decimal and not whole)
        if not right or not 0 <= value < TOO_MUCH or (not value and key != "gpus"):
            raise Trouble(
                f"{path}: {key} of {name} is {json.dumps(value, default=str)}; expected a "
                f"{'whole ' * whole}number {'from 0' if key == 'gpus' else 'above 0'}; {EXAMPLE}"
            )
    return Instance(name, **{key: found[key] for key in FIELDS})
