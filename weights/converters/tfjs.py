"""Read a TensorFlow.js model folder: `model.json` and its binary shards.

The format is TensorFlow.js' own: `modelTopology` holds a Keras configuration or a TensorFlow
GraphDef as JSON; each group of `weightsManifest` holds the shards' names and the name, shape and
dtype of every weight, in the order in which their little-endian bytes follow one another in the
joined shards (tfjs-core, `io/types.ts` and `io/io_utils.ts`).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weights.errors import WeightsError

DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4")}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return `model.json`, and each weight by its name, in the file's own layout.

    Pictures are NHWC there, kernels height × width × in × out. Raises WeightsError where the
    shards do not hold what `model.json` says.
    """
    stored = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    weights = {}
    for group in stored["weightsManifest"]:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
        offset = 0
        for entry in group["weights"]:
            dtype, count = DTYPES[entry["dtype"]], math.prod(entry["shape"])
            array = np.frombuffer(data, dtype, count, offset)
            weights[entry["name"]] = array.reshape(entry["shape"])
            offset += array.nbytes
        if offset != len(data):
            raise WeightsError(f"the shards hold {len(data) - offset} bytes that are no weight")
    return stored, weights
