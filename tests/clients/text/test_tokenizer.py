"""A folder is read as `AutoTokenizer` reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from clients.text.tokenizer import load_tokenizer
from tests.clients.conftest import auto_tokenizer
from tests.conftest import PROJECT

pytestmark = pytest.mark.usefixtures("in_this_process")

FOLDER = PROJECT / "model_repository" / "bert_base" / "tokenizer"
SPECIAL = {"normalized": False, "special": True}
TEXTS = [
    "The world has [MASK] people.",
    "the World has <mask> <ent>people",
    "[MASK][MASK] [SEP] x [PAD]",
    "naïve café ÄÖÜ ß 中文字 日本 \u200b tab\t line\n end",
    "🙂 emoji ’quotes“ don't U.S.A. 3.14 a_b-c",
    " ",
]


# Folders


def config(folder: Path, **fields: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


BERT = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
WORDS = ["the", "The", "world", "World", "has", "people", ".", "##s", "cafe", "café", *"中文字"]
BERT |= {word: place for place, word in enumerate(WORDS, len(BERT))}
BERT_CONFIG = {
    "tokenizer_class": "BertTokenizer",
    "model_max_length": 512,
    **{f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")},
}


def bert(
    folder: Path, fields: Mapping[str, Any] | None = BERT_CONFIG, **normalizer: Any
) -> Tokenizer:
    """BERT's, of some words; `normalizer` is for tokenizer.json, `fields` for the other file."""
    made = Tokenizer(models.WordPiece(BERT, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**normalizer)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(list(BERT)[:5])
    made.save(str(folder / "tokenizer.json"))
    if fields is not None:
        config(folder, **fields)
    return made


def bert_that_pads(folder: Path) -> None:
    made = bert(folder)
    made.enable_truncation(4)
    made.enable_padding(length=12, direction="left")
    made.save(str(folder / "tokenizer.json"))


def bert_of_words(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(BERT))
    config(folder, tokenizer_class="BertTokenizer", do_lower_case=False, model_max_length=512)


def bert_by_its_model(folder: Path) -> None:
    """As the hub has some: the mask is known to the class alone."""
    (folder / "vocab.txt").write_text("\n".join(BERT))
    (folder / "config.json").write_text('{"model_type": "bert"}')


ROBERTA_CONFIG = {
    "tokenizer_class": "RobertaTokenizer",
    "model_max_length": 512,
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
MERGES = [("Ġ", "n"), ("Ġn", "o"), ("Ġno", "w"), ("i", "n"), ("in", "g"), ("h", "e")]


def roberta(folder: Path, **fields: Any) -> None:
    """RoBERTa's, of bytes and some pairs."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [first + second for first, second in MERGES]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, **SPECIAL), *pieces[:4]])
    made.save(str(folder / "tokenizer.json"))
    config(folder, **ROBERTA_CONFIG, **fields)


def roberta_of_pairs(folder: Path) -> None:
    roberta(folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({**whole["model"]["vocab"], "<mask>": 266}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, MERGES)) + "\n")


def xlm_roberta(folder: Path, **fields: Any) -> None:
    """XLM-RoBERTa's, of some pieces as sentencepiece makes them."""
    pieces = ["▁My", "▁name", "▁is", "▁Jennifer", "▁sun", "flower", "s", ".", "▁", "▁A", "is"]
    scores = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    scores += [(piece, -2 - place / 10) for place, piece in enumerate(pieces)]
    made = Tokenizer(models.Unigram(scores, unk_id=3))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", None, [("<s>", 0), ("</s>", 2)]
    )
    mask = AddedToken("<mask>", lstrip=True, **SPECIAL)
    made.add_special_tokens([mask, "<s>", "</s>", "<pad>"])
    made.save(str(folder / "tokenizer.json"))
    config(folder, **{**ROBERTA_CONFIG, "tokenizer_class": "XLMRobertaTokenizer", **fields})


def sentencepiece_model(name: str, kind: str, **fields: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        lines = (PROJECT / "README.md").read_text().splitlines()
        with (folder / name).open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=file,
                model_type=kind,
                vocab_size=400,
                minloglevel=2,
            )
        config(folder, **fields)

    return make


def shipped(folder: Path) -> None:
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)


ADDED = {"content": "<ent>", "lstrip": False, "rstrip": False, "single_word": False, **SPECIAL}
MASK = {**ADDED, "__type": "AddedToken", "content": "[MASK]", "lstrip": True}
FOLDERS: dict[str, Callable[[Path], object]] = {
    "shipped": shipped,
    "bert": bert,
    "cased file, uncased configuration": lambda folder: bert(
        folder, {**BERT_CONFIG, "do_lower_case": True}, lowercase=False
    ),
    "uncased file, cased configuration": lambda folder: bert(
        folder, {**BERT_CONFIG, "do_lower_case": False}, lowercase=True
    ),
    "accents and Chinese": lambda folder: bert(
        folder, {**BERT_CONFIG, "strip_accents": False, "tokenize_chinese_chars": False}
    ),
    "added token": lambda folder: bert(
        folder, {**BERT_CONFIG, "added_tokens_decoder": {str(len(BERT)): ADDED}}
    ),
    "extra special tokens": lambda folder: bert(
        folder, {**BERT_CONFIG, "additional_special_tokens": ["<ent>"]}
    ),
    "special tokens as text": lambda folder: bert(
        folder, {**BERT_CONFIG, "split_special_tokens": True}
    ),
    "mask with its properties": lambda folder: bert(folder, {**BERT_CONFIG, "mask_token": MASK}),
    "saved padding and truncation": bert_that_pads,
    "padding on the left": lambda folder: bert(
        folder, {**BERT_CONFIG, "padding_side": "left", "pad_token_type_id": 3}
    ),
    "lone tokenizer.json": lambda folder: bert(folder, None),
    "no class": lambda folder: bert(folder, {"mask_token": "[MASK]"}),
    "vocab.txt": bert_of_words,
    "vocab.txt and config.json": bert_by_its_model,
    "roberta": roberta,
    "a blank before the first word": lambda folder: roberta(folder, add_prefix_space=True),
    "vocab.json and merges.txt": roberta_of_pairs,
    "xlm-roberta": xlm_roberta,
    "sentencepiece.bpe.model": sentencepiece_model(
        "sentencepiece.bpe.model", "unigram", tokenizer_class="XLMRobertaTokenizer"
    ),
    "spiece.model": sentencepiece_model("spiece.model", "unigram", tokenizer_class="T5Tokenizer"),
    "spiece.model, filled up on the left": sentencepiece_model(
        "spiece.model", "unigram", tokenizer_class="XLNetTokenizer"
    ),
    "tokenizer.model": sentencepiece_model(
        "tokenizer.model", "bpe", tokenizer_class="LlamaTokenizer"
    ),
}


