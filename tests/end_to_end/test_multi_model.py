"""A multi-model endpoint whose archives hold several models, and an environment beside them."""

from __future__ import annotations

import json
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Endpoint, running

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
CHAIN = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "first" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } }
  step { model_name: "second" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
}
"""
MODEL = """
import triton_python_backend_utils as pb_utils
{more}

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "X")) for r in requests]

    def answer(self, x):
        {code}
"""
COMPUTE = "return pb_utils.InferenceResponse([pb_utils.Tensor('Y', {})])"
ASK = """request = pb_utils.InferenceRequest(
            model_name="twice", requested_output_names=["Y"], inputs=[x]
        )
        return pb_utils.InferenceResponse(request.exec().output_tensors())"""
ENVIRONMENT = """
parameters {
  key: "EXECUTION_ENV_PATH"
  value { string_value: "$$TRITON_MODEL_DIRECTORY/../second/env" }
}
"""


def add(folder: Path, code: str, more: str = "", config: str = "") -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL.format(code=code, more=more))
    (folder / "config.pbtxt").write_text(f'backend: "python"\n{TENSORS}{config}')


def add_environment(folder: Path) -> None:
    """Make an environment with a package that is nowhere else, and this one's numpy."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "only_here.py").write_text("FACTOR = 10\n")
    path = str(Path(np.__file__).parents[1])
    (packages / "sitecustomize.py").write_text(f"import sys\nsys.path.append({path!r})\n")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ensembles of 10x and then + 1 or + 2, and a model that asks another one to double."""
    folder = tmp_path_factory.mktemp("archives")
    for number in (1, 2):
        archive = folder / f"plus{number}"
        (archive / "chain" / "1").mkdir(parents=True)
        (archive / "chain" / "config.pbtxt").write_text(CHAIN)
        times = COMPUTE.format("x.as_numpy() * only_here.FACTOR")
        add(archive / "first", times, "import only_here", ENVIRONMENT)
        add(archive / "second", COMPUTE.format(f"x.as_numpy() + {number}"))
        add_environment(archive / "second" / "env")
    add(folder / "asking" / "main", ASK)
    add(folder / "asking" / "twice", COMPUTE.format("x.as_numpy() * 2"))
    return folder


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    settings = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "3f9c",
    }
    with running(tmp_path_factory.mktemp("run"), **settings) as endpoint:
        yield endpoint


def load(endpoint: Endpoint, name: str, url: Path) -> Any:
    return endpoint.call("/models", json.dumps({"model_name": name, "url": str(url)}))


def ask(endpoint: Endpoint, path: str, x: float) -> Any:
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [x]}
    answer = endpoint.call(path, json.dumps({"inputs": [tensor]}))
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


def loaded(endpoint: Endpoint) -> list[str]:
    return sorted(one["modelName"] for one in endpoint.call("/models").json["models"])


@pytest.mark.slow
def test_ensembles_come_and_go_with_their_steps(endpoint: Endpoint, archives: Path) -> None:
    for name, archive in (("3f9c", "plus1"), ("a0b1", "plus2")):
        answer = load(endpoint, name, archives / archive)
        assert answer.status == 200, answer.body
    assert ask(endpoint, "/models/3f9c/invoke", 4) == [41]
    assert ask(endpoint, "/models/a0b1/invoke", 4) == [42]
    assert ask(endpoint, "/invocations", 5) == [51], "the default model"
    assert endpoint.call("/models/3f9c", method="DELETE").status == 200
    assert loaded(endpoint) == ["a0b1", "a0b1.first", "a0b1.second"]
    assert ask(endpoint, "/models/a0b1/invoke", 6) == [62]
    assert endpoint.call("/models/a0b1", method="DELETE").status == 200
    assert loaded(endpoint) == []


def test_a_python_model_comes_with_those_that_it_asks(endpoint: Endpoint, archives: Path) -> None:
    answer = load(endpoint, "77aa", archives / "asking")
    assert answer.status == 200, answer.body
    assert ask(endpoint, "/models/77aa/invoke", 21) == [42]
    refused = load(endpoint, "88bb", archives / "asking")
    assert refused.status == 409
    assert "there is a model 'twice'" in refused.json["error"]["message"]
    assert ask(endpoint, "/models/77aa/invoke", 21) == [42]
    assert endpoint.call("/models/77aa", method="DELETE").status == 200
    assert loaded(endpoint) == []
