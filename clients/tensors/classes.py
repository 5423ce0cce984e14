"""The best classes of an output, as Triton's classification extension writes them.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
They are computed here because Triton 2.51 divides by the size of an element of the model's answer,
and ends with SIGFPE if the answer has texts, whatever the configuration says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.errors import ModelFailed, TensorsRefused
from clients.model_files.files import strip_mark
from clients.tensors.scores import best, digits

MOST_CLASSES = 100_000
"""For one output, in all items: these take 0.1 s and 20 MB."""


def classify(
    scores: npt.NDArray[Any], count: int, labels: Sequence[bytes], *, batched: bool
) -> npt.NDArray[np.object_]:
    """Return the best classes, best first, as `score:index` or `score:index:label`.

    The scores are [batch, …] if `batched`, else of any shape; other dimensions count as one. Fewer
    than `count` come where there are fewer. A score that is not finite is written as `null`, where
    Triton writes `nan` or `inf`.
    """
    if scores.dtype.kind not in "iuf" or (batched and not scores.ndim):
        raise ModelFailed(
            f"classes are wanted of an output that is {scores.dtype} {list(scores.shape)}"
        )
    shape = scores.shape if batched else (1, *scores.shape)
    items = scores.reshape(shape[0], math.prod(shape[1:]))
    wanted = min(count, items.shape[1])
    if len(items) * wanted > MOST_CLASSES:
        raise TensorsRefused(
            f"{len(items) * wanted:,} classes are wanted of one output",
            hint=f"expected at most {MOST_CLASSES:,}; without `classification` all numbers come",
        )
    texts = np.empty((len(items), wanted), np.object_)
    for row, item in zip(texts, items, strict=True):
        for place, (index, score) in enumerate(best(item, wanted) if wanted else ()):
            label = labels[index] if index < len(labels) else b""
            number = digits(score) if scores.dtype.kind == "f" else str(int(score))
            row[place] = f"{number}:{index}".encode() + (b":" + label if label else b"")
    return texts if batched else texts[0]


def labels_at(path: Path) -> Sequence[bytes]:
    """Return the labels of a file, one per line; none if it cannot be read.

    Carriage returns of Windows are removed; Triton itself keeps them.
    """
    try:
        lines = strip_mark(path.read_bytes()).removesuffix(b"\n").split(b"\n")
    except (OSError, UnicodeDecodeError):
        return ()
    return [line.removesuffix(b"\r") for line in lines]
