"""The session for a GPU; ONNX Runtime's CPU provider stands in for CUDA's, with the same calls."""

from __future__ import annotations

import ctypes
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from backends.batching.item import Item, PaddedTensors, RequestError
from backends.batching.run_items import run_items
from backends.model_config import ModelConfigError
from backends.onnxruntime import gpu_session
from backends.onnxruntime.execution_providers import CPU, CUDA
from backends.onnxruntime.gpu_session import GpuSession, find_precision
from backends.onnxruntime.session_settings import session_settings
from tests.backends.conftest import Process, cpu_config
from tests.support.models import onnx_models

STAND_IN = [(CPU, {"device_id": "0"})]
RNG = np.random.default_rng(7)
WEIGHTS = RNG.normal(size=(5, 3, 1, 1)).astype(np.float32)
WORDS = RNG.normal(size=(50, 4)).astype(np.float32)
Array = np.ndarray[Any, np.dtype[Any]]


def detector(file: Path, *, side: int | str = 4, half: bool = False) -> Path:
    """x [n, 3, side, side] -> y [n, side * side, 5], each pixel's three numbers times `WEIGHTS`"""
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["planes"]),
        helper.make_node("Reshape", ["planes", "flat"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["y"], perm=[0, 2, 1]),
    ]
    x, y = (("x", TensorProto.FLOAT, ["n", 3, side, side]), ("y", TensorProto.FLOAT, ["n", "m", 5]))
    model = onnx_models.make(nodes, [x], [y], weights=WEIGHTS, flat=np.array([0, 5, -1]))
    file.parent.mkdir(parents=True)
    onnx.save(convert_float_to_float16(model) if half else model, file)
    return file


def texts(file: Path) -> Path:
    """ids [n, m] -> y [n, m, 4], each one's row of `WORDS`"""
    node = helper.make_node("Gather", ["words", "ids"], ["y"])
    ids, y = ("ids", TensorProto.INT64, ["n", "m"]), ("y", TensorProto.FLOAT, ["n", "m", 4])
    return onnx_models.save(file, [node], [ids], [y], words=WORDS)


def opened(file: Path, most: int, **config: Any) -> GpuSession:
    given = {**cpu_config(), "max_batch_size": most, **config}
    return GpuSession(file, given, session_settings(given), STAND_IN)


def pictures(count: int) -> Array:
    return RNG.normal(size=(count, 3, 4, 4)).astype(np.float32)


def tables(x: Array) -> Array:
    """What `detector` answers, [n, 16, 5]."""
    return np.einsum("ncp,oc->npo", x.reshape(len(x), 3, 16), WEIGHTS[:, :, 0, 0])


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[tuple[int, ...]]]:
    """The shapes of `x` that each of ONNX Runtime's sessions has been run with."""
    seen: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    run, bind = onnxruntime.InferenceSession.run, onnxruntime.IOBinding.bind_cpu_input

    def running(self: Any, names: Any, inputs: Any, *others: Any) -> Any:
        seen[id(self._sess)].add(inputs["x"].shape)
        return run(self, names, inputs, *others)

    def binding(self: Any, name: str, array: Any) -> None:
        if name == "x":
            seen[id(self._session)].add(array.shape)
        bind(self, name, array)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", running)
    monkeypatch.setattr(onnxruntime.IOBinding, "bind_cpu_input", binding)
    return seen


def test_no_session_of_a_model_with_convolutions_ever_runs_two_shapes(
    tmp_path: Path, shapes: dict[int, set[tuple[int, ...]]]
) -> None:
    """Whatever batches come, two at a time; and no session runs for the first time for a caller."""
    session = opened(detector(tmp_path / "m" / "model.onnx"), 12)
    assert session.at_once == 2
    warm = {session: set(seen) for session, seen in shapes.items()}
    assert sorted(seen for each in warm.values() for seen in each) == [
        (size, 3, 4, 4) for size in (1, 2, 4, 8, 12)
    ]

    def ask(count: int) -> None:
        x = pictures(count)
        np.testing.assert_allclose(session.run({"x": x}, ["y"])["y"], tables(x), atol=1e-5)
        few = session.run_above({"x": x}, ["y"], {"y": (1, 0.5)})["y"]
        assert (few[..., 1] > 0.5).sum() == (tables(x)[..., 1] > 0.5).sum()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, [*range(1, 13), *RNG.permutation(np.arange(1, 13)).tolist()]))
    assert session.run({"x": pictures(0)}, ["y"])["y"].shape == (0, 16, 5)
    assert shapes == warm


