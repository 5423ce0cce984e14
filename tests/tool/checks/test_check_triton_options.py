"""`dispatcher check` on what Triton passes over in silence: GPUs on a CPU, and others."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.model_files import gpu_config
from tests.support.check import Check
from tests.support.mistakes.mistake import ensemble, write_right


@pytest.fixture(autouse=True)
def _without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_config, "DEVICES", tmp_path / "dev")


def test_what_asks_for_a_gpu_is_warned_of_where_none_is(tmp_path: Path, check: Check) -> None:
    config = write_right(tmp_path / "models", "right") / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group { kind: KIND_GPU }")
    code, (one,) = check(tmp_path / "models", "--no-clients")
    assert (code, one["level"], one["key"]) == (0, "warning", "instance_group.kind")
    assert "KIND_AUTO" in one["fix"]


@pytest.mark.parametrize("file", ["model.plan", "model.graphdef"])
def test_a_file_that_only_nvidia_s_image_runs_is_warned_of(
    tmp_path: Path, check: Check, file: str
) -> None:
    (tmp_path / "engine" / "1").mkdir(parents=True)
    (tmp_path / "engine" / "1" / file).write_bytes(b"x")
    code, (one,) = check(tmp_path)
    assert (code, one["level"], one["file"]) == (0, "warning", f"engine/1/{file}")
    assert "which only NVIDIA's image of Triton can run" in one["message"]


def test_a_decoupled_step_of_an_ensemble_is_a_warning(tmp_path: Path, check: Check) -> None:
    ensemble()(write_right(tmp_path, "both"))
    config = tmp_path / "right" / "config.pbtxt"
    write_right(tmp_path, "right")
    text = config.read_text().replace("onnxruntime", "python").replace("dynamic_batching", "# ")
    (tmp_path / "right" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    for value, count in (("false", 0), ("true", 1)):
        config.write_text(f"{text}model_transaction_policy {{ decoupled: {value} }}\n")
        code, found = check(tmp_path, "--no-clients")
        ours = [one for one in found if "which is decoupled" in one["message"]]
        assert (code, [one["level"] for one in ours]) == (0, ["warning"] * count)
        assert all("/v2/models/both/generate_stream" in one["fix"] for one in ours)


def test_files_that_never_share_a_run_are_a_warning(tmp_path: Path, check: Check) -> None:
    (tmp_path / "raw" / "1").mkdir(parents=True)
    (tmp_path / "raw" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    for more, batching, count in (
        ("", "dynamic_batching { }", 1),
        ("", "", 0),
        ("allow_ragged_batch: true", "dynamic_batching { }", 0),
    ):
        (tmp_path / "raw" / "config.pbtxt").write_text(
            f'backend: "python"\nmax_batch_size: 8\n{batching}\n'
            f'input {{ name: "FILE" data_type: TYPE_UINT8 dims: [ -1 ] {more} }}\n'
            'output { name: "N" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        )
        _, found = check(tmp_path, "--no-clients")
        assert [(one["level"], one["line"]) for one in found] == [("warning", 3)] * count
        assert all("allow_ragged_batch" in one["fix"] for one in found)
