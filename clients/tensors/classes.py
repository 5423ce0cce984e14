"""The best classes of an output, as Triton's classification extension writes them.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
Triton 2.51 is not asked for them: it divides by the size of an element of what the model answered,
and ends with SIGFPE where that is texts, whatever the configuration says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.errors import ModelFailed, TensorsRefused
from clients.repository.files import unmarked
from clients.tensors.scores import best, digits

MOST_CLASSES = 100_000
"""Of one output, over all items: so many take 0.1 s and 20 MB."""


def classified(
    scores: npt.NDArray[Any], count: int, labels: Sequence[bytes], *, batched: bool
) -> npt.NDArray[np.object_]:
    """Return the best classes, best first; of equal ones the first.

    Triton writes `nan` and `inf` where here is `null`, as in all answers.

    Args:
        scores: [batch, …] where `batched`, else of any shape; what is left is one dimension.
        count: how many are wanted; fewer come where there are fewer.
        labels: by class; there may be fewer, and empty ones.
        batched: whether the first dimension is a batch.

    Returns:
        bytes, `score:index` or `score:index:label`, [batch, classes] or [classes].

    Raises:
        ModelFailed: they are no numbers, or no batch.
        TensorsRefused: more are wanted than `MOST_CLASSES`.

    """
    if scores.dtype.kind not in "iuf" or (batched and not scores.ndim):
        raise ModelFailed(
            f"classes are wanted of an output that came as {scores.dtype} {list(scores.shape)}"
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
    """Return the labels of a file, a line each; none where it cannot be read.

    Of a file from Windows Triton itself gives each with the carriage return at its end.
    """
    try:
        changed = path.stat().st_mtime_ns
        return _labels(path, changed)
    except (OSError, UnicodeDecodeError):
        return ()


@lru_cache(maxsize=64)
def _labels(path: Path, changed: int) -> Sequence[bytes]:  # noqa: ARG001  it is part of the key
    lines = unmarked(path.read_bytes()).removesuffix(b"\n").split(b"\n")
    return [line.removesuffix(b"\r") for line in lines]
