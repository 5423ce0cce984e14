"""Read a TensorFlow.js model folder: `model.json` and its binary shards.

The format is TensorFlow.js' own: `modelTopology` holds a Keras configuration (`layers-model`) or
a TensorFlow GraphDef (`graph-model`) as JSON; each group of `weightsManifest` holds the shards'
names and the name, shape and dtype of every weight, in the order in which their little-endian
bytes follow one another in the joined shards (tfjs-core, `io/types.ts` and `io/io_utils.ts`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weights.errors import ConversionError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Weights = dict[str, "NDArray[Any]"]

DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4")}


@dataclass(frozen=True)
class TfjsModel:
    """One model as it is stored: nothing is interpreted yet.

    `topology` and `signature` are the JSON objects of those names. `weights` maps a weight's name
    to a read-only array in the file's own layout (images are NHWC, kernels height × width × in ×
    out).
    """

    topology: dict[str, Any]
    signature: dict[str, Any]
    weights: Weights


def read(folder: Path, kind: str) -> TfjsModel:
    """Read the model in `folder`, which has to be of format `kind`.

    `kind` is `layers-model` or `graph-model`. Raises ConversionError naming the file or weight
    that is missing, of another format, quantised, or of a dtype other than float32 and int32.
    """
    try:
        stored = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConversionError(f"model.json cannot be read: {error}") from error
    if stored.get("format") != kind:
        raise ConversionError(f"model.json is of format {stored.get('format')!r}, not {kind!r}")
    weights: Weights = {}
    for group in stored["weightsManifest"]:
        weights.update(_group(folder, group))
    return TfjsModel(stored["modelTopology"], stored.get("signature", {}), weights)


def _group(folder: Path, group: dict[str, Any]) -> Weights:
    try:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
    except OSError as error:
        raise ConversionError(f"a weight shard cannot be read: {error}") from error
    weights: Weights = {}
    offset = 0
    for entry in group["weights"]:
        name, shape = entry["name"], tuple(entry["shape"])
        if "quantization" in entry:
            raise ConversionError(f"weight {name!r} is quantised, which is not mapped")
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ConversionError(f"weight {name!r} has dtype {entry['dtype']!r}, not mapped")
        count = math.prod(shape)
        if offset + count * dtype.itemsize > len(data):
            raise ConversionError(f"the shards end before weight {name!r} does")
        weights[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += count * dtype.itemsize
    if offset != len(data):
        raise ConversionError(f"the shards hold {len(data) - offset} bytes that no weight names")
    return weights
