"""The dashboards, as files: what Grafana does not refuse and would still show wrongly."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.deploy.observe.test_alerts import RULES
from tests.support.dashboards import Json, dashboards, filled, queries
from tests.support.prometheus import JOB, OBSERVE, judged, needs_prometheus

DASHBOARDS = dashboards()
EXPRESSIONS = [*(query for _, _, query in queries()), *(rule["expr"] for rule in RULES)]
COLUMNS = 24
# Of Triton 2.51: those of a model, of the machine and of a GPU.
TRITON = re.compile(
    "nv_inference_(request_success|request_failure|count|exec_count|pending_request_count"
    "|(request|queue|compute_(input|infer|output))_duration_us)"
    "|nv_cpu_(utilization|memory_(used|total)_bytes)"
    "|nv_gpu_(utilization|memory_(used|total)_bytes)"
)


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_panels_are_apart_say_what_they_show_and_use_the_variables_that_there_are(
    dashboard: Json,
) -> None:
    panels = dashboard["panels"]
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels), key
    for panel in panels:
        assert panel["description"].endswith((".", "?")), panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= COLUMNS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for one in expressions for name in re.findall(r"\$(\w+)", one)}
    assert used - {"__rate_interval"} == variables - {"datasource"}


def test_every_metric_that_is_asked_for_is_documented_or_recorded() -> None:
    words = {
        word
        for expression in EXPRESSIONS
        for word in re.findall(r"(?:dispatcher|nv)_\w+", re.sub(r'"[^"]*"', "", expression))
    }
    assert words
    ours = {re.sub("_(bucket|sum|count)$", "", word) for word in words if word[0] == "d"}
    page = (PROJECT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (`dispatcher_[^|]+) \|", page, re.MULTILINE)
    assert ours <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert all(TRITON.fullmatch(word) for word in words if word[0] == "n"), words
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    used = {word for one in EXPRESSIONS for word in re.findall(r"dispatcher:[\w:]+", one)}
    assert used == recorded


@needs_prometheus
def test_a_model_costs_what_the_run_book_s_example_says(tmp_path: Path) -> None:
    """The answers and CPU seconds of a minute are the page's, and so is the price of the hour."""
    page = (OBSERVE.parents[1] / "docs" / "operations.md").read_text()
    rows = re.findall(r"\| `(\w+)` \| (\d+) \| ([\d.]+) \| \d+ % \| ([\d.]+) \|", page)
    (price,) = re.findall(r"at ([\d.]+) USD an hour", page)
    where = f'job="{JOB}",instance="a"'
    given = [f"dispatcher_ready{{{where}}} 1+0x60"]
    for model, answers, seconds, _ in rows:
        labels = f'{where},model="{model}"'
        given.append(f"dispatcher_cpu_seconds_total{{{labels}}} 0+{seconds}x60")
        given.append(f'dispatcher_requests_total{{{labels},status="200"}} 0+{answers}x60')
    (expression,) = [one for _, title, one in queries() if title.startswith("A million answers")]
    rounded = f"round({filled(expression.replace('$price', price), '', '1m')}, 0.01)"
    costs = [
        {"labels": f'{{model="{model}"}}', "value": round(100 * float(cost))}
        for model, _, _, cost in rows
    ]
    asked = {"expr": f"{rounded} * 100", "eval_time": "60m", "exp_samples": costs}
    series = [dict(zip(("series", "values"), one.split(" "), strict=True)) for one in given]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    assert len(rows) == 3
    assert not judged(tmp_path, test)
