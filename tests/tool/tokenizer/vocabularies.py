"""Bare files of tokenizers, of some words, as their authors publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece

TEXTS = [
    "The world has many people.",
    "the [MASK] has <mask> People <mask>",
    "naïve café ÄÖÜ ß 中文字 日本",
    "🙂 emoji ’quotes“ don't U.S.A. 3.14 a_b-c",
    " two  blanks, a\ttab and\nlines",
    "ﬁne ①②  ½ Ａｂ",
    "e\u0301 combining",
    "Привет мир",
    "x" * 40,
]

WORDS = ["the", "world", "has", "many", "people", ".", ",", "##s", "cafe", "caf", "##e", "a", "two"]
WORDS += ["na", "##ive", "##i", "##ve", "e", "##x", "x", "'", "t", "don", *"中文字"]
CASED = ["The", "World", "People", "U", "S", "A", "é", "café"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]"]
MERGES = ["Ġ t", "Ġt h", "Ġth e", "T h", "Th e", "p e", "o p", "l e", "pe op", "peop le", "Ġ peop"]
MERGES += ["h a", "Ġ ha", "m a", "Ġ ma", "Ã ©", "Ġ <"]


def alphabet() -> list[str]:
    """Return the characters that stand for bytes, as in GPT-2's `bytes_to_unicode`."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [number for number in range(256) if number not in shown]
    return [*map(chr, shown), *(chr(256 + place) for place in range(len(rest)))]


def words(folder: Path, special: list[str], *more: str) -> None:
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS, *more]) + "\n")


def pairs(folder: Path, special: list[str], *behind: str) -> None:
    tokens = [*special, *alphabet(), *(one.replace(" ", "") for one in MERGES), *behind]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")


BARE = {
    "BertTokenizer": lambda folder: words(folder, BERT),
    "BertTokenizer, cased": lambda folder: words(folder, BERT, *CASED),
    "MPNetTokenizer": lambda folder: words(folder, MPNET, "<mask>"),
    "RobertaTokenizer": lambda folder: pairs(folder, ["<s>", "<pad>", "</s>", "<unk>"], "<mask>"),
    "GPT2Tokenizer": lambda folder: pairs(folder, [], "<|endoftext|>"),
    "DebertaTokenizer": lambda folder: pairs(
        folder, ["[CLS]", "[PAD]", "[SEP]", "[UNK]"], "[MASK]"
    ),
}


def pieces(file: Path, **settings: Any) -> None:
    """Train a model of sentencepiece on this file."""
    lines = [*TEXTS, *Path(__file__).read_text().splitlines()]
    with file.open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=out,
            model_type="unigram",
            vocab_size=300,
            minloglevel=2,
            **settings,
        )
