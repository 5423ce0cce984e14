"""Runs of one instance: how many there are at a time, the cores of each, and what they keep."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic

from backends.engine_choice import ONNXRUNTIME, OPENVINO, EngineChoice
from backends.measure_runs import MeasuredRuns
from backends.onnxruntime.session_settings import session_settings
from backends.schedule import SMALL, Schedule, ScheduledSession, open_on_cpu, schedule_runs
from tests.backends.conftest import cpu_config
from tests.conftest import PATIENCE_S
from tests.support.models import onnx_models, openvino_models

X = np.random.default_rng(1).normal(size=(2, openvino_models.WIDTH)).astype(np.float32)
EXPECTED = np.maximum(X @ openvino_models.FIRST, 0) @ openvino_models.SECOND


@pytest.fixture
def model(tmp_path: Path) -> Path:
    openvino_models.two_layers(tmp_path / "m" / "1" / "model.onnx")
    return tmp_path / "m" / "1" / "model.onnx"


def opened(file: Path, schedule: Schedule, engine: str = ONNXRUNTIME) -> ScheduledSession:
    return open_on_cpu(file, EngineChoice(engine), schedule, session_settings(cpu_config()))


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


def at_once(
    session: ScheduledSession, monkeypatch: pytest.MonkeyPatch, count: int, x: Any = X
) -> list[Any]:
    """Return the answers of runs that are all begun before one of them ends."""
    all_run = threading.Barrier(count)
    run = onnxruntime.InferenceSession.run

    def waiting(self: Any, *arguments: Any) -> Any:
        all_run.wait(PATIENCE_S)
        return run(self, *arguments)

    with monkeypatch.context() as patch, ThreadPoolExecutor(count) as pool:
        patch.setattr(onnxruntime.InferenceSession, "run", waiting)
        asked = [pool.submit(session.run, {"x": x}, ["y"]) for _ in range(count)]
        return [one.result()["y"] for one in asked]


def test_a_lone_run_has_all_cores_and_others_their_share(
    model: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    session = opened(model, Schedule(4, 4))
    assert session.at_once == 4
    np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)
    for answer in at_once(session, monkeypatch, 3):
        np.testing.assert_allclose(answer, EXPECTED, atol=1e-4)
    session.run({"x": X}, ["y"])
    assert (widths[0], sorted(widths[1:4]), widths[4]) == (4, [1, 1, 4], 4)


def test_an_answer_that_depends_on_the_threads_is_the_same_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    """ONNX Runtime shares the rows out, and takes a scale for each thread's."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(2, 64, 16)).astype(np.float32) for name in "wr"}
    node = helper.make_node(
        "LSTM", ["x", "w", "r"], ["y"], hidden_size=16, direction="bidirectional"
    )
    sides = [("x", TensorProto.FLOAT, [9, "n", 16])], [("y", TensorProto.FLOAT, None)]
    onnx_models.save(tmp_path / "float.onnx", [node], *sides, **weights)
    file = tmp_path / "m" / "model.onnx"
    file.parent.mkdir()
    quantize_dynamic(tmp_path / "float.onnx", file, op_types_to_quantize=["LSTM"])
    x = np.stack([X[:1].repeat(9, 0), 10 * X[1:].repeat(9, 0)], 1)  # [9, 2, 16]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    (expected,) = onnxruntime.InferenceSession(file, options).run(None, {"x": x})
    options.intra_op_num_threads = 2
    (other,) = onnxruntime.InferenceSession(file, options).run(None, {"x": x})
    assert np.abs(other - expected).max() > 1e-3, "ONNX Runtime has mended it"

    session = opened(file, Schedule(4, 4))
    answers = [session.run({"x": x}, ["y"])["y"], *at_once(session, monkeypatch, 3, x)]
    np.testing.assert_array_equal(answers, [expected] * 4)
    assert widths[2:] == [1] * 4


def test_one_that_fails_is_no_longer_counted(model: Path, widths: list[int]) -> None:
    session = opened(model, Schedule(4, 4))
    for _ in range(3):
        with pytest.raises(Exception, match="Got invalid dimensions"):
            session.run({"x": X[:, :5]}, ["y"])
    session.run({"x": X}, ["y"])
    assert widths == [4] * 4


MEASURED = MeasuredRuns(16, 4, 2, joined=True, gain=1.4)


