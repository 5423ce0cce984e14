"""The vectors that families answer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEAST_LENGTH = 1e-12  # as in PyTorch's `normalize`; a vector of zeros stays zero


def normalise(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return vectors of length 1: [vectors, width]."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinity by infinity is not a number
        return np.asarray(vectors / np.maximum(lengths, LEAST_LENGTH))


def as_vectors(vectors: npt.NDArray[np.float64], *, normalised: bool) -> list[list[float]]:
    """Return vectors for an answer in JSON, of length 1 where wanted: [vectors, width]."""
    if normalised:
        vectors = normalise(vectors)
    # Models compute in float32, which has seven digits.
    return [[round(number, 7) for number in vector] for vector in vectors.tolist()]
