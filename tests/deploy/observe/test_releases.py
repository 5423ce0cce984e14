"""What Prometheus makes of a release's rules and of its autoscaler's query, by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_chart import Render
from tests.support.prometheus import judged, needs_prometheus, promtool

pytestmark = needs_prometheus
JOB = 'job="triton-dispatcher",namespace="default"'
ALERTS = "prometheusRule.enabled=true"


@pytest.fixture
def rules(render: Render, tmp_path: Path) -> list[Path]:
    """The rules of two releases in one namespace, with the Services `cpu` and `gpu`."""
    files = []
    for name in ("cpu", "gpu"):
        rule = render("", ALERTS, f"fullnameOverride={name}").one("PrometheusRule")
        files.append(tmp_path / f"{name}.yml")
        files[-1].write_text(yaml.safe_dump(rule["spec"]))
    return files


def test_prometheus_takes_the_rules_of_two_releases(rules: list[Path]) -> None:
    """`--lint=all` finds rules that record the same series twice."""
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", *rules)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_release_alerts_on_its_own_pods_only(rules: list[Path], tmp_path: Path) -> None:
    """One of `cpu` is down and half of its requests fail; `gpu` has no pods at all."""
    requests = f'dispatcher_requests_total{{{JOB},service="cpu",instance="a",model="m",status='
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": [
            {"series": f'up{{{JOB},service="cpu",instance="a"}}', "values": "1x8 0x60"},
            {"series": f'{requests}"200"}}', "values": "0+15x60"},
            {"series": f'{requests}"500"}}', "values": "0+15x60"},
        ],
        "promql_expr_test": [
            {
                "expr": f"count by (alertname, service) "
                f'(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": "10m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}",service="{service}"}}', "value": 1}
                ],
            }
            for alert, service in (("DispatcherDown", "cpu"), ("DispatcherAbsent", "gpu"))
        ]
        + [
            {
                "expr": "dispatcher:errors:ratio_rate5m",
                "eval_time": "10m",
                "exp_samples": [
                    {
                        "labels": f"dispatcher:errors:ratio_rate5m"
                        f'{{{JOB},service="cpu",model="m"}}',
                        "value": 0.5,
                    }
                ],
            }
        ],
    }
    assert not judged(tmp_path, test, *rules)


@pytest.mark.parametrize(
    ("interval", "up", "requests", "expected"),
    [
        ("15s", "1x40", "0+150x40", 10),
        ("1m", "1x40", "0+600x40", 10),
        ("15s", "1x40", "", 0),  # a new pool: nobody has asked yet
        ("15s", "0x40", "", None),  # Prometheus cannot scrape a pod, so nobody knows
        ("15s", "", "", None),
        # Once served, now gone for longer than the rate looks back.
        ("15s", "1x8 0x32", "0+150x8 stale", None),
    ],
)
def test_keda_tells_no_requests_from_no_data(
    render: Render, tmp_path: Path, interval: str, up: str, requests: str, expected: float | None
) -> None:
    """`expected` is in requests a second; None is an empty answer, by which no pod is removed."""
    rendered = render("keda", f"serviceMonitor.interval={interval}")
    (trigger,) = rendered.one("ScaledObject")["spec"]["triggers"]
    own = f'{{{JOB},service="r-triton-dispatcher",instance="a"'
    series = [(f"up{own}}}", up), (f'dispatcher_requests_total{own},model="m"}}', requests)]
    series += [(f'dispatcher_requests_total{own},model=""}}', requests)]  # such as of /ping
    series += [(one.replace("r-triton", "other"), values) for one, values in series]
    test = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series if values],
        "promql_expr_test": [
            {
                "expr": trigger["metadata"]["query"],
                "eval_time": "8m",
                "exp_samples": [] if expected is None else [{"labels": "{}", "value": expected}],
            }
        ],
    }
    assert not judged(tmp_path, test)
