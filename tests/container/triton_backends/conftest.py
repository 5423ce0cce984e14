from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))

import onnx_models  # noqa: E402 - the repository's own packages come first
import torchscript_models  # noqa: E402 - see above
import triton_process  # noqa: E402 - see above

HAS_TORCH = importlib.util.find_spec("torch") is not None


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
    names = onnx_models.write_repository(folder / "models")
    names += torchscript_models.write_repository(folder / "models", has_torch=HAS_TORCH)
    with triton_process.running(folder, names) as server:
        yield server
        stubs = triton_process.stubs(folder)
        assert stubs, "the instances were not found among the processes"
    assert server.process.returncode == 0, server.log()
    assert not triton_process.stubs(folder)
    for port in server.ports:
        with contextlib.closing(socket.socket()) as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
