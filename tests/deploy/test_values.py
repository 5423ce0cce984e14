"""Wrong values are refused with one sentence; the notes say what the values leave open."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT
from tests.deploy.conftest import CHART, VARIABLES, Helm, Rendered, manifests

REFUSED: list[tuple[str, str]] = [
    ("replicaz=2", "Additional property replicaz is not allowed"),
    ("replicas=two", "replicas: Invalid type. Expected: integer, given: string"),
    ("models.source=disk", 'must be one of the following: "built-in", "s3", "volume", "image"'),
    ("sharedMemory=1 GB", "sharedMemory: Does not match pattern"),
    ("user=0", "user: Must be greater than or equal to 1"),
    ("settings.log-format=json", 'settings: Property name of "log-format" does not match'),
    ("settings.LOG_FROMAT=json", 'settings: Property name of "LOG_FROMAT" does not match'),
    ("resources.limits.memory=4 GB", "resources.limits.memory: Does not match pattern"),
    ("nameOverride=of.dots", 'the Service would be called "r-of.dots"'),
    ("settings.SAGEMAKER_BIND_TO_PORT=80", "PORT: Must be greater than or equal to 1024"),
    ("settings.SERVE_STOP_TIMEOUT=long", "SERVE_STOP_TIMEOUT: Does not match pattern"),
    ("autoscaling.saturation.target=70", "Invalid type. Expected: string"),
    ("models.source=s3", "models.source is s3; expected: models.s3.places"),
    ("models.s3.places={my-bucket}", "models.s3.places.0: Does not match pattern"),
    ("models.source=volume", "expected: models.volume.claim"),
    ("models.source=image", "expected: models.image.name"),
    ("apiKeys.secret=a,apiKeys.lines=b", "apiKeys.secret and apiKeys.lines are both set"),
    ("apiKeys.secret=a,settings.API_KEYS_FILE=/x", "settings.API_KEYS_FILE is set"),
    ("apiKeys.secret=a,serviceMonitor.enabled=true", "expected: serviceMonitor.apiKeySecret"),
    ("autoscaling.minReplicas=11", "autoscaling.minReplicas is larger"),
    ("ingress.enabled=true", "expected: ingress.hosts"),
    ("httpRoute.enabled=true", "expected: httpRoute.gateways"),
    ("strategy.maxSurge=0", "both 0"),
    ("tmp.medium=Memory", "more than resources.limits.memory (4Gi)"),
    ("tmp.medium=Memory,tmp.size=3.1Gi", "tmp.size (3.1Gi) and sharedMemory (1Gi)"),
    ("tmp.medium=Memory,tmp.size=512Mi,resources.limits.memory=1G", "(1G)"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "sentence"), REFUSED)
def test_a_wrong_value_is_one_sentence(helm: Helm, values: str, sentence: str) -> None:
    done = helm("template", "r", CHART, "--set", values)
    assert done.returncode != 0
    assert sentence in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) <= 4, "not a wall of text"


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("1rele ase", "release name"),
        ("Release", "release name"),
        ("r" * 54, "release name"),
        ("1release", "the Service would be called"),
        ("rel.ease", "the Service would be called"),
        ("r" * 53, ""),
        ("rel-1", ""),
    ],
)
def test_a_release_s_name_makes_names_that_kubernetes_takes(
    helm: Helm, release: str, said: str
) -> None:
    done = helm("template", release, CHART)
    assert (done.returncode != 0) == bool(said)
    assert said in done.stderr
    for one in manifests(done.stdout):
        if one["kind"] == "Service":
            assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"])
    done = helm("template", release, CHART, "--set", "fullnameOverride=mine")
    assert (done.returncode != 0) == (said == "release name")


def test_the_schema_knows_every_setting_and_value_and_no_other() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = schema["properties"]["settings"]["propertyNames"]["enum"]
    assert names == sorted(VARIABLES)

    def compare(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        assert set(schema["properties"]) - {"global"} == set(values), where
        assert schema["additionalProperties"] is False, where
        for name, one in values.items():
            part = schema["properties"][name]
            if isinstance(one, dict) and part.get("additionalProperties") is False:
                compare(one, part, name)

    compare(values, schema, "values")


def paths(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, one in values.items():
        yield f"{above}{name}"
        if isinstance(one, dict):
            yield from paths(one, f"{above}{name}.")


def test_the_page_names_settings_and_values_that_there_are() -> None:
    page = (PROJECT / "docs" / "kubernetes.md").read_text()
    comments = (CHART / "values.yaml").read_text() + (CHART / "templates" / "NOTES.txt").read_text()
    named = set(re.findall(r"settings\.([A-Z][A-Z_]+)", page + comments))
    named |= set(re.findall(r"`([A-Z0-9]+_[A-Z0-9_]+)`", page))
    assert {"SERVE_STOP_TIMEOUT", "ENGINE_CACHE", "MANAGEMENT_ROUTES"} <= named <= VARIABLES
    values = set(paths(yaml.safe_load((CHART / "values.yaml").read_text())))
    dotted = set(re.findall(r"`([a-z]\w+(?:\.[a-z]\w+)+)(?:: \w+)?`", page))
    assert {"drain.delaySeconds", "models.s3.places"} <= dotted
    assert dotted <= values


@pytest.fixture(scope="module")
def notes(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Render NOTES.txt, which Helm itself shows only where it reaches a cluster."""
    chart = tmp_path_factory.mktemp("notes") / "chart"
    shutil.copytree(CHART, chart)
    file = chart / "templates" / "NOTES.txt"
    text = f'{{{{ define "notes" }}}}{file.read_text()}{{{{ end }}}}'
    file.with_name("notes.yaml").write_text(f'{text}notes: {{{{ include "notes" . | quote }}}}\n')
    file.unlink()

    def rendered(*options: str | Path) -> str:
        done = helm("template", "r", chart, "--show-only", "templates/notes.yaml", *options)
        assert done.returncode == 0, done.stderr
        return str(yaml.safe_load(done.stdout)["notes"])

    return rendered


def test_the_notes_say_what_is_open(notes: Callable[..., str]) -> None:
    text = notes()
    assert "No API keys are set" in text
    assert "kubectl rollout status deployment/r-triton-dispatcher" in text
    assert "curl http://127.0.0.1:8080/models" in text
    assert "Triton's own ports" not in text
    assert "one replica" not in text
    assert "one replica" in notes("--set", "replicas=1")
    text = notes("--values", CHART / "examples" / "all.yaml")
    assert "No API keys" not in text
    assert 'curl -H "x-api-key: $KEY" http' in text
    assert "Triton's own ports are open" in text


def test_an_alert_has_a_link_where_the_chart_knows_the_docs_address(
    render: Callable[..., Rendered],
) -> None:
    url = "https://git.example.com/triton-dispatcher/docs"
    for given in (url, f"{url}/"):
        groups = render("all", f"prometheusRule.docsUrl={given}").one("PrometheusRule")["spec"]
        for alert in (
            one for group in groups["groups"] for one in group["rules"] if "alert" in one
        ):
            link = alert["annotations"]["runbook_url"]
            assert link == f"{url}/operations.md#{alert['alert'].lower()}"
