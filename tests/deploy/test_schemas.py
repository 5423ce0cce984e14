"""The manifests, by the schemas of Kubernetes and the fields of KServe."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.deploy.conftest import (
    CHART,
    DEPLOY,
    EXAMPLES,
    VARIABLES,
    Helm,
    Manifest,
    Rendered,
    manifests,
)
from tests.deploy.test_chart import Render

slow = pytest.mark.slow
REQUIREMENTS = PROJECT / "tests" / "deploy" / "requirements"
NAMES = ["", *(path.stem for path in EXAMPLES)]

# Of operators: test_chart.py looks at what they read, and promtool at the rules.
OTHERS = {"HTTPRoute", "ScaledObject", "ServiceMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own: the schemas alone take 100 MB."""
    return installed(tmp_path_factory.mktemp("schemas") / "environment", "schemas", "kserve")


def installed(home: Path, *names: str) -> Path:
    """Make an environment with what these files of requirements name; return its folder."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    install = ["pip", "install", "--no-deps", "--require-hashes", "--python", home / "bin/python"]
    files = [word for name in names for word in ("-r", REQUIREMENTS / f"{name}.txt")]
    for command in (["venv", "--python", sys.executable, home], [*install, *files]):
        subprocess.run([*uv, *command], check=True)
    return home


def validate(environment: Path, folder: Path, documents: Rendered) -> str:
    """Return what `kubernetes-validate --strict` says against them; empty where it agrees."""
    file = folder / "documents.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    done = subprocess.run(
        [environment / "bin" / "kubernetes-validate", "--strict", "--no-warn", file],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


@slow
@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_takes_it(environment: Path, render: Render, tmp_path: Path, name: str) -> None:
    core = Rendered(one for one in render(name) if one["kind"] not in OTHERS)
    assert {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"} <= core.kinds()
    assert not validate(environment, tmp_path, core)


# KServe


def kserve(name: str) -> Manifest:
    (found,) = manifests((DEPLOY / "kserve" / f"{name}.yaml").read_text())
    return found


def test_kserve_starts_the_server_as_the_chart_does(render: Render) -> None:
    spec = kserve("serving-runtime")["spec"]
    (container,) = spec["containers"]
    server, pod = render().server(), render().pod()
    assert container["name"] == "kserve-container", "KServe looks for this name"
    for part in ("args", "lifecycle", "resources", "volumeMounts"):
        assert container[part] == server[part]
    for part in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = {**server[part], "httpGet": {**server[part]["httpGet"], "port": 8080}}
        assert container[part] == asked
    assert container["securityContext"].items() >= server["securityContext"].items()
    assert container["securityContext"]["runAsNonRoot"] is True
    assert spec["volumes"] == pod["volumes"]
    assert container["image"] == server["image"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert set(environment) <= VARIABLES
    assert environment.pop("MODEL_REPOSITORY") == "/mnt/models", "where KServe puts them"
    settings = read_settings(environment)
    assert container["ports"] == [{"containerPort": settings.port, "protocol": "TCP"}]
    predictor = kserve("inference-service")["spec"]["predictor"]
    grace = predictor["terminationGracePeriodSeconds"]
    assert grace == pod["terminationGracePeriodSeconds"]
    assert not settings.management_routes, "a load would take longer"
    assert predictor["timeout"] == settings.stream_timeout
    formats = {one["name"] for one in spec["supportedModelFormats"]}
    assert predictor["model"]["modelFormat"]["name"] in formats
    assert predictor["model"]["runtime"] == kserve("serving-runtime")["metadata"]["name"]


@slow
def test_kserve_knows_every_field(environment: Path, tmp_path: Path) -> None:
    """By the names in KServe's package, which has no schema; the pod by Kubernetes' own."""
    runtime, service = kserve("serving-runtime"), kserve("inference-service")
    predictor = service["spec"]["predictor"]
    for found, model in (
        (runtime["spec"], "v1alpha1_serving_runtime_spec"),
        (runtime["spec"]["supportedModelFormats"][0], "v1alpha1_supported_model_format"),
        (service["spec"], "v1beta1_inference_service_spec"),
        (predictor, "v1beta1_predictor_spec"),
        (predictor["model"], "v1beta1_model_spec"),
        (predictor["model"]["modelFormat"], "v1beta1_model_format"),
    ):
        assert set(found) <= fields_of(environment, model), model
    parts = ("containers", "volumes")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {part: runtime["spec"][part] for part in parts},
    }
    assert not validate(environment, tmp_path, Rendered([pod]))


def fields_of(environment: Path, model: str) -> set[str]:
    (file,) = environment.glob(f"lib/python3*/site-packages/kserve/models/{model}.py")
    match = re.search(r"attribute_map = (\{.*?\})", file.read_text(), re.DOTALL)
    assert match
    names: dict[str, str] = ast.literal_eval(match[1])
    return set(names.values())


@slow
def test_a_package_of_the_chart_has_what_it_needs(helm: Helm, tmp_path: Path) -> None:
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0
    (package,) = tmp_path.glob("*.tgz")
    assert helm("lint", "--strict", "--quiet", package).stdout == ""
