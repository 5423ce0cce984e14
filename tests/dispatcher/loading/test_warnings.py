"""What is said of a configuration that is loaded at run time: GPUs on a CPU, a cache."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from clients.model_files import gpu_config
from clients.model_files.model_folders import link
from dispatcher.errors import BadModel
from tests.support.loading import Hosting

GPU = "instance_group [ { kind: KIND_GPU } ]\n"

CACHE = "response_cache { enable: true }"


@pytest.fixture
def elsewhere(tmp_path: Path, hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_config, "DEVICES", tmp_path / "dev")
    folder = hosting.folder
    (folder / "config.pbtxt").write_text(GPU)
    return folder


def test_a_refused_one_is_answered_with_the_fix(
    hosting: Hosting, elsewhere: Path, tmp_path: Path
) -> None:
    """With a GPU as well, of an engine for TensorRT."""
    hosting.server.refuse_to_load = "has kind KIND_GPU but no GPUs are available"
    with pytest.raises(BadModel, match="no GPUs are available") as caught:
        hosting.load("card", str(elsewhere))
    assert "write KIND_AUTO" in caught.value.hint
    (tmp_path / "dev" / "nvidia0").mkdir(parents=True)
    (elsewhere / "config.pbtxt").write_text('platform: "tensorrt_plan" ' + GPU)
    hosting.server.refuse_to_load = "unable to find backend library for backend 'tensorrt'"
    with pytest.raises(BadModel, match="unable to find backend") as caught:
        hosting.load("card", str(elsewhere))
    assert "NVIDIA's image of Triton has" in caught.value.hint
    assert "KIND_GPU" not in caught.value.hint


# Bytes say the shape where one size varies, the batch included.
@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("max_batch_size: 4 input { dims: [ 3 ] }", True),
        ("max_batch_size: 1 input { dims: [ -1 ] }", True),
        ("max_batch_size: 0 input { dims: [ 1, -1 ] } input { dims: [ -1, 3 ] }", True),
        ("max_batch_size: 4 input { dims: [ -1 ] }", False),
        ("input { dims: [ -1 ] }", False),
        ("max_batch_size: 0 input { dims: [ -1, -1 ] }", False),
        ("max_batch_size: 0", False),
    ],
)
def test_a_cache_that_would_mix_up_shapes_is_left_out(
    hosting: Hosting,
    elsewhere: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    text: str,
    keeps: bool,
) -> None:
    """Of a model of the repository, and of one from elsewhere."""
    (elsewhere / "config.pbtxt").write_text(f'backend: "python" {CACHE} {text}')
    with caplog.at_level(logging.WARNING):
        hosting.load("far", str(elsewhere))
    link(elsewhere, tmp_path / "near")
    for folder in (hosting.repository / "far", tmp_path / "near"):
        assert ("response_cache" in (folder / "config.pbtxt").read_text()) is keeps
        assert text in (folder / "config.pbtxt").read_text()
    assert ("`response_cache` is off" in caplog.text) is not keeps
