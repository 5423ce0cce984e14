from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

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
    with triton_process.running(folder, names) as server:
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
