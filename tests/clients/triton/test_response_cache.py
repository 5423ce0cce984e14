"""Triton's response cache: equal requests are answered from it, with all that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from clients.errors import DeadlineExceeded, ModelFailed
from clients.tensors.signature import noise
from clients.triton.client import Triton
from clients.triton.server import Hints, Signature, TensorSpec
from clients.triton.shared_memory import MIB
from tests.conftest import PATIENCE_S, wait_for
from tests.support.models import onnx_models, onnx_repository
from tests.support.triton import process as triton_process

pytestmark = pytest.mark.slow

TWO_OUTPUTS = """
backend: "onnxruntime"
max_batch_size: 4
response_cache { enable: true }
parameters { key: "engine" value { string_value: "onnxruntime" } }
"""
CHAIN = (
    'platform: "ensemble"\nmax_batch_size: 4\n'
    + onnx_repository.X
    + onnx_repository.Y
    + 'ensemble_scheduling { step [ { model_name: "two" model_version: -1 '
    'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }'
)
WIDTH = 300_000  # of float32: 1.2 MB in a row
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton_process.Triton]:
    """A Triton with a cache: `two` answers y = 2x and z = x², `chain` has it as a step."""
    folder = tmp_path_factory.mktemp("cache")
    onnx_models.save(
        folder / "models" / "two" / "1" / "model.onnx",
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Mul", ["x", "x"], ["z"])],
        [("x", TensorProto.FLOAT, ("n", 3))],
        [(name, TensorProto.FLOAT, ("n", 3)) for name in ("y", "z")],
    )
    (folder / "models" / "two" / "config.pbtxt").write_text(TWO_OUTPUTS)
    (folder / "models" / "chain" / "1").mkdir(parents=True)
    (folder / "models" / "chain" / "config.pbtxt").write_text(CHAIN)
    onnx_models.plus_one(folder / "models" / "wide" / "1" / "model.onnx", ("n", WIDTH))
    (folder / "models" / "wide" / "config.pbtxt").write_text(TWO_OUTPUTS)
    onnx_models.plus_one(folder / "models" / "any" / "1" / "model.onnx", ("n", "m"))
    (folder / "models" / "any" / "config.pbtxt").write_text(TWO_OUTPUTS)
    options = ["--cache-config=local,size=16777216"]
    with triton_process.running(folder, ["two", "chain", "wide", "any"], options=options) as triton:
        yield triton


@pytest.fixture
def client(server: triton_process.Triton) -> Triton:
    return Triton(f"127.0.0.1:{server.ports[0]}")


def counts(server: triton_process.Triton, model: str = "two") -> tuple[int, int]:
    """Return how many answers came from the cache, and how often the model ran."""
    stats = server.client.get_inference_statistics(model).model_stats[0]
    return stats.inference_stats.cache_hit.count, stats.execution_count


def more(
    server: triton_process.Triton, before: tuple[int, int], requests: int, model: str = "two"
) -> tuple[int, int]:
    """Return how much the counts have grown by requests; Triton counts after it has answered."""
    wait_for(lambda: sum(counts(server, model)) >= sum(before) + requests, "all to be counted")
    now = counts(server, model)
    return now[0] - before[0], now[1] - before[1]


def rows(start: float) -> Array:
    """Return an input that no other test sends."""
    return np.arange(start, start + 6, dtype=np.float32).reshape(2, 3)


def raw(server: triton_process.Triton, x: Array, **parameters: Any) -> Any:
    tensor = grpc_client.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)
    return server.client.infer("two", [tensor], parameters=parameters)


@pytest.mark.parametrize(("model", "start"), [("two", 0), ("chain", 100)])
def test_equal_requests_with_other_deadlines_come_from_the_cache(
    server: triton_process.Triton, client: Triton, model: str, start: float
) -> None:
    x, before = rows(start), counts(server)
    for timeout in (100, 200, 300):
        answer = client.infer(model, {"x": x}, timeout=timeout)
        np.testing.assert_array_equal(answer["y"], 2 * x)
    assert more(server, before, 3) == (2, 1)


def test_requests_with_other_hints_and_outputs_get_what_they_asked_for(
    server: triton_process.Triton, client: Triton
) -> None:
    x, before = rows(200), counts(server)
    asked = [
        {"outputs": ["y"], "hints": Hints(rows={"y": [1]})},
        {"outputs": ["z"]},
        {"hints": Hints(above={"z": (0, 1e9)})},
        {"outputs": ["y"], "hints": Hints(rows={"y": [0]})},
    ]
    for one in asked:
        answer = client.infer("two", {"x": x}, timeout=PATIENCE_S, **one)  # type: ignore[arg-type]
        assert set(answer) == set(one.get("outputs", ["y", "z"]))
        for name, expected in (("y", 2 * x), ("z", x * x)):
            np.testing.assert_array_equal(answer.get(name, expected), expected)
    assert more(server, before, 4) == (3, 1)


def test_hints_of_other_programs_do_not_cut_what_is_kept(
    server: triton_process.Triton, client: Triton
) -> None:
    """Triton itself would keep the one row for all who send these inputs."""
    x = rows(300)
    cut = '{"two": {"y": [1]}}'
    np.testing.assert_array_equal(raw(server, x, rows=cut).as_numpy("y"), 2 * x)
    np.testing.assert_array_equal(client.infer("two", {"x": x}, timeout=PATIENCE_S)["y"], 2 * x)


def test_an_error_that_triton_keeps_is_explained(
    server: triton_process.Triton, client: Triton
) -> None:
    """So this project's requests to such a model have no deadline: a late one would fail others."""
    x = rows(400)
    with pytest.raises(InferenceServerException):
        raw(server, x, deadline_us=1)
    with pytest.raises(ModelFailed, match="without its output 'y'") as caught:
        client.infer("two", {"x": x}, outputs=["y"], timeout=PATIENCE_S)
    assert "response cache keeps errors" in caught.value.hint


