"""What `new-model` knows of models that answer masks, other pictures, or pictures' vectors."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.models.onnx_models import save, scores
from tests.tool.scaffold.conftest import Write
from tool.__main__ import main


def maps(
    file: Path, channels: int, *names: str, sigmoid: bool = False, times: float = 1, side: Any = 64
) -> Path:
    """A model whose outputs have `channels` sums of a pixel's colours, at `times` the size."""
    last = [helper.make_node("Sigmoid" if sigmoid else "Identity", ["sized"], [n]) for n in names]
    end = side if isinstance(side, str) else int(side * times)
    return save(
        file,
        [
            helper.make_node("Conv", ["images", "weights"], ["sums"]),
            helper.make_node("Resize", ["sums", "", "scales"], ["sized"]),
            *last,
        ],
        [("images", TensorProto.FLOAT, ["n", 3, side, side])],
        [(name, TensorProto.FLOAT, ["n", channels, end, end]) for name in names],
        weights=np.linspace(-9, 9, channels * 3, dtype=np.float32).reshape(channels, 3, 1, 1),
        scales=np.array([1, 1, times, times], np.float32),
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda at: maps(at, 4, "logits", times=0.25), {"family": "segmentation"}),
        (lambda at: maps(at, 1, "y", sigmoid=True), {"family": "segmentation"}),
        (
            lambda at: maps(at, 1, "d0", "d1", sigmoid=True),
            {"family": "segmentation", "output": "d0"},
        ),
        (
            lambda at: maps(at, 1, "predicted_depth"),
            {"family": "picture-to-picture", "range": "relative"},
        ),
        (
            lambda at: maps(at, 3, "y", sigmoid=True, times=2, side="s"),
            {"family": "picture-to-picture"},
        ),
        (
            lambda at: scores(at, ("n", 3, 32, 32), 16, names=("x", "image_embeds")),
            {"family": "picture-embedding"},
        ),
        (
            lambda at: scores(at, ("n", 3, 32, 32), 512, names=("x", "y")),
            {"family": "tensors"},
        ),
        (lambda at: maps(at, 5, "y"), {"family": "tensors"}),
    ],
)
def test_a_model_is_known_by_its_output(
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Any,
    expected: dict[str, str],
) -> None:
    said = write(make(tmp_path / "a.onnx"))
    assert tomllib.loads(Path("mine/new/dispatch.toml").read_text()) == expected, said
    assert main(["check", "mine"]) == 0
    assert capsys.readouterr().out == "1 models (new): 0 errors, 0 warnings\n"


def test_what_no_file_proves_is_named(write: Write, tmp_path: Path) -> None:
    said = write(maps(tmp_path / "a.onnx", 5, "y"))
    assert re.findall(r"`--family (\S+)` suits if", said) == ["segmentation"]


def test_labels_prove_that_channels_are_classes(write: Write, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("a\nb\nc\n")
    assert write(maps(tmp_path / "a.onnx", 3, "y"), "--labels", "names").startswith(
        "family: segmentation, because `images` FP32 [-1, 3, 64, 64] takes pictures"
    )
    assert Path("mine/new/labels.txt").read_text() == "a\nb\nc\n"
