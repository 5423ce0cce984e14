"""A model whose process died is loaded again, whatever its configuration leaves out."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from clients.errors import ModelFailed
from clients.triton.client import Triton
from tests.support.models import onnx_repository
from tests.support.triton import process as triton_process

X = {"x": np.zeros((1, 3), np.float32)}


# A Triton that has given a request to a dead process ends only after half a minute.
@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_it_has_new_processes_and_others_keep_theirs(tmp_path: Path, asked: bool) -> None:
    """Each time: Triton by itself loads a model again only where its configuration changed."""
    onnx_repository.write_repository(tmp_path / "models")
    with triton_process.running(tmp_path, ["bare", "total"]) as server:
        client = Triton(f"127.0.0.1:{server.ports[0]}")
        others = triton_process.stubs(tmp_path, "total")
        for _ in range(3):
            before = set(triton_process.stubs(tmp_path, "bare"))
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
            if asked:
                with pytest.raises(ModelFailed, match="died before it answered"):
                    client.infer("bare", X, timeout=10)
            client.reload("bare", timeout=60)
            assert client.infer("bare", X, timeout=30)["y"].tolist() == [[1, 1, 1]]
            assert len(set(triton_process.stubs(tmp_path, "bare")) - before) == len(before)
        assert triton_process.stubs(tmp_path, "total") == others
