from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.models import tfjs_files
from weights.converters import tfjs
from weights.errors import WeightsError

WEIGHTS = {
    "first": np.array([[1.5, -2.0], [0.25, 3.0]], np.float32),
    "second": np.array([7, -8, 9], np.int32),
    "scalar": np.array(0.5, np.float32),
}


def test_reads_weights_across_shards_which_hold_nothing_else(tmp_path: Path) -> None:
    folder = tfjs_files.write(tmp_path, {"a": 1}, WEIGHTS)
    stored, weights = tfjs.read(folder)
    assert stored["modelTopology"] == {"a": 1}
    assert list(weights) == list(WEIGHTS)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], array, strict=True)
    (folder / "b.bin").write_bytes((folder / "b.bin").read_bytes() + b"more")
    with pytest.raises(WeightsError, match="4 bytes that are no weight"):
        tfjs.read(folder)
