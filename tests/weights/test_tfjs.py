from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.models import tfjs_files
from weights.converters import tfjs
from weights.errors import ConversionError

WEIGHTS = {
    "first": np.array([[1.5, -2.0], [0.25, 3.0]], np.float32),
    "second": np.array([7, -8, 9], np.int32),
    "scalar": np.array(0.5, np.float32),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tfjs_files.write(tmp_path, "layers-model", {"a": 1}, WEIGHTS)


def change(folder: Path, **fields: Any) -> None:
    stored = json.loads((folder / "model.json").read_text())
    stored["weightsManifest"][0]["weights"][1].update(fields)
    (folder / "model.json").write_text(json.dumps(stored))


def test_reads_weights_across_shards(folder: Path) -> None:
    model = tfjs.read(folder, "layers-model")
    assert model.topology == {"a": 1}
    assert list(model.weights) == list(WEIGHTS)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(model.weights[name], array, strict=True)


def test_refuses_another_format(folder: Path) -> None:
    with pytest.raises(ConversionError, match="format 'layers-model', not 'graph-model'"):
        tfjs.read(folder, "graph-model")


def test_refuses_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"model\.json cannot be read"):
        tfjs.read(tmp_path, "layers-model")


def test_refuses_a_missing_shard(folder: Path) -> None:
    (folder / "b.bin").unlink()
    with pytest.raises(ConversionError, match=r"b\.bin"):
        tfjs.read(folder, "layers-model")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "bool"}, "'second' has dtype 'bool'"),
        ({"quantization": {"dtype": "uint8"}}, "'second' is quantised"),
        ({"shape": [300]}, "end before weight 'second' does"),
        ({"shape": [2]}, "4 bytes that no weight names"),
    ],
)
def test_names_the_weight_that_it_cannot_read(
    folder: Path, fields: dict[str, Any], message: str
) -> None:
    change(folder, **fields)
    with pytest.raises(ConversionError, match=message):
        tfjs.read(folder, "layers-model")
