"""The chart, rendered by a real Helm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.settings import rows
from tests.conftest import PROJECT

DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "helm" / "triton-dispatcher"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
HELM = Path(sys.executable).parent / "helm"

# What may be set: the server's settings, and variables of AWS and OpenTelemetry that others read.
SETTINGS = {row.variable for row in rows()}
OTHERS = {
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SDK_DISABLED"),
    *("OTEL_SERVICE_NAME", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"),
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    *("AWS_ENDPOINT_URL_S3", "AWS_REGION"),
}
VARIABLES = SETTINGS | OTHERS

Manifest = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]


class Rendered(list[Manifest]):
    """What a rendering consists of."""

    def one(self, kind: str) -> Manifest:
        (found,) = [one for one in self if one["kind"] == kind and not is_test(one)]
        return found

    def kinds(self) -> set[str]:
        return {one["kind"] for one in self if not is_test(one)}

    def pod(self) -> Manifest:
        spec: Manifest = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    def server(self) -> Manifest:
        (container,) = self.pod()["containers"]
        return dict(container)

    def environment(self) -> dict[str, str]:
        return {one["name"]: one.get("value", "") for one in self.server().get("env", [])}

    def volume(self, name: str) -> Manifest:
        (found,) = [one for one in self.pod()["volumes"] if one["name"] == name]
        return dict(found)


def is_test(manifest: Manifest) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def manifests(text: str) -> Rendered:
    """Read a stream of YAML; a key that is there twice is an error, as for the API server."""
    return Rendered(one for one in yaml.load_all(text, Strict) if one)


class Strict(yaml.SafeLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT002
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}, {node.start_mark}"
        return super().construct_mapping(node, deep)


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Run Helm, with nothing of this user's own."""
    if not HELM.exists():
        pytest.skip("there is no Helm for this kind of processor on PyPI")
    home = tmp_path_factory.mktemp("helm")
    environment = {
        **os.environ,
        **{f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")},
    }

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HELM, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Callable[..., Rendered]:
    """Render the chart with one of its examples, or none, and `--set` for the rest."""

    @cache
    def rendered(example: str = "", *sets: str) -> Rendered:
        files = ["--values", str(CHART / "examples" / f"{example}.yaml")] if example else []
        given = [word for one in sets for word in ("--set", one)]
        done = helm("template", "r", CHART, *files, *given)
        assert done.returncode == 0, done.stderr
        return manifests(done.stdout)

    return rendered
