"""Layers written out in numpy, on NHWC and float64: what the converted models are held against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pad(x: Array, amount: int) -> Array:
    return np.pad(x, ((0, 0), (amount, amount), (amount, amount), (0, 0)))


def convolve(x: Array, kernel: Array, bias: Array, stride: int = 1) -> Array:
    """VALID convolution; `kernel` is height × width × in × out."""
    size = kernel.shape[0]
    rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
    y = np.zeros((len(x), rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            y[:, i, j] = np.tensordot(window, kernel, axes=3) + bias
    return y


def max_pool(x: Array, size: int, stride: int) -> Array:
    rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
    y = np.zeros((len(x), rows, columns, x.shape[3]))
    for i in range(rows):
        for j in range(columns):
            window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            y[:, i, j] = window.max(axis=(1, 2))
    return y


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
