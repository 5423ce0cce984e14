"""The dashboards: their queries, and a load that gives these something to show."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import Any

from tests.conftest import PICTURES, Endpoint, picture
from tests.support.prometheus import JOB, OBSERVE

Json = dict[str, Any]


def dashboards() -> dict[str, Json]:
    """Return every dashboard by its title."""
    found = [json.loads(file.read_text()) for file in (OBSERVE / "dashboards").glob("*.json")]
    return {str(one["title"]): one for one in found}


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield each query with the titles of its dashboard and its panel."""
    for title, dashboard in sorted(dashboards().items()):
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield title, panel["title"], target["expr"]


def filled(expression: str, model: str, window: str) -> str:
    """Return a query with values for its variables, as Grafana sends it.

    Args:
        expression: as the dashboard has it.
        model: that is chosen.
        window: over which rates are taken, such as `20s`; Grafana's is four scrapes or more.

    """
    values = {
        "job": JOB,
        "instance": ".*",
        "model": model,
        "price": "0.23",
        "__rate_interval": window,
    }
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expression)


@contextmanager
def under_load(endpoint: Endpoint, callers: int = 3) -> Iterator[None]:
    """Ask the three models all the time: single requests, lists, wrong ones and one too large."""
    coffee = {"img": picture(PICTURES / "coffee.png")}
    text = {"text": "He went to the [MASK] to buy bread."}
    one = {"modelname": "resnet", "payload": coffee}
    other = {"modelname": "bert_base", "payload": text}
    bodies: list[object] = [
        one,
        other,
        {"requests": [one, other]},
        {"modelname": "yolov5", "payload": coffee},
        {"modelname": "resnet", "payload": {"img": "no picture"}},
    ]
    over = threading.Event()

    def ask(first: int) -> None:
        for body in itertools.cycle(bodies[first:] + bodies[:first]):
            if over.is_set():
                return
            with suppress(OSError, HTTPException):  # where something was killed meanwhile
                endpoint.call("/invocations", json.dumps(body))

    def ask_too_much() -> None:
        while not over.wait(2):
            with suppress(OSError, HTTPException):  # NGINX need not read all of it
                endpoint.call("/invocations", b" " * (26 * 2**20))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(callers)]
    threads.append(threading.Thread(target=ask_too_much))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