@pytest.mark.parametrize(
    ("make", "most", "large", "expected"),
    [
        (detector, 16, False, [1, 2, 4, 8, 16]),
        (detector, 1, False, [1]),
        (detector, 0, False, [0]),
        (detector, 16, True, [1, 16]),
        (lambda file: detector(file, side="side"), 16, False, [0]),
        (texts, 16, False, [0]),
        (lambda file: onnx_models.plus_one(file) or file, 16, False, [0]),
    ],
    ids=["six", "one", "no batches", "large", "another size varies", "texts", "nothing is planned"],
)
def test_only_where_the_batch_alone_varies_it_has_a_session_for_each_size(
    make: Any, most: int, large: bool, expected: list[int], tmp_path: Path, monkeypatch: Any
) -> None:
    file = make(tmp_path / "m" / "model.onnx")
    monkeypatch.setattr(gpu_session, "LARGE", file.stat().st_size - large)
    assert list(opened(file, most)._sessions) == expected


def test_a_stateful_model_has_its_runs_one_after_the_other(tmp_path: Path) -> None:
    assert opened(texts(tmp_path / "m" / "model.onnx"), 4, sequence_batching={}).at_once == 1


@pytest.mark.parametrize("half", [False, True], ids=["single", "half"])
def test_rows_above_a_threshold_are_those_that_numpy_picks(half: bool, tmp_path: Path) -> None:
    """Callers with thresholds of their own share the run; none but these rows come back."""
    session = opened(detector(tmp_path / "m" / "model.onnx", half=half), 8)
    dtype, asked = (np.float16 if half else np.float32), []

    def run_above(*arguments: Any) -> Any:
        asked.append(arguments[2])
        return session.run_above(*arguments)

    by_rows = type(session.by_rows)(("y",), session.run_rows, run_above)
    given = [(pictures(2).astype(dtype), least) for least in (0.25, 2.0, 50.0)]
    items = [Item({"x": x}, ("y",), above={"y": (1, least)}) for x, least in given]
    answers = run_items(items, session.run, max_batch_size=8, by_rows=by_rows)
    assert asked == [{"y": (1, 0.25)}]
    for answer, (x, least) in zip(answers, given, strict=True):
        assert not isinstance(answer, Exception)
        assert answer["y"].dtype == dtype
        whole = session.run({"x": x}, ["y"])["y"]
        np.testing.assert_allclose(whole, tables(x), atol=2e-2 if half else 1e-5)
        wanted = [table[table[:, 1] > least].tolist() for table in whole]
        assert answer["y"].shape == (2, max(map(len, wanted)), 5)
        for table, rows in zip(answer["y"], wanted, strict=True):
            assert table[: len(rows)].tolist() == rows
            assert not table[len(rows) :].any()


@pytest.mark.parametrize(
    ("first", "second"),
    [({"y": (1, 0.5)}, {"y": (2, 0.5)}), ({"y": (1, 0.5)}, {}), ({"y": (7, 0.5)}, {"y": (7, 0.5)})],
    ids=["other columns", "one wants all", "no such column"],
)
def test_what_cannot_be_picked_together_is_answered_all_the_same(
    first: Any, second: Any, tmp_path: Path
) -> None:
    session = opened(detector(tmp_path / "m" / "model.onnx"), 8)
    given = [(pictures(1), first), (pictures(2), second)]
    items = [Item({"x": x}, ("y",), above=above) for x, above in given]
    answers = run_items(items, session.run, max_batch_size=8, by_rows=session.by_rows)
    for answer, (x, above) in zip(answers, given, strict=True):
        if above.get("y", (0,))[0] == 7:
            assert isinstance(answer, RequestError)
            continue
        assert not isinstance(answer, Exception)
        column, least = above.get("y", (0, -np.inf))
        count = (tables(x)[..., column] > least).sum(1).max()
        assert answer["y"].shape == (len(x), count, 5)


