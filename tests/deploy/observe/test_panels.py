"""Every query of every panel, asked of a real Prometheus that scrapes a server under load."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.conftest import Endpoint, wait_for
from tests.support.dashboards import filled, queries, under_load
from tests.support.prometheus import Prometheus, needs_prometheus, prometheus

pytestmark = [pytest.mark.slow, needs_prometheus]

MODEL = "resnet"
# What is not there on this machine, or was not asked for: only their syntax is looked at.
MAY_BE_EMPTY = {
    ("A model", "Cache hits"),
    ("A model", "Calls by version"),
    ("A model", "Canary"),
    ("A model", "Comparisons with the shadow"),
    ("A model", "Failed calls by version"),
    ("A model", "Faster than ONNX Runtime"),  # where that itself was chosen
    ("A model", "Time by version"),
    ("A request's phases", "Waiting for S3"),
    ("Capacity", "GPU"),
    ("Capacity", "GPU memory"),
    ("Capacity", "GPU seconds of a million answers"),
    ("Overview", "Firing alerts"),
}
WINDOW = "30s"


@pytest.fixture(scope="module")
def watched(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that looks at a server under load."""
    with (
        prometheus(tmp_path_factory.mktemp("prometheus"), endpoint.port) as running,
        under_load(endpoint),
    ):
        yield running


@pytest.mark.parametrize(("dashboard", "panel", "query"), list(queries()))
def test_a_query_has_an_answer(watched: Prometheus, dashboard: str, panel: str, query: str) -> None:
    def shows_something() -> bool:
        found = watched.series(filled(query, MODEL, WINDOW))
        may_be_empty = (dashboard, panel) in MAY_BE_EMPTY
        return may_be_empty or any(not math.isnan(float(one["value"][1])) for one in found)

    wait_for(shows_something, "an answer that is not empty")


def test_what_may_be_empty_is_there() -> None:
    assert {(dashboard, panel) for dashboard, panel, _ in queries()} >= MAY_BE_EMPTY


def test_the_alerts_are_evaluated_and_none_fires(watched: Prometheus) -> None:
    groups = watched.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert firing <= {"DispatcherLatencyBudgetBurnsFast"}, "which is right on a slow machine"
