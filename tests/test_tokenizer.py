"""What is read without `transformers` is what `transformers` would have read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from clients.tokenizer import load_tokenizer
from tests.conftest import PROJECT

FOLDER = PROJECT / "model_repository" / "bert_base" / "tokenizer"
NEEDED = ("pad_token", "model_max_length", "mask_token")
TEXTS = [
    "The world has [MASK] people.",
    "[MASK][MASK] [SEP] x [PAD]",
    "naïve café ÄÖÜ ß 中文字 日本 \u200b tab\t line\n end",
    "🙂 emoji ’quotes“ don't U.S.A. 3.14 a_b-c",
    " ",
    *(PROJECT / "README.md").read_text().splitlines(),
]


def test_it_has_the_same_tokens() -> None:
    ours, theirs = load_tokenizer(FOLDER, NEEDED), AutoTokenizer.from_pretrained(FOLDER)
    assert (ours.mask, ours.id(ours.mask)) == (theirs.mask_token, theirs.mask_token_id)
    assert (ours.padding, ours.longest) == (theirs.pad_token_id, theirs.model_max_length)
    assert ours.size == len(theirs)
    assert [ours.decode(i) for i in range(ours.size)] == [
        theirs.decode([i]) for i in range(ours.size)
    ]
    for text in TEXTS:
        encoding, expected = ours.backend.encode(text), theirs(text)
        assert encoding.ids == expected["input_ids"]
        assert encoding.attention_mask == expected["attention_mask"]
        assert encoding.type_ids == expected["token_type_ids"]


@pytest.mark.parametrize("kept", [["vocab.txt"], ["tokenizer.json", "vocab.txt"]])
def test_what_a_folder_does_not_say_transformers_knows(tmp_path: Path, kept: list[str]) -> None:
    """As the hub has bert-base-uncased: the mask is known to the class alone."""
    for name in kept:
        shutil.copy(FOLDER / name, tmp_path)
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    ours, expected = load_tokenizer(tmp_path, NEEDED), load_tokenizer(FOLDER, NEEDED)
    assert (ours.mask, ours.padding, ours.longest) == ("[MASK]", 0, 512)
    assert ours.backend.encode(TEXTS[0]).ids == expected.backend.encode(TEXTS[0]).ids


def test_special_tokens_may_come_with_their_properties(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["mask_token"] = {"content": "[MASK]", "lstrip": True}
    path.write_text(json.dumps(config))
    assert load_tokenizer(tmp_path, NEEDED).mask == "[MASK]"


def test_the_three_models_need_no_transformers() -> None:
    """25 MB less in every web worker."""
    code = (
        "import sys; from pathlib import Path; from clients.base import Environment\n"
        "from clients.registry import load_clients; from tests.fake_triton import FakeTriton\n"
        "found = load_clients(Environment(FakeTriton(), Path('model_repository')))\n"
        "assert len(found.clients) == 3 and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True, timeout=60)
