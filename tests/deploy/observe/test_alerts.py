"""The alerts: by promtool, and by the run book."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT
from tests.support.dashboards import dashboards
from tests.support.prometheus import OBSERVE, needs_prometheus, promtool

RULES = [
    rule
    for group in yaml.safe_load((OBSERVE / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
METRIC = re.compile(r"(?<![\w:.])(?:up|nv_\w+|dispatcher[_:][\w:]+)(?![\w:])")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring) ?\(([^)]*)\)")
RUN_BOOK = (PROJECT / "docs" / "operations.md").read_text()


@needs_prometheus
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    done = promtool("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
@pytest.mark.slow
@pytest.mark.parametrize("name", ["alerts.test.yml", "alerts-days.test.yml"])
def test_the_alerts_fire_when_they_should_and_at_no_other_time(name: str) -> None:
    done = promtool("test", "rules", name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[one.get("alert", one.get("record")) for one in RULES])
def test_a_rule_keeps_releases_apart(rule: dict[str, Any]) -> None:
    """The chart writes its own namespace and service where a selector has this job."""
    expression = str(rule["expr"])
    bare = re.sub(r'"[^"]*"', lambda quoted: "_" * len(quoted[0]), expression)
    found = list(METRIC.finditer(bare))
    assert found
    for metric in found:
        assert expression[metric.end() :].startswith('{job="triton-dispatcher"'), metric[0]
    assert expression.count('{job="triton-dispatcher"') == len(found)
    for labels in GROUPING.findall(bare):
        assert labels.split(", ")[:3] == ["job", "namespace", "service"], labels
    assert len(GROUPING.findall(bare)) >= len(re.findall(r"\b(?:sum|avg|min|max|count) ?\b", bare))


def test_every_alert_is_seen_to_fire_by_these_tests() -> None:
    tests = "".join(file.read_text() for file in OBSERVE.glob("*.test.yml"))
    firing = set(re.findall(r'alertname="(\w+)",alertstate="firing"', tests))
    firing |= set(re.findall(r"alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:", tests))
    assert firing == {alert["alert"] for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_an_alert_leads_to_its_section_of_the_run_book_and_to_a_dashboard(
    alert: dict[str, Any],
) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "dashboard", "runbook"}
    assert notes["dashboard"] in dashboards()
    assert notes["runbook"] == f"docs/operations.md#{alert['alert'].lower()}"
    heading = f"#### {alert['alert']}\n"
    assert RUN_BOOK.count(heading) == 1, "the section of that name in docs/operations.md"
    section = RUN_BOOK.partition(heading)[2].partition("\n#")[0]
    named = re.findall(r"\*([^*]+) → ([^*]+)\*", section)
    assert named, f"{alert['alert']} names no panel to look at, as *Dashboard → Panel*"


def test_every_alert_and_panel_that_the_run_book_names_exists() -> None:
    described = set(re.findall(r"^#### (Dispatcher\w+)$", RUN_BOOK, re.MULTILINE))
    assert described == {alert["alert"] for alert in ALERTS}
    named = re.findall(r"\*([^*\n]+) → ([^*]+)\*", RUN_BOOK)
    panels = {
        (title, panel["title"])
        for title, dashboard in dashboards().items()
        for panel in dashboard["panels"]
    }
    assert len(named) > len(ALERTS)
    assert {(title, " ".join(panel.split())) for title, panel in named} <= panels
