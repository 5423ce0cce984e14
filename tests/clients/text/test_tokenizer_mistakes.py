"""Tokenizers that cannot be read, and which are kept in memory."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
from tokenizers import Tokenizer, models

from clients.text import tokenizer
from clients.text.tokenizer import TokenizerNotReadable, load_tokenizer
from tests.clients.conftest import auto_tokenizer
from tests.clients.text.test_tokenizer import BERT, BERT_CONFIG, bert, bert_of_words, config
from tests.conftest import PROJECT


def vocabulary_alone(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(BERT))


def python_code(folder: Path) -> None:
    vocabulary_alone(folder)
    config(folder, tokenizer_class="BertJapaneseTokenizer")


def code_of_its_own(folder: Path) -> None:
    fields = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
    bert(folder, {**BERT_CONFIG, **fields})
    (folder / "mine.py").write_text("raise SystemExit('it was run')")


def no_model(folder: Path) -> None:
    (folder / "sentencepiece.bpe.model").write_bytes(b"\x00\x01")
    config(folder, tokenizer_class="XLMRobertaTokenizer")


def no_words(folder: Path) -> None:
    """As `AutoTokenizer` reads it, every word is unknown."""
    config(folder, tokenizer_class="BertTokenizer")


def no_unknown(folder: Path) -> None:
    Tokenizer(models.WordPiece({"the": 0}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, ["has no tokenizer.json", 'save_pretrained("tokenizer")']),
        (vocabulary_alone, ["has no tokenizer.json", "save_pretrained"]),
        (python_code, ["takes Python code (`BertJapaneseTokenizer`", "write a class"]),
        (
            code_of_its_own,
            ["code of its own (`auto_map`), which is not run", "leave `auto_map` out"],
        ),
        (no_model, ["has no tokenizer.json", "save_pretrained"]),
        (no_unknown, ["cannot be loaded", "Missing [UNK] token"]),
        (no_words, ["special tokens alone", "file with its words is missing", "save_pretrained"]),
    ],
)
def test_what_cannot_be_read_is_named_with_the_way_out(
    in_this_process: None, tmp_path: Path, make: Callable[[Path], object], words: list[str]
) -> None:
    make(tmp_path)
    with pytest.raises(TokenizerNotReadable) as caught:
        load_tokenizer(tmp_path)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.slow
def test_following_the_hints_helps(tmp_path: Path) -> None:
    expected = [2, 5, 7, 3]
    code_of_its_own(tmp_path)
    config(tmp_path, **BERT_CONFIG, tokenizer_class_of_old="Mine")  # without `auto_map`
    assert load_tokenizer(tmp_path).backend.encode("the world").ids == expected
    (tmp_path / "saved").mkdir()
    bert_of_words(tmp_path / "saved")
    auto_tokenizer().from_pretrained(tmp_path / "saved").save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").is_file()
    assert load_tokenizer(tmp_path / "again").backend.encode("the world").ids == expected


def test_what_two_threads_write_is_apart_and_nothing_is_left_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Path] = []

    def refuse(part: Path, _: Path) -> None:
        parts.append(part)
        raise OSError("the disk is full")

    monkeypatch.setattr(tokenizer, "read", lambda _: {"backend": "{}"})
    monkeypatch.setattr(Path, "rename", refuse)
    for _ in range(2):
        kept = tmp_path / "kept" / "a.json"
        assert tokenizer.fields_from(tmp_path, kept) == {"backend": "{}"}
    assert len({*parts}) == 2
    assert not [*kept.parent.iterdir()]


def test_another_start_needs_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, kept = tmp_path / "words", tmp_path / "kept"
    words.mkdir()
    bert_of_words(words)
    monkeypatch.setattr(tokenizer, "KEPT", kept)

    def ids(python: str = sys.executable) -> list[int]:
        monkeypatch.setattr(sys, "executable", python)  # what the process is started with
        monkeypatch.setattr(tokenizer, "in_use", {})
        return list(load_tokenizer(words).backend.encode("the world").ids)

    no_process = shutil.which("false") or ""
    python, first = sys.executable, ids()
    assert ids(no_process) == first
    (file,) = kept.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644
    file.write_text('{"backend": ')  # damaged: it is made again
    assert ids(python) == ids(no_process) == first
    bert(words, {**BERT_CONFIG, "do_lower_case": False})
    with pytest.raises(
        TokenizerNotReadable, match=r"not read by the process for it .*exit status 1"
    ):
        ids(no_process)  # other files have another


def test_models_with_the_same_tokenizer_share_it_while_one_is_there(
    in_this_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "in_use", WeakValueDictionary())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        bert(tmp_path / name)
    one = load_tokenizer(tmp_path / "a")
    assert load_tokenizer(tmp_path / "b") is one
    bert(tmp_path / "b", {**BERT_CONFIG, "do_lower_case": False})
    assert load_tokenizer(tmp_path / "b").backend.encode("World").ids == [2, 8, 3]
    del one
    gc.collect()
    assert not tokenizer.in_use


def test_no_transformers_in_a_web_worker() -> None:
    """45 MB less in each."""
    code = (
        "import sys; from pathlib import Path; from clients.base import Environment\n"
        "from clients.plugins.registry import load_clients\n"
        "from tests.support.fake_triton import FakeTriton\n"
        "found = load_clients(Environment(FakeTriton(), Path('model_repository')))\n"
        "assert len(found.clients) == 3 and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