@pytest.mark.parametrize(
    ("config", "threads", "at_once"),
    [
        (cpu_config(intra_op_thread_count="3"), 3, 1),
        (cpu_config(2, intra_op_thread_count="0"), 8, 1),
        (cpu_config(INFERENCE_NUM_THREADS="5"), 5, 1),
        (cpu_config(NUM_STREAMS="3"), 16, 3),
        (cpu_config(session__intra_op__allow_spinning="1", NUM_STREAMS="3"), 16, 1),
        ({**cpu_config(), "sequence_batching": {}}, 16, 1),
        (cpu_config(2), 8, 1),
        (cpu_config(3), 5, 1),
        (cpu_config(9), 4, 1),
    ],
)
def test_what_the_configuration_says_is_done_whatever_was_measured(
    config: dict[str, Any], threads: int, at_once: int
) -> None:
    """Instances share many cores, and each has all of few."""
    assert schedule_runs(config, MEASURED, 0, cpus=16) == Schedule(threads, at_once, in_turn=0)


@pytest.mark.parametrize(
    ("sizes", "cpus", "at_once"),
    [
        *(([3, 8, 8], cpus, at_once) for cpus, at_once in ((1, 1), (4, 4), (8, 8), (32, 8))),
        *(([-1], cpus, at_once) for cpus, at_once in ((1, 1), (4, 1), (8, 2), (32, 8))),
    ],
)
def test_a_small_model_is_opened_twice_before_anything_is_measured(
    sizes: list[int], cpus: int, at_once: int
) -> None:
    """Texts share runs, with four cores each; a picture has a run, and a core, of its own."""
    config = {**cpu_config(engine="onnxruntime", NUM_STREAMS="3"), "input": [{"dims": sizes}]}
    expected = Schedule(cpus, at_once, joined=sizes == [-1], is_guessed=True)
    assert schedule_runs(config, None, SMALL, cpus) == expected
    large = schedule_runs(config, None, SMALL + 1, cpus)
    assert (large.at_once, large.in_turn) == (max(1, cpus // 4), 0)


def test_what_was_measured_counts_on_as_many_cores() -> None:
    config = {**cpu_config(), "input": [{"dims": [3, 8, 8]}]}
    assert schedule_runs(config, MEASURED, SMALL, 16) == Schedule(16, 4, in_turn=2)
    large = Schedule(16, 4, in_turn=0)
    assert schedule_runs(config, MEASURED, SMALL + 1, 16) == large
    other = Schedule(8, 2, joined=True, is_guessed=True)
    assert schedule_runs(config, MEASURED, 0, 8) == other


def test_batches_that_triton_makes_share_runs() -> None:
    config = {**cpu_config(), "dynamic_batching": {"preferred_batch_size": [4]}}
    assert schedule_runs(config, MeasuredRuns(4, 4, 1, joined=False), 0, 4) == Schedule(4, 4)
    assert not schedule_runs({**config, "dynamic_batching": {}}, None, 0, 4).joined
    filled = {"preferred_batch_size": [16], "max_queue_delay_microseconds": 0}
    config = {**config, "max_batch_size": 16, "dynamic_batching": filled}
    assert not schedule_runs(config, None, 0, 4).joined
    filled["max_queue_delay_microseconds"] = 100
    assert schedule_runs(config, None, 0, 4).joined


def own_memory() -> int:
    """The bytes of this process that no other shares, as Linux counts them."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kb) * 1024 for kb in re.findall(r"Private_Dirty: *(\d+) kB", text))


@pytest.mark.parametrize(("engine", "side"), [(ONNXRUNTIME, 512), (OPENVINO, 1024)])
@pytest.mark.parametrize("larger", [1, 9], ids=["one larger run", "many"])
def test_what_larger_runs_need_is_given_back(
    engine: str, side: int, larger: int, tmp_path: Path
) -> None:
    """A picture in 64 channels has 64 MiB, or 256: OpenVINO's session keeps up to 128."""
    size = ["n", 1, "h", "w"]
    weights = np.ones((64, 1, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["wide"], pads=[1] * 4),
        helper.make_node("ReduceMax", ["wide"], ["y"], axes=[1, 2, 3], keepdims=0),
    ]
    sides = [("x", TensorProto.FLOAT, size)], [("y", TensorProto.FLOAT, ["n"])]
    file = tmp_path / "m" / "model.onnx"
    onnx_models.save(file, nodes, *sides, weights=weights)
    session = opened(file, Schedule(2), engine)

    def run(side: int) -> None:
        x = np.ones((1, 1, side, side), np.float32)
        assert session.run({"x": x}, ["y"])["y"] == [9]

    run(64)
    before = own_memory()
    for each in [side] * larger + [64] * (0 if larger == 1 else 40):
        run(each)
    assert own_memory() - before < 64 * 4 * side**2 / 2
