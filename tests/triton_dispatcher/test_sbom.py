"""The parts list (SBOM) of an environment, compared with what other programs see."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from container.image import sbom
from tests.conftest import PROJECT

REQUIREMENTS = PROJECT / "container" / "image" / "requirements"


def made(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "container.image.sbom", *arguments]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)


def of_kind(parts: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in parts if one.get("purl", "").startswith(f"pkg:{kind}/")]


def normalize(name: str) -> str:
    return re.sub("[-_.]+", "-", name.lower())


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="this system has no dpkg")
def test_an_environment_has_what_pip_dpkg_and_sha256sum_see(models: None, tmp_path: Path) -> None:
    file, again = tmp_path / "a.cdx.json", tmp_path / "b.cdx.json"
    for one in (file, again):
        made(one, Path(sys.executable))
    assert file.read_bytes() == again.read_bytes(), "the same parts give the same bytes"
    parts = json.loads(file.read_text())["components"]
    pip = (sys.executable, "-m", "pip", "list", "--format=json", "--disable-pip-version-check")
    seen = {normalize(one["name"]) for one in json.loads(output(*pip))}
    seen -= {"triton-dispatcher", "sagemaker-emulator"}  # from this folder
    assert {normalize(one["name"]) for one in of_kind(parts, "pypi")} >= seen
    system = {(one["name"], one["version"]) for one in of_kind(parts, "deb")}
    lines = [line.split() for line in output("env", "COLUMNS=300", "dpkg", "--list").splitlines()]
    assert system == {
        (words[1].split(":")[0], words[2]) for words in lines if words and words[0] == "ii"
    }
    for name in ("resnet", "bert_base"):
        (model,) = (one for one in parts if one["name"] == name)
        (digest,) = model["components"][0]["hashes"]
        weights = PROJECT / "model_repository" / name / "1" / "model.onnx"
        assert digest["content"] == output("sha256sum", weights).split()[0]
    (triton,) = (one for one in parts if one["name"] == "nvidia-pytriton")
    libraries = Path(sysconfig.get_path("purelib")) / "nvidia_pytriton.libs"
    assert {one["name"] for one in triton["components"]} == {
        one.name for one in libraries.iterdir()
    }


@pytest.mark.slow
def test_the_licences_of_models_and_packages_are_named(models: None, tmp_path: Path) -> None:
    python = Path(sys.executable)
    command = [sys.executable, "-m", "container.image.licences", tmp_path, python]
    subprocess.run(command, cwd=PROJECT, check=True)
    page = (tmp_path / "README.md").read_text()
    for pattern in (r"resnet .* MIT", r"yolov5 .* AGPL-3\.0", r"Flask +\| .* BSD"):
        assert re.search(pattern, page)
    assert "GNU AFFERO" in (tmp_path / "models" / "yolov5" / "LICENSE").read_text()
    (place,) = re.findall(r"in `(/.*/lib)`", page)
    texts = list(Path(place).glob("python3*/site-packages/flask-*.dist-info/**/LICENSE*"))
    assert texts, "a package's own licence is where the page says"


def test_the_triton_of_the_pinned_wheel_is_known() -> None:
    """tests/end_to_end/test_image.py compares its version with the running one."""
    (pinned,) = re.findall(r"nvidia-pytriton==([\d.]+)", (REQUIREMENTS / "triton.in").read_text())
    assert pinned in sbom.TRITON_OF_WHEEL
