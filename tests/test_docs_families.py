"""The pages about families are what the families do, and a text model answers as its reference."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest

from clients.base import Environment
from clients.errors import ClientDisabled
from clients.families.base import family
from clients.families.base.dispatch_toml import Keys
from clients.families.base.picture_input import PictureKeys
from clients.plugins.registry import load_clients
from clients.request import Request
from clients.testing import OnnxModels, answer, clients_in
from clients.triton.server import Signature, TensorSpec
from tests.conftest import PROJECT, SHARED, needs_shared
from tests.support.fake_triton import FakeTriton

PAGE = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text() for name in ("adding-a-model", "families")
)
ROW = re.compile(r"^\| `\w+` \| (?:`.*?`|nothing|must be there) \| .* \|$", re.MULTILINE)
OTHERS = re.compile("keys of `([a-z-]+)`")
TASKS = "".join(page.read_text() for page in sorted(PROJECT.glob("docs/tasks/*.md")))
# A block whose first line is a comment with the path of the file that it is.
FILES = re.findall(r"(?ms)^```\w*\n# (\S+/\S+)\n(.*?)^```$", PAGE + TASKS)


@needs_shared
def test_sentences_lie_where_the_reference_says(tmp_path: Path) -> None:
    model = tmp_path / "minilm"
    for path, text in FILES:
        if path.startswith("minilm/"):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
    (model / "1").mkdir()
    shutil.copytree(SHARED / "minilm", model / "tokenizer")
    (model / "tokenizer" / "model.onnx").rename(model / "1" / "model.onnx")
    (client,), models = clients_in(model / "dispatch.toml"), OnnxModels(tmp_path)
    for case in json.loads((SHARED / "reference" / "minilm.json").read_text()):
        vector = answer(client, {"text": case["text"]}, models)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        expected = np.array(case["embedding"])
        assert np.dot(vector, expected) / np.linalg.norm(expected) > 0.999


def test_every_file_on_the_page_is_right(tmp_path: Path) -> None:
    """Each as it stands there, in a folder with labels and a tokenizer."""
    assert len(FILES) >= 8
    for place, (path, text) in enumerate(FILES):
        model = tmp_path / str(place) / Path(path).parent
        model.mkdir(parents=True)
        (model / Path(path).name).write_text(text)
        (model / "labels.txt").write_text("a\nentailment\n")
        (model / "tokenizer").symlink_to(PROJECT / "model_repository" / "bert_base" / "tokenizer")
        registry = load_clients(Environment(FakeTriton(), model.parent))
        assert registry.broken == {}, path
        assert path.endswith(".pbtxt") == (not registry.clients), path


def test_a_mistake_is_one_sentence_with_the_file_the_key_and_the_fix(tmp_path: Path) -> None:
    folder = tmp_path / "densenet_onnx"
    folder.mkdir()
    (folder / "dispatch.toml").write_text('family = "classification"\ncrop = 256\n')
    shutil.copy(PROJECT / "model_repository" / "resnet" / "labels.txt", folder)
    signature = Signature(
        0,
        (TensorSpec("data_0", "FP32", (1, 3, 224, 224)),),
        (TensorSpec("fc6_1", "FP32", (1, 1000, 1, 1)),),
    )
    environment = Environment(FakeTriton(signatures={"densenet_onnx": signature}), tmp_path)
    client = load_clients(environment).clients["densenet_onnx"]
    with pytest.raises(ClientDisabled) as caught, Request().active():
        client.inference(client.example)
    assert caught.value.message == (
        f"{folder}/dispatch.toml: `crop` is 256×256, but `data_0` takes 224×224 (height×width); "
        "write [224, 224], or leave it out"
    )


def rows_of(keys: type[Keys]) -> Iterator[str]:
    for one in fields(keys):
        default = f"`{json.dumps(one.default, default=str)}`"
        if one.default is MISSING or one.default in ((), None, ""):
            default = "must be there" if one.default is MISSING else "nothing"
        meaning, kind = one.metadata["meaning"], one.metadata["kind"]
        yield f"| `{one.name}` | {default} | {meaning} | {kind.expected} |"


def test_every_key_of_every_family_is_on_the_page() -> None:
    """Once; what a family shares with others is named where the family is."""
    rows = set(rows_of(Keys))
    for name in family.names():
        kind = family.family(name, Path()).keys_type
        rows |= {*rows_of(kind)}
        section = re.search(rf"(?ms)^## [^\n]*`{name}`.*?(?=^## |\Z)", PAGE)
        assert section or name == "tensors"
        text = section[0] if section else ""
        others = [family.family(one, Path()).keys_type for one in OTHERS.findall(text)]
        shared: list[type[Keys]] = [Keys, PictureKeys, *others]
        known = {one.name for keys in shared for one in fields(keys)}
        own = [one.name for one in fields(kind) if one.name not in known]
        assert [one for one in own if f"`{one}`" not in text] == [], name
    assert sorted(re.findall(ROW, PAGE)) == sorted(rows)
