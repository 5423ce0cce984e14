"""Models and requests for the tests of batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backends.batching.item import ByRows, Item, PaddedTensors, RunRows
from backends.batching.run_items import run_items

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
    """Answers of ids and mask, [n, tokens]; it fails where an id is 99.

    y = ids and -ids per token, [n, tokens, 2], pairs = two such rows per token, [n, tokens, 2, 2],
    sum = their sum by the mask, [n, 1], words = ids as text.
    """

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [np.shape(inputs["ids"]) for inputs in self.runs]

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        self.runs.append({name: array.tolist() for name, array in inputs.items()})
        ids, mask = inputs["ids"], inputs["mask"]
        if 99 in ids:
            raise RuntimeError(f"99 is no word, in {list(ids.shape)}")
        answers = {
            "y": lambda: np.stack([ids, -ids], -1),
            "sum": lambda: (ids * mask).sum(1, keepdims=True),
            "pairs": lambda: np.stack([ids, mask, -ids, -mask], -1).reshape(*ids.shape, 2, 2),
            "words": lambda: ids.astype(str).astype(object),
        }
        return {name: answers[name]() for name in outputs}


class TextsByRows(Texts):
    """The same, and it can compute some rows of y alone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, list[int]]] = []

    def few(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], rows: Mapping[str, RunRows]
    ) -> dict[str, Array]:
        self.asked.append({name: some.numbers for name, some in rows.items()})
        answers = self(inputs, outputs)
        if 13 in inputs["ids"]:
            raise ArithmeticError("13 brings bad luck.")
        for name, some in rows.items():
            array = answers[name]
            if array.shape[:2] != some.dims:
                raise ValueError(f"{array.shape} is not {some.dims}")
            answers[name] = array.reshape(-1, array.shape[-1])[some.numbers]
        return answers

    def run_items(self, *items: Item) -> list[Any]:
        by_rows = ByRows(("y", "z"), self.few)
        return list(run_items(items, self, max_batch_size=8, by_rows=by_rows))


PADDING = PaddedTensors({"ids": 7, "mask": 0}, ("y",))


def text(
    *rows: Sequence[int],
    outputs: tuple[str, ...] = ("y", "sum"),
    padding: PaddedTensors = PADDING,
    picked: Mapping[str, Sequence[int]] | None = None,
    **more: Any,
) -> Item:
    """Return a request of texts, which its sender has filled up to the longest of them."""
    longest = max(map(len, rows))
    ids = np.array([[*row, *[7] * (longest - len(row))] for row in rows], np.int32)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int32)
    return Item({"ids": ids, "mask": mask}, outputs, picked or {}, padding=padding, **more)
