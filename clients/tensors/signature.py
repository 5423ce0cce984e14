"""A model's signature, and the tensors that a caller sends to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.errors import TensorsRefused
from clients.triton.server import Signature, TensorSpec

Array = npt.NDArray[Any]

DTYPES: Mapping[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

# What takes hardly a byte of a request: the other sizes of a tensor without numbers, where a model
# that sums over its axis of size 0 makes an array of all of them; and texts, which may be empty.
MOST_SMALL = 2**20


def the_one_input(signature: Signature) -> str:
    """Return the name of the only input; raise TensorsRefused if there are several."""
    if len(signature.inputs) != 1:
        raise TensorsRefused(
            f"one array was sent; the model has the inputs {describe_tensors(signature.inputs)}",
            hint="send them by name in a V2 body",
        )
    return signature.inputs[0].name


def input_named(name: str, signature: Signature) -> TensorSpec:
    """Return an input of the model; raise TensorsRefused where it has none of this name."""
    for spec in signature.inputs:
        if spec.name == name:
            return spec
    raise TensorsRefused(
        f"there is no input `{name[:60]}`",
        hint=f"the model has {describe_tensors(signature.inputs)}",
    )


def refuse_wrong_tensors(inputs: Mapping[str, Array], signature: Signature) -> None:
    """Refuse tensors that do not match the model's inputs."""
    for name, array in inputs.items():
        datatype = DATATYPES.get(array.dtype, str(array.dtype))
        refuse_wrong_tensor(input_named(name, signature), datatype, array.shape, signature)
    missing = [spec for spec in signature.inputs if spec.name not in inputs and not spec.optional]
    if missing:
        raise TensorsRefused(
            f"input `{missing[0].name}` is missing",
            hint=f"the model has {describe_tensors(signature.inputs)}",
        )
    if signature.max_batch_size and len({len(array) for array in inputs.values()}) > 1:
        raise TensorsRefused("the inputs differ in their first dimension, the batch")


def refuse_wrong_tensor(
    spec: TensorSpec, datatype: str, shape: Sequence[int], signature: Signature
) -> None:
    """Refuse a tensor by its type and shape alone, before its data are read."""
    if 0 in shape and math.prod(filter(None, shape)) > MOST_SMALL:
        raise TensorsRefused(
            f"input `{spec.name}` has no numbers, but shape {list(shape)}",
            hint=f"besides a 0, sizes may make {MOST_SMALL} at most",
        )
    if not fits(shape, spec.shape) or datatype != spec.datatype:
        hints = (
            another_type(datatype, spec.datatype),
            one_axis_more(shape, spec.shape, signature.max_batch_size),
        )
        raise TensorsRefused(
            f"input `{spec.name}` wants {spec.datatype} {list(spec.shape)}; "
            f"you sent {datatype} {list(shape)}",
            hint="; ".join(filter(None, hints)),
        )
    if signature.max_batch_size and shape[0] > signature.max_batch_size:
        raise TensorsRefused(
            f"input `{spec.name}` has {shape[0]} items", hint=at_most(signature.max_batch_size)
        )
    refuse_many_texts(spec, math.prod(shape))


def refuse_many_texts(spec: TensorSpec, count: int) -> None:
    """Raise TensorsRefused where an input would have too many texts."""
    if spec.datatype == "BYTES" and count > MOST_SMALL:
        raise TensorsRefused(
            f"input `{spec.name}` has {count:,} texts",
            hint=f"send at most {MOST_SMALL:,} in one request",
        )


def fits(came: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array has a shape in which -1 is any size."""
    return len(came) == len(wanted) and all(
        one in (-1, other) for one, other in zip(wanted, came, strict=True)
    )


def another_type(came: str, wanted: str) -> str:
    """Return a hint for an array that has another type than the model's input."""
    if came == wanted or wanted not in DTYPES:
        return ""
    if wanted == "BYTES":
        return 'send texts in a V2 body, with "datatype": "BYTES"'
    numpy_name = np.dtype(DTYPES[wanted]).name
    said = f'send it as "datatype": "{wanted}" in JSON, or array.astype("{numpy_name}") as npy'
    return f"{said}; pixels are 0 to 255" if (came[:2], wanted) == ("FP", "UINT8") else said


def one_axis_more(came: Sequence[int], wanted: Sequence[int], most: int) -> str:
    """Return a hint for an array that lacks one axis of size 1, mostly the batch."""
    for shape in ([1, *came], [*came, 1]):
        if fits(shape, wanted):
            items = f"; the first axis counts items, and {at_most(most)}" if most else ""
            return f"send the same data as {shape}{items}"
    return ""


def at_most(most: int) -> str:
    """Return a hint on how many items a model takes."""
    return (
        f"the model takes at most {most} at once; more: a larger max_batch_size in config.pbtxt, "
        "or 0 where its first axis is no batch"
    )


def zeros(signature: Signature) -> dict[str, Array]:
    """Return the smallest inputs of a model: zeros, and 1 for every size that varies."""
    for spec in signature.inputs:
        if spec.datatype not in DTYPES and not spec.optional:
            raise TensorsRefused(
                f"input `{spec.name}` is {spec.datatype}, which is not served",
                hint=f"expected one of {', '.join(DTYPES)}",
            )
    return {
        spec.name: np.full(
            [max(1, size) for size in spec.shape],
            b"" if spec.datatype == "BYTES" else 0,
            DTYPES[spec.datatype],
        )
        for spec in signature.inputs
        if not spec.optional
    }


def noise(signature: Signature) -> dict[str, Array]:
    """Return inputs like `zeros`, of random numbers: hardly any earlier request was equal.

    Floats are 0 to 1. Whole numbers are 0 to 127, which every type and every vocabulary has.
    Raises TensorsRefused: an input has a type that NumPy lacks.
    """
    random = np.random.default_rng()
    found: dict[str, Array] = {}
    for name, array in zeros(signature).items():
        if array.dtype.kind == "f":
            found[name] = random.random(array.shape).astype(array.dtype)
        else:
            kind = np.bytes_ if array.dtype == np.object_ else array.dtype
            most = 2 if array.dtype == np.bool_ else 128
            found[name] = random.integers(0, most, array.shape).astype(kind).astype(array.dtype)
    return found


def describe_tensors(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs))