@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
def test_it_is_what_transformers_makes_of_the_folder(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), auto_tokenizer().from_pretrained(tmp_path)
    assert (ours.mask, ours.padding) == (theirs.mask_token or "", theirs.pad_token_id)
    assert (ours.id(ours.mask) if ours.mask else None) == theirs.mask_token_id
    assert ours.longest == (theirs.model_max_length if theirs.model_max_length < 10**9 else 0)
    assert ours.from_left == (theirs.padding_side == "left")
    assert ours.type_padding == theirs.pad_token_type_id
    assert ours.backend.get_vocab_size() == len(theirs)
    for text in [*TEXTS, *(PROJECT / "README.md").read_text().splitlines()[:60]]:
        encoding, expected = ours.backend.encode(text), theirs(text, return_token_type_ids=True)
        assert encoding.ids == expected["input_ids"]
        assert encoding.attention_mask == expected["attention_mask"]
        assert encoding.type_ids == expected["token_type_ids"]
    for pair in pairwise(TEXTS):
        encoding, expected = ours.backend.encode(*pair), theirs(*pair, return_token_type_ids=True)
        assert encoding.ids == expected["input_ids"]
        assert encoding.type_ids == expected["token_type_ids"]


@pytest.mark.parametrize(
    ("text", "fields", "ids"),
    [
        ("The World", {"do_lower_case": True}, [2, 5, 7, 3]),  # whatever tokenizer.json says
        ("The World", {"do_lower_case": False}, [2, 6, 8, 3]),
        ("the <ent>", {"added_tokens_decoder": {"18": ADDED}}, [2, 5, 18, 3]),
    ],
)
def test_what_tokenizer_config_says_counts(
    tmp_path: Path, text: str, fields: dict[str, Any], ids: list[int]
) -> None:
    """By hand: the places in `BERT`."""
    bert(tmp_path, {**BERT_CONFIG, **fields}, lowercase=not fields.get("do_lower_case", True))
    assert load_tokenizer(tmp_path).backend.encode(text).ids == ids


# Words in blanks


@pytest.mark.parametrize(
    ("make", "before", "piece", "after", "text"),
    [
        (xlm_roberta, "My name is ", "▁Jennifer", ".", "My name is Jennifer."),
        (xlm_roberta, "My name is", "▁Jennifer", ".", "My name is Jennifer."),
        (xlm_roberta, "A sun", "flower", ".", "A sunflower."),
        (xlm_roberta, "A sun ", "flower", ".", "A sunflower."),  # it does not see this blank
        (xlm_roberta, "", "▁Jennifer", " is", "Jennifer is"),
        (xlm_roberta, "", "flower", " is", "flower is"),
        (xlm_roberta, "A\n", "▁name", " is", "A\nname is"),
        (roberta, "The ", "Ġnow", " sat", "The now sat"),
        (roberta, "The", "Ġnow", " sat", "The now sat"),
        (roberta, "", "Ġnow", " sat", "now sat"),
        (roberta, "walk", "ing", " cats", "walking cats"),
        (roberta, "walk ", "ing", " cats", "walking cats"),
        (bert, "The ", "world", " has", "The world has"),
        (bert, "The", "world", " has", "The world has"),  # else it would be one word
        (bert, "(", "world", ")", "(world)"),
        (bert, "", "world", " has", "world has"),
        (bert, "world", "##s", " has", "worlds has"),
        (bert, "world ", "##s", " has", "worlds has"),
        (bert, "people", ".", "", "people."),
        (bert, "中", "文", "字", "中文字"),
    ],
)
def test_a_piece_is_put_into_the_blank_as_it_says(
    tmp_path: Path, make: Callable[[Path], object], before: str, piece: str, after: str, text: str
) -> None:
    make(tmp_path)
    made = load_tokenizer(tmp_path)
    token = made.id(piece)
    assert token is not None
    assert made.filled(before, token, after) == text


@pytest.mark.parametrize("make", [xlm_roberta, roberta])
def test_blanks_are_those_of_the_tokenizer_s_own_decoder(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """For each piece, against what `transformers` makes of all tokens of the sentence."""
    make(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), auto_tokenizer().from_pretrained(tmp_path)
    (*before, mask, _) = theirs("My name is <mask>")["input_ids"]
    assert mask == theirs.mask_token_id
    for token in set(range(len(theirs))) - set(theirs.all_special_ids):
        expected = theirs.decode([*before[1:], token])
        assert ours.filled("My name is", token, "") == expected
        if expected[len("My name is") :].strip():  # not a blank and nothing else
            assert ours.filled("My name is ", token, "") == expected
