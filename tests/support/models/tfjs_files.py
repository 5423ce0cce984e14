"""Writes TensorFlow.js models for the tests, as the TensorFlow.js converter lays them out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[Any]]


def write(
    folder: Path,
    topology: dict[str, Any],
    weights: Weights,
    signature: dict[str, Any] | None = None,
) -> Path:
    """Write `model.json` and two shards that are cut in the middle of a weight."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in weights.values())
    cut = len(data) // 2 + 1
    (folder / "a.bin").write_bytes(data[:cut])
    (folder / "b.bin").write_bytes(data[cut:])
    entries = [
        {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in weights.items()
    ]
    stored = {
        "modelTopology": topology,
        "signature": signature or {},
        "weightsManifest": [{"paths": ["a.bin", "b.bin"], "weights": entries}],
    }
    (folder / "model.json").write_text(json.dumps(stored))
    return folder


def layer(kind: str, name: str, sources: list[str], **config: Any) -> dict[str, Any]:
    inbound = [[[source, 0, 0, {}] for source in sources]] if sources else []
    return {
        "class_name": kind,
        "name": name,
        "config": {"name": name, **config},
        "inbound_nodes": inbound,
    }


def node(op: str, name: str, *sources: str, **attributes: Any) -> dict[str, Any]:
    """Write a GraphDef node; attributes are strings, numbers, or lists of either."""
    return {
        "op": op,
        "name": name,
        "input": list(sources),
        "attr": {key: _attribute(value) for key, value in attributes.items()},
    }


def graph_signature(shape_in: list[int], shape_out: list[int]) -> dict[str, Any]:
    def tensor(name: str, shape: list[int]) -> dict[str, Any]:
        dims = [{"size": str(side)} for side in shape]
        return {"name": f"{name}:0", "tensorShape": {"dim": dims}}

    return {
        "inputs": {"input_1": tensor("input_1", shape_in)},
        "outputs": {"detect": tensor("Identity", shape_out)},
    }


def _attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        key = "s" if isinstance(value[0], str) else "i"
        return {"list": {key: [_attribute(item)[key] for item in value]}}
    if isinstance(value, str):
        return {"s": base64.b64encode(value.encode()).decode()}
    return {"i": str(value)}
