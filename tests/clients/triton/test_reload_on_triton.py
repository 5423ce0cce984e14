"""A model whose process died is loaded again, whatever its configuration leaves out."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from clients.errors import ModelFailed
from clients.triton.client import Triton
from tests.conftest import PATIENCE_S, alive, wait_for
from tests.support.models import onnx_repository
from tests.support.triton import process as triton_process

X = {"x": np.zeros((1, 3), np.float32)}


# A Triton that has given a request to a dead process ends only after half a minute.
@pytest.mark.slow
def test_it_has_new_processes_and_others_keep_theirs(tmp_path: Path) -> None:
    """Each time: Triton by itself loads a model again only where its configuration changed."""
    onnx_repository.write_repository(tmp_path / "models")
    with triton_process.running(tmp_path, ["bare", "total"], compares=False) as server:
        client = Triton(f"127.0.0.1:{server.ports[0]}")
        others = triton_process.stubs(tmp_path, "total")
        for asked in (False, False, True, True):
            before = set(triton_process.stubs(tmp_path, "bare"))
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda before=before: not alive(before), "their end")  # type: ignore[misc]
            if asked:
                with pytest.raises(ModelFailed, match="died before it answered"):
                    client.infer("bare", X, timeout=PATIENCE_S)
            client.reload("bare", timeout=PATIENCE_S)
            assert client.infer("bare", X, timeout=PATIENCE_S)["y"].tolist() == [[1, 1, 1]]
            assert len(set(triton_process.stubs(tmp_path, "bare")) - before) == len(before)
        assert triton_process.stubs(tmp_path, "total") == others
