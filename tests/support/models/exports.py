"""Small models with the tensors that exporters write, whose answers are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tests.support.models.onnx_models import FLOAT, INT64, save


def tables(
    file: Path,
    images: Sequence[int | str],
    noted: Mapping[str, str] | None = None,
    **outputs: NDArray[np.float32],
) -> Path:
    """A detector that answers the same tables to each picture."""
    nodes, arrays = [], {"none": np.zeros(1, np.float32)}
    nodes.append(helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0))
    nodes.append(helper.make_node("Mul", ["mean", "none"], ["nothing"]))
    for name, table in outputs.items():
        arrays |= {f"{name}_table": table[None], f"{name}_ones": np.array([-1, *[1] * table.ndim])}
        nodes.append(helper.make_node("Reshape", ["nothing", f"{name}_ones"], [f"{name}_gate"]))
        nodes.append(helper.make_node("Add", [f"{name}_table", f"{name}_gate"], [name]))
    shapes = [(name, FLOAT, [images[0], *table.shape]) for name, table in outputs.items()]
    return save(file, nodes, [("images", FLOAT, images)], shapes, noted, **arrays)


def scores(
    file: Path,
    images: Sequence[int | str],
    classes: int,
    kind: int = FLOAT,
    noted: Mapping[str, str] | None = None,
    names: tuple[str, str] = ("images", "logits"),
) -> Path:
    """A classifier: the score of class i is i times the mean of all numbers of the picture."""
    return save(
        file,
        [
            helper.make_node("Cast", names[:1], ["numbers"], to=FLOAT),
            helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Reshape", ["mean", "column"], ["rows"]),
            helper.make_node("Mul", ["rows", "weights"], names[1:]),
        ],
        [(names[0], kind, images)],
        [(names[1], FLOAT, [images[0], classes])],
        noted,
        column=np.array([-1, 1]),
        weights=np.arange(classes, dtype=np.float32)[None],
    )


def tokens(
    file: Path, width: int, *, pooled: str = "", each: str = "last_hidden_state", most: int = 0
) -> Path:
    """A text model: `width` numbers for each token, i times its id; or, `pooled`, their mean.

    With `most` a longer text fails, as with embeddings of so many positions.
    """
    batch: list[int | str] = ["n", "t"]
    nodes = [helper.make_node("Cast", ["input_ids"], ["ids"], to=FLOAT)]
    arrays: dict[str, NDArray[np.generic]] = {"weights": np.arange(width, dtype=np.float32)}
    if most:
        nodes += [
            helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
            helper.make_node("Sub", ["length", "one"], ["last"]),
            helper.make_node("Gather", ["positions", "last"], ["position"]),
            helper.make_node("Add", ["ids", "position"], ["placed"]),
        ]
        arrays |= {"positions": np.zeros(most, np.float32), "one": np.array([1])}
    nodes += [
        helper.make_node("Unsqueeze", ["placed" if most else "ids", "last_axis"], ["column"]),
        helper.make_node("Mul", ["column", "weights"], [each]),
    ]
    arrays["last_axis"] = np.array([2])
    if pooled:
        nodes.append(helper.make_node("ReduceMean", [each], [pooled], axes=[1], keepdims=0))
    output = (pooled, FLOAT, ["n", width]) if pooled else (each, FLOAT, [*batch, width])
    return save(file, nodes, [("input_ids", INT64, batch)], [output], **arrays)
