from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weights.converters import tfjs
from weights.errors import WeightsError

WEIGHTS = {
    "first": np.array([[1.5, -2.0], [0.25, 3.0]], np.float32),
    "second": np.array([7, -8, 9], np.int32),
    "scalar": np.array(0.5, np.float32),
}


def test_reads_weights_across_shards_which_hold_nothing_else(tmp_path: Path) -> None:
    """As the TensorFlow.js converter lays them out: a shard may end in the middle of a weight."""
    data = b"".join(array.tobytes() for array in WEIGHTS.values())
    (tmp_path / "a.bin").write_bytes(data[:17])
    (tmp_path / "b.bin").write_bytes(data[17:])
    entries = [
        {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in WEIGHTS.items()
    ]
    groups = [{"paths": ["a.bin", "b.bin"], "weights": entries}]
    model = {"modelTopology": {"a": 1}, "weightsManifest": groups}
    (tmp_path / "model.json").write_text(json.dumps(model))
    stored, weights = tfjs.read(tmp_path)
    assert stored["modelTopology"] == {"a": 1}
    assert list(weights) == list(WEIGHTS)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], array, strict=True)
    (tmp_path / "b.bin").write_bytes(data[17:] + b"more")
    with pytest.raises(WeightsError, match="4 bytes that are no weight"):
        tfjs.read(tmp_path)
