"""Environments of Triton's Python backend, on the real Triton: packed, plain and shared."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Endpoint, descendants, running, wait_for
from tests.support.chaos import find
from tests.support.programs import find_python, write_program
from tool.__main__ import main

pytestmark = pytest.mark.slow  # each makes environments, and some packages are fetched

MODEL = """
import sys
import numpy as np
import only_here
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        said = f"{only_here.WORD} {sys.version_info[0]}.{sys.version_info[1]}"
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("SAID", np.array([said.encode()], dtype=object))]
            )
            for _ in requests
        ]
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
TENSORS = [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [0]}]
HERE = "$$TRITON_MODEL_DIRECTORY"
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = "3.12" if OWN == "3.11" else "3.11"


def add_model(folder: Path, environment: str) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG % environment)
    return folder


def add_package(environment: Path, version: str, word: str, *path: str) -> None:
    """Put a package into an environment that exists nowhere else, and folders onto its path."""
    packages = environment / "lib" / f"python{version}" / "site-packages"
    (packages / "only_here").mkdir(parents=True)
    (packages / "only_here" / "__init__.py").write_text(f"WORD = {word!r}\n")
    # venv-pack takes no `.pth` that leads out of the environment.
    (packages / "sitecustomize.py").write_text(f"import sys\nsys.path.extend({list(path)})\n")


def pack(environment: Path, archive: Path) -> None:
    program = [sys.executable, "-m", "venv_pack", "-q", "-p", environment, "-o", archive]
    subprocess.run(program, check=True)


def fake(folder: Path, answer: str) -> None:
    """Make an environment whose Python only says what it is."""
    write_program(folder / "bin" / "python3", f"echo {answer}")
    (folder / "bin" / "activate").touch()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    made = folder / "first" / "env"
    venv.create(made, with_pip=False, symlinks=True)
    # numpy alone would be 20 MB in each archive.
    add_package(made, OWN, "packed", str(Path(np.__file__).parents[1]))
    add_model(folder / "packed", f"{HERE}/environment.tar.gz")
    pack(made, folder / "packed" / "environment.tar.gz")
    shutil.copy(folder / "packed" / "environment.tar.gz", folder / "shared.tar.gz")
    add_model(folder / "sharing", f"{HERE}/../shared.tar.gz")
    shutil.move(made, folder / "plain_env")  # its bin/activate names the folder before
    shutil.rmtree(folder / "first")
    add_model(folder / "plain", f"{HERE}/../plain_env")
    for name, answer in {
        "old": "3.7 1.21 /lib",
        "bare": f"{OWN} none",
        "new": "3.13 2.1.3",
        "alone": "3.8 1.24.4 /nowhere",
    }.items():
        fake(folder / f"{name}_env", answer)
        add_model(folder / name, f"{HERE}/../{name}_env")
    fake(folder / "broken_env", "")
    (folder / "broken_env" / "bin" / "python3").unlink()
    (folder / "broken_env" / "bin" / "python3").symlink_to("/nowhere/bin/python3")
    add_model(folder / "broken", f"{HERE}/../broken_env")
    add_model(folder / "elsewhere" / "late", f"{HERE}/../../shared.tar.gz")
    return folder


@pytest.fixture(scope="module")
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    settings = {"MODEL_DIR": str(models), "MODEL_DIR_USE": "instead"}
    with running(tmp_path_factory.mktemp("run"), **settings) as endpoint:
        yield endpoint


def said(endpoint: Endpoint, model: str) -> Any:
    answer = endpoint.call(f"/infer/{model}", json.dumps({"inputs": TENSORS}))
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


