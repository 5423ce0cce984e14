"""Tensors of a request in the shapes that a model's file has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import RequestError
from backends.model_config import DYNAMIC, FileTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from backends.batching.item import Tensors


def conform(inputs: Tensors, specs: Mapping[str, FileTensor]) -> dict[str, NDArray[Any]]:
    """Return the tensors in the shapes of the file, strings as str.

    A scalar loses its dimension.

    Raises RequestError: a tensor is unknown, its shape is not one that the file accepts, or a
    string is not UTF-8.
    """
    conforming = {}
    for name, array in inputs.items():
        spec = specs.get(name)
        if spec is None:
            raise RequestError(
                f"input '{name}' is unknown, but the model expects {', '.join(specs)}."
            )
        is_like_spec = array.ndim == len(spec.shape) and all(
            want in (DYNAMIC, got) for got, want in zip(array.shape, spec.shape, strict=True)
        )
        if not spec.shape and array.shape == (1,):
            array = array.reshape(())  # noqa: PLW2901  as the file has it
        elif spec.shape and not is_like_spec:
            raise RequestError(
                f"input '{name}' has shape {list(array.shape)}, but the model expects "
                f"{list(spec.shape)}."
            )
        conforming[name] = decode_texts(name, array) if array.dtype == np.object_ else array
    return conforming


def decode_texts(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of str for one of bytes; RequestError if they are not UTF-8."""
    flat = np.empty(array.size, dtype=object)
    for index, element in enumerate(array.flat):
        try:
            flat[index] = element.decode() if isinstance(element, bytes) else str(element)
        except UnicodeDecodeError as error:
            raise RequestError(
                f"element {index} of input '{name}' was expected to be UTF-8, but {error.reason} "
                f"at byte {error.start}."
            ) from None
    return flat.reshape(array.shape)
