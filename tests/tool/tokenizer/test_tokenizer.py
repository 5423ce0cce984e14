"""A folder from bare files gives the ids that `AutoTokenizer` reads from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor

from clients.text.tokenizer import load_tokenizer
from tests.clients.conftest import auto_tokenizer, in_this_process
from tests.tool.tokenizer.vocabularies import BARE, TEXTS, pairs, pieces, words
from tool.__main__ import main

__all__ = ["in_this_process"]  # the fixture
pytestmark = pytest.mark.usefixtures("in_this_process")

Make = Callable[..., str]


@pytest.fixture
def make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Make:
    """Make the folder `made`; return what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(*given: str, code: int = 0) -> str:
        assert main(["tokenizer", *given, "--to", "made"]) == code
        printed = capsys.readouterr()
        if code:
            assert printed.err.count("\n") == 1, printed.err
            assert not list(tmp_path.glob("made/*")) + list(tmp_path.glob(".dispatcher-*"))
        return printed.err if code else printed.out

    return run


def ids(folder: str = "made") -> list[list[int]]:
    """Return the ids of the texts, as the server and as transformers read the folder."""
    ours, theirs = load_tokenizer(Path(folder)), auto_tokenizer().from_pretrained(folder)
    found = [ours.backend.encode(text).ids for text in TEXTS]
    assert found == [theirs(text)["input_ids"] for text in TEXTS]
    return found


@pytest.mark.parametrize("name", BARE)
def test_it_gives_the_ids_of_the_class(make: Make, tmp_path: Path, name: str) -> None:
    BARE[name](tmp_path)
    kind = name.partition(",")[0]
    words = "BertT" in name or "MPN" in name
    files = ["vocab.txt"] if words else ["vocab.json", "merges.txt"]
    if kind != "BertTokenizer":
        assert "name the class of the model's tokenizer, --tokenizer-class" in make(*files, code=2)
    assert f"read as {kind}" in make(*files, "--tokenizer-class", kind)
    config = {"tokenizer_class": kind, "do_lower_case": "cased" not in name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = auto_tokenizer().from_pretrained(tmp_path)
    assert ids() == [theirs(text)["input_ids"] for text in TEXTS]
    made = load_tokenizer(Path("made"))
    assert (made.mask, made.padding) == (theirs.mask_token or "", theirs.pad_token_id)


T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def test_a_model_of_sentencepiece_gives_its_own_pieces(make: Make, tmp_path: Path) -> None:
    """Against that library itself; behind them is the end that T5's authors have added."""
    pieces(tmp_path / "its.model", **T5)
    make("its.model", "--tokenizer-class", "T5Tokenizer")
    model, made = SentencePieceProcessor(model_file="its.model"), load_tokenizer(Path("made"))
    for text in [one for one in TEXTS if "MASK" not in one and "\n" not in one]:
        assert made.backend.encode(text).ids == [*model.encode(text), 1], text


# What is read, and what is refused


def test_config_json_says_what_files_are(make: Make, tmp_path: Path) -> None:
    pieces(tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "config.json").write_text('{"model_type": "camembert"}')
    assert "read as CamembertTokenizer" in make(".")


@pytest.mark.parametrize(("option", "ids"), [("--lowercase", [5]), ("--no-lowercase", [1])])
def test_the_author_may_say_how_letters_are_read(
    make: Make, tmp_path: Path, option: str, ids: list[int]
) -> None:
    """By hand: `the` is the sixth word, and `The` is none."""
    BARE["BertTokenizer"](tmp_path)
    make("vocab.txt", "--tokenizer-class", "BertTokenizer", option, "--max-tokens", "64")
    made = load_tokenizer(Path("made"))
    assert made.backend.encode("The").ids[1:-1] == ids
    assert made.longest == 64


def test_a_tokenizer_json_is_copied_and_its_mask_named(make: Make, tmp_path: Path) -> None:
    BARE["BertTokenizer"](tmp_path)
    make("vocab.txt", "--tokenizer-class", "BertTokenizer")
    Path("made").rename("first")
    make("first/tokenizer.json", "--max-tokens", "32")
    made = load_tokenizer(Path("made"))
    assert (made.mask, made.longest) == ("[MASK]", 32)
    assert ids("made") == ids("first")


def test_a_folder_with_its_configuration_is_read_as_that_says(make: Make, tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    BARE["BertTokenizer, cased"](tmp_path / "it")
    config = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}
    (tmp_path / "it" / "tokenizer_config.json").write_text(json.dumps(config))
    make("it")
    made = load_tokenizer(Path("made"))
    assert made.backend.encode("The").tokens == ["[CLS]", "the", "[SEP]"]


@pytest.mark.parametrize(
    ("prepare", "given", "words"),
    [
        (None, ["vocab.txt"], "there is no 'vocab.txt'"),
        (lambda at: (at / "a.bin").touch(), ["a.bin"], "'a.bin' is no file of a tokenizer"),
        (lambda at: (at / "a").mkdir(), ["a"], "'a' is no file of a tokenizer"),
        (lambda at: (at / "config.json").write_text("{}"), ["config.json"], "has no vocabulary"),
        (lambda at: words(at, ["<pad>"]), ["vocab.txt"], "name the class of the model's tokenizer"),
        (lambda at: (at / "vocab.txt").write_bytes(b"\xff"), ["vocab.txt"], "is no vocabulary"),
        (
            lambda at: (pairs(at, []), (at / "vocab.json").write_text("[1")),
            ["vocab.json", "merges.txt"],
            "is not read; name the class",
        ),
        (
            lambda at: (at / "x.model").write_bytes(b"\0\1"),
            ["x.model", "--tokenizer-class", "T5Tokenizer"],
            "and from its other files none can be made",
        ),
        (
            BARE["BertTokenizer"],
            ["vocab.txt", "--tokenizer-class", "T5Tokenizer"],
            "has special tokens alone, for the file with its words is missing",
        ),
        (
            lambda at: (
                BARE["BertTokenizer"](at),
                (at / "config.json").write_text('{"model_type": "x"}'),
            ),
            ["vocab.txt", "config.json"],
            "is not read; name the class",
        ),
        (
            lambda at: (at / "tokenizer.json").write_text("{"),
            ["tokenizer.json"],
            "tokenizer.json cannot be read",
        ),
        (
            lambda at: (at / "tokenizer.json").write_text("{}"),
            ["tokenizer.json"],
            "cannot be loaded",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    make: Make, tmp_path: Path, prepare: Any, given: list[str], words: str
) -> None:
    if prepare:
        prepare(tmp_path)
    assert words in make(*given, code=2)


def test_a_folder_is_not_overwritten(make: Make, tmp_path: Path) -> None:
    BARE["BertTokenizer"](tmp_path)
    (tmp_path / "made").mkdir()
    assert "made is there already" in make("vocab.txt", code=2)


def test_a_missing_package_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces(tmp_path / "its.model", **T5)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    said = make("its.model", "--tokenizer-class", "T5Tokenizer", code=2)
    assert "and from its other files none can be made" in said


def test_a_failure_leaves_no_folders_of_the_place(make: Make, tmp_path: Path) -> None:
    (tmp_path / "bad.model").write_bytes(b"no model")
    assert main(["tokenizer", "bad.model", "--to", "aa/bb/tok"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["bad.model"]
