"""The converted models; their answers to pictures are in tests/end_to_end/test_chain.py.

Skipped where the models were not made (`make weights`) or the reference models are not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.conftest import PROJECT, SHARED
from weights.cli import main

REPOSITORY = PROJECT / "model_repository"


def session(model: str, repository: Path = REPOSITORY) -> Any:
    path = repository / model / "1" / "model.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there: run `make weights`")
    return onnxruntime.InferenceSession(path)


def assert_same_numbers(ours: Any, theirs: Any, tolerance: float) -> None:
    """A batch of two holds the batch axis too. One that takes floats is given parts of 1."""
    (value,) = ours.get_inputs()
    images = np.random.default_rng(3).integers(0, 256, (2, *value.shape[1:]), np.uint8)
    (got,), (wanted,) = (
        one.run(None, {value.name: images if "uint8" in one.get_inputs()[0].type else parts})
        for one in (ours, theirs)
        for parts in [images / np.float32(255)]
    )
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_weights_that_are_made_anew_give_the_same_numbers(tmp_path: Path) -> None:
    """The packages are fetched. They are pinned, so a converter has nothing else to read."""
    assert main(["resnet", "yolov5", "--repository", str(tmp_path)]) == 0
    for model in ("resnet", "yolov5"):
        assert_same_numbers(session(model, tmp_path), session(model), 1e-3)


@pytest.mark.parametrize(
    ("model", "reference", "tolerance"), [("resnet", "resnet50", 0.1), ("yolov5", "yolov5s", 0.01)]
)
def test_every_number_agrees_with_the_reference_model(
    model: str, reference: str, tolerance: float
) -> None:
    """Logits within 0.1; boxes within 0.01 pixels."""
    other = SHARED / reference / "model.onnx"
    if not other.is_file():
        pytest.skip("the reference models are not beside the project")
    assert_same_numbers(session(model), onnxruntime.InferenceSession(other), tolerance)


@pytest.mark.parametrize(
    ("model", "value_in", "value_out"),
    [
        ("resnet", ("input", [3, 224, 224]), ("output", [1000])),
        ("yolov5", ("images", [3, 640, 640]), ("output", [25200, 85])),
    ],
)
def test_names_and_shapes_are_the_promised_ones(
    model: str, value_in: tuple[str, list[int]], value_out: tuple[str, list[int]]
) -> None:
    opened = session(model)
    for values, (name, shape), kind in (
        (opened.get_inputs(), value_in, "tensor(uint8)"),
        (opened.get_outputs(), value_out, "tensor(float)"),
    ):
        (value,) = values
        assert (value.name, value.shape[1:], value.type) == (name, shape, kind)
        assert isinstance(value.shape[0], str), "the batch axis is dynamic"
    onnx.checker.check_model(REPOSITORY / model / "1" / "model.onnx", full_check=True)


@pytest.mark.parametrize(
    ("model", "others", "known"),
    [
        # Fields of a row that are no class: four of the box, and the objectness.
        ("yolov5", 5, {0: "person", 15: "cat", 16: "dog", 41: "cup", 79: "toothbrush"}),
        ("resnet", 0, {0: "tench, Tinca tinca", 249: "malamute, malemute, Alaskan malamute"}),
    ],
)
def test_there_is_one_label_per_class(model: str, others: int, known: dict[int, str]) -> None:
    text = (REPOSITORY / model / "labels.txt").read_text(encoding="utf-8")
    labels = text.splitlines()
    assert text.endswith("\n")
    assert all(label == label.strip() != "" for label in labels)
    assert {index: labels[index] for index in known} == known
    (value,) = session(model).get_outputs()
    assert len(labels) == value.shape[-1] - others
