"""The wheel in environments with nothing else: without extras, and as a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Endpoint, free_ports, stop, wait_until_announced
from tests.support.programs import find_python
from tests.triton_dispatcher.conftest import Installed, make_environment

pytestmark = pytest.mark.slow

ABSENT = ("cv2", "flask", "grpc", "gunicorn", "pytriton", "transformers", "tritonclient", "boto3")


def install(folder: Path, version: str, *packages: str | Path) -> Installed:
    """Make an environment with a version of Python, or skip where it is not on this machine."""
    made = make_environment(folder, find_python(version))
    done = made.pip("install", *packages)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_an_author_needs_no_server(wheel: Path, tmp_path: Path, version: str) -> None:
    made = install(tmp_path / "venv", version, wheel, "pytest")
    folder = tmp_path / "mine"
    folder.mkdir()
    assert made.run("dispatcher", "--version", cwd=folder).stdout.startswith("triton-dispatcher ")
    assert made.run("dispatcher", "new-client", "double", cwd=folder).returncode == 0
    tests = made.run("python", "-m", "pytest", "-q", "code/tests", cwd=folder)
    assert "3 passed" in tests.stdout, tests.stdout + tests.stderr
    said = made.script(
        "import sys, clients.testing\nfrom importlib.util import find_spec\n"
        "from clients.base import Client\n"
        f"print([one for one in {ABSENT} if find_spec(one)], sys.version_info[:2])",
        folder,
    )
    assert said == f"[] {tuple(map(int, version.split('.')))}\n"
    for command, extra in (("check", "tool"), ("serve", "serve")):
        done = made.run("dispatcher", command, ".", cwd=folder)
        assert done.returncode == 2
        assert f"`pip install 'triton-dispatcher[{extra}]'`" in done.stderr


def test_a_folder_is_served_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    made = install(tmp_path / "venv", "3.11", f"triton-dispatcher[serve] @ {wheel.as_uri()}")
    folder = tmp_path / "mine"
    assert made.run("dispatcher", "new-client", "double", "--into", folder, cwd=tmp_path)
    (folder / "models").mkdir()
    (folder / "double").rename(folder / "models" / "double")
    (folder / "code" / "clients").rename(folder / "clients")
    ports, log = free_ports(4), tmp_path / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [made.folder / "bin" / "dispatcher", "serve", folder, f"--port={ports[0]}"],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "ENGINE_COMPARISON_LIMIT_S": "600",  # its packages are compiled, too
                "SAGEMAKER_SAFE_PORT_RANGE": f"{ports[1]}-{ports[-1]}",
            },
            stdout=output,
            stderr=output,
        )
    endpoint = Endpoint(ports[0], process, log)
    try:
        wait_until_announced(endpoint)
        answer = endpoint.ask(modelname="double", payload={"numbers": [1, 2.5]})
        assert answer.json == {"modelname": "double", "result": [2.0, 5.0]}
        assert [one["modelName"] for one in endpoint.call("/models").json["models"]] == ["double"]
        engines = endpoint.log.read_text()
        assert "(OpenVINO in f32 is" in engines or "run by OpenVINO in f32" in engines
        assert not (tmp_path / "intel").exists(), "OpenVINO's telemetry was imported"
    finally:
        stop(endpoint, at_once=True)


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_all_that_the_extras_ask_for_can_be_had_elsewhere(
    wheel: Path, tmp_path: Path, system: str
) -> None:
    """As wheels, so that nothing has to be compiled."""
    (tmp_path / "wanted.in").write_text(f"triton-dispatcher[tool,serve] @ {wheel.as_uri()}\n")
    uv = Path(sys.executable).with_name("uv")
    options = ["--only-binary=:all:", f"--python-platform={system}", "--python-version=3.12"]
    done = subprocess.run(
        [uv, "pip", "compile", "--quiet", "wanted.in", *options],
        cwd=tmp_path,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},  # for the wheels of ONNX Runtime
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "onnxruntime==" in done.stdout
    assert "nvidia-pytriton" not in done.stdout
