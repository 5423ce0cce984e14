"""Runs of one instance by ONNX Runtime: how many there are at a time, and the cores of each."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from container.triton_backends.onnxruntime import session as module
from container.triton_backends.onnxruntime.session import OnnxSession
from container.triton_backends.onnxruntime.session_settings import session_settings
from tests.support.models import openvino_models

CPU = [("CPUExecutionProvider", {})]
X = np.random.default_rng(1).normal(size=(2, openvino_models.WIDTH)).astype(np.float32)
EXPECTED = np.maximum(X @ openvino_models.FIRST, 0) @ openvino_models.SECOND


def config(count: int = 2, **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "instance_group": [{"count": count, "kind": "KIND_CPU"}],
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    openvino_models.two_layers(tmp_path / "m" / "1" / "model.onnx")
    return tmp_path / "m" / "1" / "model.onnx"


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of each run's session, in the order in which they began."""
    noted: list[int] = []
    run = onnxruntime.InferenceSession.run

    def noting(self: Any, *arguments: Any) -> Any:
        noted.append(self.get_session_options().intra_op_num_threads)
        return run(self, *arguments)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", noting)
    return noted


def at_once(session: OnnxSession, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Any]:
    """Return the answers of runs that are all begun before one of them ends."""
    all_run = threading.Barrier(count)
    run = onnxruntime.InferenceSession.run

    def waiting(self: Any, *arguments: Any) -> Any:
        all_run.wait(30)
        return run(self, *arguments)

    with monkeypatch.context() as patch, ThreadPoolExecutor(count) as pool:
        patch.setattr(onnxruntime.InferenceSession, "run", waiting)
        asked = [pool.submit(session.run, {"x": X}, ["y"]) for _ in range(count)]
        return [one.result()["y"] for one in asked]


def test_a_lone_run_has_all_cores_and_others_their_share(
    model: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    session = OnnxSession(model, session_settings(config(1), cpus=4), CPU, {})
    assert session.at_once == 4
    np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)
    for answer in at_once(session, monkeypatch, 3):
        np.testing.assert_allclose(answer, EXPECTED, atol=1e-4)
    session.run({"x": X}, ["y"])
    assert (widths[0], sorted(widths[1:4]), widths[4]) == (4, [1, 1, 4], 4)


def test_one_that_fails_is_no_longer_counted(model: Path, widths: list[int]) -> None:
    session = OnnxSession(model, session_settings(config(1), cpus=4), CPU, {})
    for _ in range(3):
        with pytest.raises(Exception, match="Got invalid dimensions"):
            session.run({"x": X[:, :5]}, ["y"])
    session.run({"x": X}, ["y"])
    assert widths == [4] * 4


def test_a_large_model_has_one_run_at_a_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", model.stat().st_size - 1)
    session = OnnxSession(model, session_settings(config(1), cpus=4), CPU, {})
    assert session.at_once == 1
    np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)


@pytest.mark.parametrize(
    "alone",
    [
        {**config(), "dynamic_batching": {}},
        {**config(), "sequence_batching": {}},
        config(execution_mode="1"),
        config(intra_op_thread_count="4"),
        config(**{"session.intra_op.allow_spinning": "1"}),
    ],
    ids=[
        "Triton makes the batches",
        "in sequence",
        "parts of the graph in parallel",
        "threads are configured",
        "they spin",
    ],
)
def test_where_others_see_to_the_cores_there_is_one_run_at_a_time(alone: dict[str, Any]) -> None:
    assert session_settings(alone, cpus=4).at_once == 1


def test_on_a_gpu_too() -> None:
    assert session_settings(config(2), cpus=8, on_cpu=False).at_once == 1


@pytest.mark.parametrize(
    ("count", "cpus", "at_once", "threads"),
    [(1, 1, 1, 1), (1, 2, 2, 2), (2, 2, 2, 2), (1, 8, 8, 8), (3, 16, 5, 5), (1, 32, 8, 32)],
)
def test_otherwise_there_are_as_many_as_cores_and_eight_at_most(
    count: int, cpus: int, at_once: int, threads: int
) -> None:
    settings = session_settings(config(count), cpus=cpus)
    assert (settings.at_once, settings.intra_op_threads) == (at_once, threads)
