"""`dispatcher check` on what Triton passes over in silence: GPUs on a CPU, and the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients.repository import gpu_config
from tests.support.check import Check
from tests.support.mistakes.mistake import write_right


@pytest.fixture(autouse=True)
def _without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_config, "DEVICES", tmp_path / "dev")


def warnings(tmp_path: Path, check: Check, more: str) -> list[dict[str, Any]]:
    """Return what is found in a right model with more in its configuration; no error."""
    config = write_right(tmp_path / "models", "right") / "config.pbtxt"
    config.write_text(config.read_text() + more)
    code, found = check(tmp_path / "models", "--no-clients")
    assert code == 0, found
    return found


@pytest.mark.parametrize(
    ("more", "key", "fix"),
    [
        ("instance_group { kind: KIND_GPU }", "instance_group.kind", "KIND_AUTO"),
        ("instance_group { gpus: [0, 1] }", "instance_group.gpus", "GPU_CONFIGS=adapt"),
        ("optimization { cuda { graphs: true } }", "optimization.cuda", "GPU_CONFIGS=adapt"),
    ],
)
def test_what_asks_for_a_gpu_is_warned_of_where_there_is_none(
    more: str, key: str, fix: str, tmp_path: Path, check: Check
) -> None:
    (found,) = warnings(tmp_path, check, more)
    assert (found["level"], found["key"]) == ("warning", key)
    assert fix in found["fix"]


def test_with_a_gpu_nothing_is_said_of_it(tmp_path: Path, check: Check) -> None:
    (tmp_path / "dev" / "nvidia0").mkdir(parents=True)
    assert warnings(tmp_path, check, "instance_group { kind: KIND_GPU }") == []


def test_an_engine_of_tensorrt_says_what_is_missing(tmp_path: Path, check: Check) -> None:
    folder = tmp_path / "models" / "card"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.plan").write_bytes(b"engine")
    (folder / "config.pbtxt").write_text('platform: "tensorrt_plan"\n')
    _, found = check(tmp_path / "models", "--no-clients")
    (said,) = [one for one in found if one["key"] == "platform"]
    assert "TensorRT backend, which NVIDIA's image of Triton has" in said["message"]
    assert "ONNX file" in said["fix"]


@pytest.mark.parametrize(("dims", "count"), [("3", 0), ("-1", 1)])
def test_a_cache_that_mixes_up_shapes_is_warned_of(
    dims: str, count: int, tmp_path: Path, check: Check
) -> None:
    folder = write_right(tmp_path / "models", "right")
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 4\nresponse_cache { enable: true }\n'
        f'input {{ name: "x" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }\n'
    )
    _, found = check(tmp_path / "models", "--no-clients")
    assert [one["key"] for one in found] == ["response_cache"] * count
