from __future__ import annotations

import hashlib
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from weights.errors import WeightsError
from weights.install import RECORD
from weights.sources import NpmSource, ShippedSource, load

from .conftest import Bench

PROJECT = Path(__file__).resolve().parents[2]


def test_every_model_of_the_repository_has_weights() -> None:
    folders = {
        path.name
        for path in (PROJECT / "model_repository").iterdir()
        if (path / "labels.txt").is_file() or (path / "tokenizer").is_dir()
    }
    assert folders == set(load())


def test_the_shipped_model_is_the_one_in_the_manifest() -> None:
    shipped = load()["bert_base"]
    assert isinstance(shipped, ShippedSource)
    folder = PROJECT / "model_repository" / "bert_base"
    record = json.loads((folder / RECORD).read_text())
    assert (record["sha256"], record["origin"]) == (shipped.sha256, shipped.origin)
    digest = hashlib.sha256((folder / "1" / "model.onnx").read_bytes()).hexdigest()
    assert digest == shipped.sha256


def test_every_package_is_pinned_and_has_its_converter_and_its_licence() -> None:
    sources = load()
    packages = [source for source in sources.values() if isinstance(source, NpmSource)]
    assert packages
    for source in packages:
        assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)
        assert re.fullmatch(r"\d+\.\d+\.\d+", source.version)
        assert callable(import_module(f"weights.converters.{source.converter}").convert)
    yolov5 = sources["yolov5"]
    assert yolov5.licence == "AGPL-3.0"
    assert "AGPL-3.0" in yolov5.notice, "users can read it"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "shipped"', 'kind = "ftp"', "text: 'ftp'"),
        ('licence = "Apache-2.0"', "", "text: ShippedSource.__init__() missing"),
        ('weights = "Small', 'weigths = "Small', "argument 'weigths'"),
    ],
)
def test_a_mistake_is_named(bench: Bench, old: str, new: str, message: str) -> None:
    bench.change(old, new)
    with pytest.raises(WeightsError, match=re.escape(message)):
        load(bench.manifest)
