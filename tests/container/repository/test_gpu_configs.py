"""GPU configurations on a machine without a GPU: said at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.model_files import gpu_config
from container.repository.compose import compose, without_backend

GPU = 'backend: "onnxruntime"\ninstance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n'


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model for a GPU, on a machine without one; its own folder is read-only to us."""
    monkeypatch.setattr(gpu_config, "DEVICES", tmp_path / "dev")
    folder = tmp_path / "models"
    (folder / "card" / "1").mkdir(parents=True)
    (folder / "card" / "1" / "model.onnx").touch()
    (folder / "card" / "config.pbtxt").write_text(GPU)
    return folder


def composed(models: Path) -> tuple[str, list[str]]:
    """Return the configuration that Triton reads, and what was said."""
    said: list[str] = []
    place = models.parent / "repository"
    compose(place, None, models, instead=False, say=said.append)
    assert (place / "card" / "1" / "model.onnx").is_file()
    return (place / "card" / "config.pbtxt").read_text(), said


def test_with_a_gpu_nothing_is_said_or_changed(models: Path) -> None:
    (models.parent / "dev" / "nvidia0").mkdir(parents=True)
    assert composed(models) == (GPU, [])


def test_what_asks_for_a_gpu_is_said_with_the_fix(models: Path) -> None:
    text, said = composed(models)
    assert text == GPU
    kind, gpus = said
    assert kind.startswith("card: config.pbtxt:2 `instance_group.kind` is KIND_GPU")
    assert "KIND_AUTO" in kind
    assert gpus.startswith("card: config.pbtxt:2 `instance_group.gpus` names GPUs")


def test_with_a_gpu_the_embedded_triton_says_which_backend_it_lacks(models: Path) -> None:
    (models / "card" / "config.pbtxt").write_text('backend: "tensorrt"\n')
    assert list(without_backend(models)) == []
    (models.parent / "dev" / "nvidia0").mkdir(parents=True)
    (said,) = without_backend(models)
    assert said.startswith("card: config.pbtxt:1 `backend` is for TensorRT")
    (models / "card" / "config.pbtxt").write_text(GPU)
    assert list(without_backend(models)) == []


@pytest.mark.parametrize(
    ("file", "config", "fix"),
    [
        ("model.pt", "", "torch.onnx.export"),
        ("model.pt", 'backend: "pytorch"', "torch.onnx.export"),
        ("model.pt", 'platform: "pytorch_libtorch"', "torch.onnx.export"),
        ("model.xml", "", 'backend: "onnxruntime"'),
        ("model.xml", 'backend: "openvino"', 'backend: "onnxruntime"'),
    ],
)
def test_of_other_formats_the_embedded_triton_says_what_to_do(
    models: Path, file: str, config: str, fix: str
) -> None:
    (models / "card" / "config.pbtxt").write_text(config)
    (models / "card" / "1" / file).touch()
    (said,) = without_backend(models)
    assert f"only NVIDIA's image of Triton can run {file}" in said
    assert fix in said
    (models / "card" / "config.pbtxt").write_text('backend: "python"')
    assert list(without_backend(models)) == []


def test_a_configuration_in_a_version_folder_is_said(models: Path) -> None:
    (models / "card" / "config.pbtxt").rename(models / "card" / "1" / "config.pbtxt")
    said: list[str] = []
    compose(models.parent / "repository", None, models, instead=False, say=said.append)
    (line,) = said
    assert line.startswith(f"{models}/card/1/config.pbtxt has no effect")
    assert f"{models}/card/config.pbtxt" in line