def test_rows_by_number_are_those_that_numpy_picks(tmp_path: Path) -> None:
    """Of texts of unequal lengths that share a run; an output of another length is run whole."""
    session = opened(texts(tmp_path / "m" / "model.onnx"), 8)
    asked = []

    def run_rows(*arguments: Any) -> Any:
        asked.append(arguments[2]["y"].numbers)
        return session.run_rows(*arguments)

    by_rows = type(session.by_rows)(("y",), run_rows, session.run_above)
    padding = PaddedTensors({"ids": 0}, ("y",))
    given = [(np.array([[5, 6, 7], [8, 9, 1]]), [2, 3]), (np.array([[30, 40]]), [1])]
    items = [Item({"ids": ids}, ("y",), {"y": rows}, {}, padding) for ids, rows in given]
    first, second = run_items(items, session.run, max_batch_size=8, by_rows=by_rows)
    assert asked == [[2, 3, 7]]
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    np.testing.assert_array_equal(first["y"], WORDS[[7, 8]])
    np.testing.assert_array_equal(second["y"], WORDS[[40]])


def test_a_gpu_that_onnx_runtime_cannot_use_is_an_error(tmp_path: Path) -> None:
    """It would take the CPU, with the settings of a GPU."""
    file = texts(tmp_path / "m" / "model.onnx")
    given = cpu_config()
    providers = [(CUDA, {"device_id": "0"}), (CPU, {})]
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(ModelConfigError, match=r"cannot use its CUDA.*KIND_CPU"),
    ):
        GpuSession(file, given, session_settings(given), providers)


class Driver:
    """Stands in for a GPU's driver: it knows the major number of a compute capability alone."""

    def __init__(self, major: int) -> None:
        self.major = major

    def cuInit(self, flags: int) -> None: ...  # noqa: N802  the driver's own name

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:  # noqa: N802
        assert (attribute, device) == (75, 1)
        value._obj.value = self.major


@pytest.mark.parametrize(
    ("half", "major", "options", "expected"),
    [
        (False, 9, {}, "tf32"),
        (False, 9, {"use_tf32": "0"}, "f32"),
        (False, 7, {}, "f32"),
        (True, 9, {}, "fp16"),
    ],
)
def test_the_precision_is_that_of_the_weights_or_of_the_gpu(
    half: bool, major: int, options: Any, expected: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(major))
    file = detector(tmp_path / "m" / "model.onnx", half=half)
    assert find_precision(file, {"device_id": "1", **options}) == expected


def test_the_log_and_the_list_of_models_say_what_runs_it(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's process, where ONNX Runtime's module is replaced for CUDA."""
    texts(process.file)

    class Cuda(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, file: Any, options: Any, providers: Any) -> None:
            super().__init__(file, options, providers=[CPU])
            self.asked = [name for name, _ in providers]

        def get_providers(self) -> list[str]:
            return self.asked

    monkeypatch.setattr(onnxruntime, "InferenceSession", Cuda)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(8))
    model = process.module.TritonPythonModel()
    sides = ("ids", "TYPE_INT64", [-1]), ("y", "TYPE_FP32", [-1, 4])
    process.initialize(model, {"name": "m"}, *sides, kind="GPU")
    assert process.log == ["model 'm': run by ONNX Runtime in tf32 (on a GPU)"]
    shown = json.loads((tmp_path / "shared" / "engines" / "m.1.json").read_text())
    assert (shown["engine"], shown["precision"]) == ("onnxruntime", "tf32")
    model.finalize()
    assert not list((tmp_path / "shared" / "engines").glob("*.json"))
