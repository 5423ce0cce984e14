"""Models and requests for the tests of batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backends.batching.item import Item, PaddedTensors

Array = np.ndarray[Any, Any]


class Doubler:
    """y = 2 x, n = the rows of the run; refuses a 13 anywhere."""

    def __init__(self) -> None:
        self.runs: list[tuple[tuple[int, ...], tuple[str, ...]]] = []

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        x = inputs["x"]
        self.runs.append((x.shape, tuple(outputs)))
        if (x == 13).any():
            raise ArithmeticError("13 brings bad luck.")
        answers = {"y": 2 * x, "n": np.full(len(x), len(x))}
        return {name: answers[name] for name in outputs}


def item(rows: int, width: int = 2, fill: float = 1, outputs: tuple[str, ...] = ("y",)) -> Item:
    return Item({"x": np.full((rows, width), fill, np.float32)}, outputs)


def values(answer: Any) -> Any:
    return {name: array.tolist() for name, array in answer.items()}


class Texts:
    """y = ids per token, [n, tokens, 2], sum = their sum by the mask, [n, 1]."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        self.runs.append({name: array.tolist() for name, array in inputs.items()})
        ids, mask = inputs["ids"], inputs["mask"]
        answers = {"y": np.stack([ids, -ids], -1), "sum": (ids * mask).sum(1, keepdims=True)}
        return {name: answers[name] for name in outputs}


def text(
    *rows: list[int],
    outputs: tuple[str, ...] = ("y", "sum"),
    padding: PaddedTensors = PaddedTensors({"ids": 7, "mask": 0}, ("y",)),  # noqa: B008  it is immutable
    picked: Mapping[str, Sequence[int]] | None = None,
) -> Item:
    ids = np.array(rows, np.int32)
    return Item({"ids": ids, "mask": np.ones_like(ids)}, outputs, picked or {}, padding=padding)