def test_a_late_request_does_not_fail_the_next_one(
    server: triton_process.Triton, client: Triton
) -> None:
    x = rows(500)
    client.signature("two", timeout=PATIENCE_S)
    with suppress(DeadlineExceeded):  # the answer may come before this thread looks
        client.infer("two", {"x": x}, timeout=1e-6)
    np.testing.assert_array_equal(client.infer("two", {"x": x}, timeout=PATIENCE_S)["y"], 2 * x)


def test_large_tensors_in_shared_memory_come_from_the_cache_too(
    server: triton_process.Triton,
) -> None:
    client = Triton(f"127.0.0.1:{server.ports[0]}", 64 * MIB)
    x = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    before = counts(server, "wide")
    for sent in (x, x, x + 7, x):
        np.testing.assert_array_equal(client.infer("wide", {"x": sent}, timeout=30)["y"], sent + 1)
    assert more(server, before, 4, "wide") == (2, 2)


def test_a_probe_reaches_the_model_and_not_the_cache(
    server: triton_process.Triton, client: Triton
) -> None:
    signature, before = client.signature("two", timeout=PATIENCE_S), counts(server)
    assert signature.cached
    for _ in range(3):
        client.knock("two", noise(signature), timeout=PATIENCE_S)
    assert more(server, before, 3) == (0, 3)


def test_noise_differs_each_time_and_has_the_types_of_the_model() -> None:
    types = ("FP16", "FP32", "INT8", "UINT8", "INT64", "BOOL", "BYTES")
    signature = Signature(4, tuple(TensorSpec(name, name, (-1, 50)) for name in types))
    one, other = noise(signature), noise(signature)
    for name in types:
        assert one[name].shape == (1, 50)
        assert one[name].dtype == other[name].dtype
        assert not np.array_equal(one[name], other[name])
    assert {type(text) for text in one["BYTES"].flat} == {bytes}