@pytest.mark.parametrize("model", ["packed", "sharing", "plain"])
def test_a_model_imports_what_only_its_environment_has(served: Endpoint, model: str) -> None:
    assert said(served, model) == [f"packed {OWN}"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("old", "has Python 3.7, for which this Triton has no stub: use the server's"),
        ("bare", "has no numpy, which Triton's Python backend needs: install 'numpy<2' there"),
        ("new", "has numpy 2.1.3, with which this Triton sends empty tensors"),
        ("alone", "has Python 3.8, but no libpython3.8.so.1.0: pack it with conda-pack"),
        ("broken", "has no Python that runs here (bin/python3 is /nowhere/bin/python3)"),
    ],
)
def test_an_environment_that_cannot_work_is_refused_at_the_load(
    served: Endpoint, model: str, reason: str
) -> None:
    answer = served.call(f"/load_model/{model}", method="POST")
    assert answer.status == 400
    assert f"the environment in EXECUTION_ENV_PATH {reason}" in answer.json["error"]["message"]


def test_a_model_from_elsewhere_has_the_environment_beside_it(
    served: Endpoint, models: Path
) -> None:
    body = {"model_name": "3f9c", "url": str(models / "elsewhere" / "late")}
    loaded = served.call("/models", json.dumps(body))
    assert loaded.status == 200, loaded.body
    assert said(served, "3f9c") == [f"packed {OWN}"]
    assert served.call("/models/3f9c", method="DELETE").status == 200


def test_what_triton_unpacked_is_removed_where_it_is_killed(served: Endpoint) -> None:
    """It removes them itself, but not in time for SIGKILL."""
    (triton,) = find(served, "Triton")
    unpacked = set()
    for pid in descendants(triton):
        with suppress(OSError):
            unpacked |= set(
                re.findall(r"/tmp/python_env_\w+", Path(f"/proc/{pid}/environ").read_text())
            )
    assert unpacked
    assert all(Path(folder).is_dir() for folder in unpacked)
    os.kill(triton, signal.SIGKILL)
    wait_for(lambda: not any(map(os.path.exists, unpacked)), "the folders are removed")
    body = json.dumps({"inputs": TENSORS})
    wait_for(lambda: served.call("/infer/packed", body).status == 200, "it answers again")


def pack_with_interpreter(environment: Path, program: Path, archive: Path) -> None:
    """Pack an environment with its interpreter and library, as conda-pack does."""
    base, packages = program.resolve().parents[1], f"lib/python{OTHER}"
    library = f"lib/libpython{OTHER}.so.1.0"
    if not (base / library).is_file():
        pytest.skip(f"Python {OTHER} has no {library} of its own")
    activate = environment / "bin" / "activate_moved"
    activate.write_text('export PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd):$PATH"\n')
    unused = {"test", "idlelib", "ensurepip", "site-packages", "__pycache__"}
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(activate, "bin/activate")
        packed.add(program.resolve(), "bin/python3")
        packed.add(base / library, library)
        packed.add(environment / packages / "site-packages", f"{packages}/site-packages")
        packed.add(
            base / packages,
            packages,
            filter=lambda member: None if unused & set(Path(member.name).parts[2:3]) else member,
        )


def test_the_environment_may_have_another_python(tmp_path: Path) -> None:
    environment, program = tmp_path / "env", find_python(OTHER)
    subprocess.run([program, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "-q", "numpy==1.26.4"]
    if subprocess.run(pip, check=False).returncode:
        pytest.skip(f"numpy for Python {OTHER} cannot be fetched here")
    add_package(environment, OTHER, "other")
    linked = add_model(tmp_path / "models" / "linked", f"{HERE}/environment.tar.gz")
    pack(environment, linked / "environment.tar.gz")
    whole = add_model(tmp_path / "models" / "whole", f"{HERE}/environment.tar.gz")
    pack_with_interpreter(environment, Path(program), whole / "environment.tar.gz")
    assert main(["check", str(tmp_path / "models")]) == 0
    settings = {"MODEL_DIR": str(tmp_path / "models"), "MODEL_DIR_USE": "instead"}
    with running(tmp_path, **settings) as endpoint:
        for model in ("linked", "whole"):
            assert said(endpoint, model) == [f"other {OTHER}"]
