from __future__ import annotations

import contextlib
import importlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from clients.triton.client import Triton
from tests.support.models import onnx_repository
from tests.support.triton import process as triton_process


def cpu_config(count: int = 1, **parameters: str) -> dict[str, Any]:
    """Return a configuration with instances on the CPU; `__` in a parameter's name is a dot."""
    return {
        "name": "m",
        "instance_group": [{"count": count, "kind": "KIND_CPU"}],
        "parameters": {
            key.replace("__", "."): {"string_value": text} for key, text in parameters.items()
        },
    }


class Process:
    """Triton's process of a model, whose own module is replaced: `log` is what it was given.

    `module` is the backend's, and `file` where the model's is expected.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.log = folder / "m" / "1" / "model.onnx", list[str]()
        self.file.parent.mkdir(parents=True)
        (folder / "m" / "config.pbtxt").touch()
        triton: Any = ModuleType("triton_python_backend_utils")
        triton.get_model_dir = lambda: str(self.file.parent)
        triton.Logger = SimpleNamespace(log_info=self.log.append, log_warn=self.log.append)
        triton.Tensor = lambda name, array: (name, array)
        triton.InferenceResponse = lambda **said: said
        triton.TritonError, triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL = Mock(), 1
        monkeypatch.setitem(sys.modules, triton.__name__, triton)
        monkeypatch.setattr(sys, "path", [*sys.path])
        self.module: Any = importlib.import_module("backends.onnxruntime.model")
        for each in (self.module, self.module.triton_requests):
            monkeypatch.setattr(each, "pb_utils", triton)

    def initialize(self, model: Any, config: Any, x: Any, y: Any, kind: str = "CPU") -> None:
        """Open a model with an input and an output: names, types, dimensions."""
        first, last = (dict(zip(("name", "data_type", "dims"), one, strict=True)) for one in (x, y))
        config = {**config, "max_batch_size": 8, "input": [first], "output": [last]}
        given = {"model_instance_kind": kind, "model_instance_device_id": "1"}
        model.initialize({"model_config": json.dumps(config), "model_version": "1", **given})


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.setenv("MODEL_INSTANCES_DIR", str(tmp_path / "shared"))
    return Process(tmp_path, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what trials of engines find for the whole session, and for no other one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINE_CACHE", str(tmp_path_factory.mktemp("engines")))
        yield


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton_process.Triton]:
    """A real Triton that has tried to load every model; afterwards nothing of it is left."""
    folder = tmp_path_factory.mktemp("triton")
    names = onnx_repository.write_repository(folder / "models")
    options = ["--exit-timeout-secs=300"]
    with triton_process.running(folder, names, options, compares=False) as server:
        yield server
        stubs = triton_process.stubs(folder)
        assert stubs, "the instances were not found among the processes"
    assert server.process.returncode == 0, server.log()
    assert not triton_process.stubs(folder)
    for port in server.ports:
        with contextlib.closing(socket.socket()) as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def client(triton: triton_process.Triton) -> Triton:
    """The project's own client of that Triton."""
    return Triton(f"127.0.0.1:{triton.ports[0]}")
