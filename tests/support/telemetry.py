"""What a container has counted and logged."""

from __future__ import annotations

import json
import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Endpoint, wait_for

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(endpoint: Endpoint, **headers: str) -> Samples:
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    answer = endpoint.call("/metrics", headers=names)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return parse_page(answer.body.decode())


def parse_page(page: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples with at least these labels."""
    wanted = set(labels.items())
    return sum(v for (n, found), v in samples.items() if n == name and wanted <= found)


def settled(endpoint: Endpoint, **headers: str) -> Samples:
    """Return the metrics when all that was answered is counted: it is after the last byte."""
    found: list[Samples] = []

    def alone() -> bool:
        found[:] = [scraped(endpoint, **headers)]
        return value(found[0], "dispatcher_requests_in_flight") == 1

    wait_for(alone, "the end of all requests but the one that asks")
    return found[0]


def difference(after: Samples, before: Samples) -> Samples:
    return {key: number - before.get(key, 0) for key, number in after.items()}


def lines_of(endpoint: Endpoint, request_id: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the lines for a request, once there are so many."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        text = endpoint.log.read_text().splitlines()
        found[:] = [json.loads(line) for line in text if f'"request_id": "{request_id}"' in line
                    or f'"request_id":"{request_id}"' in line]  # fmt: skip
        return len(found) >= count

    wait_for(there, f"{count} lines for {request_id}")
    time.sleep(0.3)
    assert there()
    assert len(found) == count
    return found
