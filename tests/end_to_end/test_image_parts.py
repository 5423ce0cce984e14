"""The image's parts list (SBOM), compared with the image; and known vulnerabilities in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from container.image import audit
from tests.support.docker import build, docker

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("engine")]

PIP = "/opt/triton-dispatcher/.venv/bin/python"
LIST = "/licenses/sbom.cdx.json"


def inside(image: str, *command: str) -> str:
    return docker("run", "--rm", "--entrypoint", command[0], image, *command[1:])


@pytest.fixture(scope="module")
def text(image: str) -> str:
    return inside(image, "cat", LIST)


@pytest.fixture(scope="module")
def parts(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["components"]
    return found


def by_kind(parts: list[dict[str, Any]], kind: str) -> dict[str, str]:
    return {
        one["name"].lower().replace("_", "-"): one["version"]
        for one in parts
        if one.get("purl", "").startswith(f"pkg:{kind}/")
    }


def test_it_has_the_python_packages_that_pip_sees(image: str, parts: list[dict[str, Any]]) -> None:
    seen = json.loads(inside(image, "env", "HOME=/tmp", PIP, "-m", "pip", "list", "--format=json"))
    names = {one["name"].lower().replace("_", "-"): one["version"] for one in seen}
    version = names.pop("triton-dispatcher")
    assert by_kind(parts, "pypi") == names
    assert {"openvino", "nvidia-pytriton", "onnxruntime"} < names.keys()
    assert version == json.loads(inside(image, "cat", LIST))["metadata"]["component"]["version"]


def test_it_has_the_packages_that_dpkg_sees(image: str, parts: list[dict[str, Any]]) -> None:
    lines = inside(image, "env", "COLUMNS=300", "dpkg", "--list").splitlines()
    seen = {
        words[1].split(":")[0]: words[2] for line in lines if (words := line.split())[0] == "ii"
    }
    assert by_kind(parts, "deb") == seen
    assert {"nginx", "python3.11", "libc6"} < seen.keys()


def test_the_system_has_no_known_vulnerability(
    image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor what the Dockerfile gives today, where the layers of the build's cache are older."""
    tag = "triton-dispatcher:system"
    try:
        if audit.main(["--image", image]):
            build(tag, "--no-cache", "--target", "system")
            capsys.readouterr()
            assert audit.main(["--image", tag]) == 0, capsys.readouterr()
    finally:
        docker("image", "rm", "--force", tag, check=False)
    said = capsys.readouterr().out
    if "not checked" in said:
        pytest.skip(said)
