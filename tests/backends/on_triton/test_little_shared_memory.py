"""Where shared memory is shared out: a request that fits is answered, beside any others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from backends.machine.shared_memory import MIB, SHARES
from clients.errors import TooLargeAtOnce
from clients.triton.client import Triton
from tests.support.models import onnx_models, onnx_repository
from tests.support.triton import process as triton_process

pytestmark = pytest.mark.slow
WIDE = 200_000  # float32: 0.8 MB in, as much out


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton_process.Triton]:
    """`planned` may have 2 MB of tensors in one run; the others are not in the plan.

    Of `fixed` an item has 256 KiB in and as much out: batches of n need 1.5 + 1.125 n MiB.
    """
    folder = tmp_path_factory.mktemp("little")
    _, config = onnx_repository.SERVED["columns_beside"]
    for name in ("planned", "later", "latest"):
        onnx_models.columns(folder / "models" / name / "1" / "model.onnx")
        (folder / "models" / name / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{config}')
    x, y = ((name, onnx_models.FLOAT, ["b", 65536]) for name in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    onnx_models.save(folder / "models" / "fixed" / "1" / "model.onnx", nodes, [x], [y])
    (folder / "models" / "fixed" / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 16 instance_group { count: 1 }'
        'input { name: "x" data_type: TYPE_FP32 dims: 65536 }'
        'output { name: "y" data_type: TYPE_FP32 dims: 65536 }'
    )
    with pytest.MonkeyPatch.context() as patch:
        shares = {"size": 64 * MIB, "models": {"planned": [2 * MIB, 6 * MIB]}}
        patch.setenv(SHARES, json.dumps(shares))
        with triton_process.running(folder, ("planned", "later")) as server:
            yield server


@pytest.mark.parametrize("model", ["planned", "later"])
def test_who_fits_is_not_refused_for_others(little: triton_process.Triton, model: str) -> None:
    client = Triton(f"127.0.0.1:{little.ports[0]}")

    def ask(number: int) -> None:
        x = np.full((1, WIDE), number, np.float32)
        answer = client.infer(model, {"x": x}, timeout=300)
        np.testing.assert_array_equal(answer["same"], x)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))


def test_who_does_not_fit_is_told_so_and_is_not_in_the_way(little: triton_process.Triton) -> None:
    client = Triton(f"127.0.0.1:{little.ports[0]}")
    x = np.zeros((1, 300_000), np.float32)  # 1.2 MB and 1.2 MB
    with pytest.raises(TooLargeAtOnce, match=r"needs 2 MB .* the model has 2"):
        client.infer("planned", {"x": x}, timeout=300)
    assert client.infer("planned", {"x": x[:, :9]}, timeout=300)["width"].tolist() == [[9]]
    assert client.infer("later", {"x": x}, timeout=300)["width"].tolist() == [[300_000]]
    client.unload("planned", timeout=300)


def test_a_model_that_comes_later_has_its_part_as_soon_as_it_is_loaded(
    little: triton_process.Triton,
) -> None:
    """An eighth of 64 MB, half of which is for tensors. The size of its region is the judge."""

    def size() -> int:
        return sum(path.stat().st_size for path in Path("/dev/shm").glob(f"{little.prefix}*"))

    client, before = Triton(f"127.0.0.1:{little.ports[0]}", scarce=True), size()
    client.load("latest", timeout=300)
    assert 7 * MIB < size() - before <= 8 * MIB
    x = np.zeros((1, 500_000), np.float32)  # 2 MB and 2 MB
    with pytest.raises(TooLargeAtOnce, match=r"needs 4 MB .* the model has 3"):
        client.infer("latest", {"x": x}, timeout=300)
    assert client.infer("latest", {"x": x[:, :9]}, timeout=300)["width"].tolist() == [[9]]
    client.unload("latest", timeout=300)
    assert size() <= before


def test_of_a_model_that_comes_later_a_batch_that_does_not_fit_is_told_so(
    little: triton_process.Triton,
) -> None:
    client = Triton(f"127.0.0.1:{little.ports[0]}", scarce=True)
    client.load("fixed", timeout=300)
    x = np.ones((6, 65536), np.float32)
    with pytest.raises(TooLargeAtOnce, match=r"needs 3 MB .* the model has 2"):
        client.infer("fixed", {"x": x}, timeout=300)
    np.testing.assert_array_equal(client.infer("fixed", {"x": x[:5]}, timeout=300)["y"], -x[:5])
