"""Mistakes that people make in a `dispatch.toml` and in a class, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.check import write_classes

CONFIG = """\
backend: "onnxruntime"
max_batch_size: 8
instance_group { count: 1 }
parameters { key: "engine" value { string_value: "onnxruntime" } }
"""


def write_classifier(folder: Path) -> Path:
    """Write a model of pictures of 8×8 with three classes, without a mistake."""
    write_classes(folder / "1", 3)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "dispatch.toml").write_text('family = "classification"\n')
    return folder


def toml(text: str) -> Callable[[Path], object]:
    """Write another `dispatch.toml`; of the same family where the text names none."""
    named = text if text.startswith("family") else f'family = "classification"\n{text}'
    return lambda folder: (folder / "dispatch.toml").write_text(named)


IN_TOML: dict[str, tuple[Callable[[Path], object], str]] = {
    "family": (
        toml('family = "clasification"'),
        '`family` is "clasification"; did you mean `classification`?',
    ),
    "miscounted": (
        lambda folder: (folder / "labels.txt").write_text("a\nb\nc\nd\n"),
        "`labels` names a file of 4 lines, but `y` FP32 [-1, 3] has 3 classes; give it 3 lines",
    ),
    "example": (
        toml('example = { image = "x" }'),
        "the client of 'example' fails on its own example: `img` is missing; the payload has",
    ),
}
"""How to make each mistake in the folder of a classifier, and words of what is said."""

CLASS = """
from clients.base import Client

class Mine(Client):
    modelname = "NAME"
    examples = [{"x": [0, 1, 2]}, {"x": [0, 0, 0]}]

    def inference(self, payload):
        found = self.infer({"INPUT": self.numbers(payload, "x")[None]}, model="right")["OUTPUT"][0]
        boxes = found[found > 0]
        return {"first": float(boxes.max()), "boxes": boxes.tolist()}
"""
RIGHT_CLASS = CLASS.replace("float(boxes.max())", "float(boxes.sum())")

IN_CLASS: dict[str, tuple[str, str]] = {
    "no_box": (
        CLASS,
        "the client of 'no_box' fails on its own examples[1]: ValueError: zero-size array to",
    ),
    "imports": (
        RIGHT_CLASS.replace("import Client", "import Clint"),
        "imports.py cannot be imported: ImportError: cannot import name 'Clint'",
    ),
}
"""The source of each class, and words of what is said of it."""
