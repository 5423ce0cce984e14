"""How a bare vocabulary is read: which class of `transformers` its own content shows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients.repository.files import text_of
from tool.trouble import Trouble

NO_PACKAGE = "needs the package sentencepiece, which is missing here: pip install sentencepiece"


@dataclass(frozen=True)
class Kind:
    """A class of transformers that reads bare files.

    Args:
        files: what they are; "*.model" is one of sentencepiece.
        name: how its file is called there.
        mask_takes_blank: whether a blank before the mask is part of it.
        normalised_first: whether the table of the sentencepiece model comes before the rest.
        longest: the usual most tokens of a text.

    """

    files: tuple[str, ...]
    name: str = ""
    mask_takes_blank: bool = False
    normalised_first: bool = False
    longest: int = 512


WORDS, PAIRS, PIECES = ("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",)
CLASSES: Mapping[str, Kind] = {
    "BertTokenizer": Kind(WORDS),
    "MPNetTokenizer": Kind(WORDS, mask_takes_blank=True),
    "RobertaTokenizer": Kind(PAIRS, mask_takes_blank=True),
    "DebertaTokenizer": Kind(PAIRS, mask_takes_blank=True),
    "GPT2Tokenizer": Kind(PAIRS, longest=1024),
    "XLMRobertaTokenizer": Kind(PIECES, "sentencepiece.bpe.model", mask_takes_blank=True),
    "CamembertTokenizer": Kind(PIECES, "sentencepiece.bpe.model", mask_takes_blank=True),
    "T5Tokenizer": Kind(PIECES, "spiece.model"),
    "AlbertTokenizer": Kind(PIECES, "spiece.model", mask_takes_blank=True),
    "XLNetTokenizer": Kind(PIECES, "spiece.model", mask_takes_blank=True),
    "DebertaV2Tokenizer": Kind(PIECES, "spm.model", normalised_first=True),
}
BY_MODEL = {  # `model_type` of config.json
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert"), "BertTokenizer"),
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("roberta", "bart", "longformer"), "RobertaTokenizer"),
    "deberta": "DebertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "t5": "T5Tokenizer",
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}


@dataclass(frozen=True)
class Bare:
    """Bare files, and how they are read.

    Args:
        files: by the names that the class looks for.
        kind: the class of transformers.
        why: what shows it.
        fields: for tokenizer_config.json.

    """

    files: Mapping[str, Path]
    kind: str
    why: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def bare(
    files: Mapping[str, Path], kind: str, lowercase: bool | None, model: Mapping[str, Any]
) -> Bare:
    """Return how bare files are read.

    Args:
        files: by their usual names.
        kind: the class that the author names; empty where the files are to show it.
        lowercase: as `Wanted` has it.
        model: the content of config.json.

    Raises:
        Trouble: they do not show it, or the class named reads other files.

    """
    group: tuple[str, ...]
    models = [name for name in files if name.endswith(".model")]
    if "vocab.txt" in files:
        group, own = WORDS, {"vocab.txt": files["vocab.txt"]}
    elif "vocab.json" in files:
        group, own = PAIRS, {name: files[name] for name in PAIRS}
    elif len(models) == 1:
        group, own = PIECES, {models[0]: files[models[0]]}
    else:
        raise Trouble(f"there are several models: {', '.join(sorted(models))}; name one of them")
    why = "as you say"
    if not kind and (named := model.get("model_type")):
        kind, why = of_model(str(named)), "as `model_type` of config.json says"
    first = next(iter(own.values()))
    tokens = read_tokens(group, first)
    if not kind:
        kind, why = shown_by(group, tokens, first)
    if CLASSES[kind].files != group:
        raise Trouble(
            f"{first} is no file of {kind}, which reads {' and '.join(CLASSES[kind].files)}"
        )
    if group == PIECES:
        return Bare({CLASSES[kind].name: first}, kind, why)
    if kind != "BertTokenizer":
        return Bare(own, kind, why)
    if lowercase is None:
        capital = next((one for one in tokens if one != one.lower() and one[0] != "["), "")
        lowercase = not capital
        why += (
            f"; {f'it has `{capital}`' if capital else 'no word'} with capital letters, so texts "
        )
        why += "are written small first" if lowercase else "keep theirs"
    return Bare(own, kind, why, {"do_lower_case": lowercase})


def of_model(name: str) -> str:
    """Return the class that reads the vocabulary of a kind of model.

    Raises:
        Trouble: none here does.

    """
    if name not in BY_MODEL:
        raise Trouble(
            f"`model_type` of config.json is {name!r}, whose bare files are not read here; if they "
            f"are those of another model, name it, --tokenizer-class: {', '.join(CLASSES)}"
        )
    return BY_MODEL[name]


def read_tokens(group: tuple[str, ...], file: Path) -> list[str]:
    """Return the tokens of a vocabulary, by their ids.

    Raises:
        Trouble: it cannot be read.

    """
    try:
        if group == WORDS:
            return [line for line in text_of(file).split("\n") if line]
        if group == PAIRS:
            table = json.loads(text_of(file))
            return sorted(table, key=table.__getitem__)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise Trouble(f"{file} is no vocabulary: {error}; fetch it again") from error
    pieces = processor(file)
    return [pieces.id_to_piece(number) for number in range(pieces.get_piece_size())]


def processor(file: Path) -> Any:
    """Open a model of sentencepiece.

    Raises:
        Trouble: it is none, or the package is missing.

    """
    try:
        from sentencepiece import SentencePieceProcessor  # noqa: PLC0415  few tokenizers need it
    except ImportError as error:
        raise Trouble(f"{file} {NO_PACKAGE}") from error
    made = SentencePieceProcessor()
    try:
        made.load_from_serialized_proto(file.read_bytes())
    except Exception as error:  # the library's own
        raise Trouble(f"{file} is no model of sentencepiece; fetch it again") from error
    return made


def charsmap(read: Bare) -> bytes:
    """Return the table by which a model of sentencepiece normalises characters; may be empty."""
    from sentencepiece import sentencepiece_model_pb2  # noqa: PLC0415  as above

    (file,) = read.files.values()
    model = vars(sentencepiece_model_pb2)["ModelProto"].FromString(file.read_bytes())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def shown_by(group: tuple[str, ...], tokens: list[str], file: Path) -> tuple[str, str]:
    """Return the class that the tokens show, and the sign.

    Raises:
        Trouble: they show none.

    """
    has = set(tokens)
    signs: Mapping[tuple[str, ...], list[tuple[str, Collection[str]]]] = {
        WORDS: [
            ("BertTokenizer", ("[UNK]", "[CLS]", "[SEP]")),
            ("MPNetTokenizer", ("<s>", "</s>", "[UNK]", "<mask>")),
        ],
        PAIRS: [
            ("RobertaTokenizer", ("<s>", "</s>", "<mask>")),
            ("DebertaTokenizer", ("[CLS]", "[SEP]", "[MASK]")),
            ("GPT2Tokenizer", ("<|endoftext|>",)),
        ],
        PIECES: [
            ("AlbertTokenizer", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
            ("DebertaV2Tokenizer", ("[PAD]", "[CLS]", "[SEP]", "[UNK]")),
            ("XLNetTokenizer", ("<cls>", "<sep>", "<eop>")),
        ],
    }
    for kind, sign in signs[group]:
        if has.issuperset(sign) and not any(one.endswith("</w>") for one in tokens):
            return kind, f"it has {', '.join(sign)}"
    if group == PIECES and tokens[:3] == ["<pad>", "</s>", "<unk>"]:
        return "T5Tokenizer", "it begins with <pad>, </s>, <unk>"
    if group == PIECES and tokens[:3] == ["<unk>", "<s>", "</s>"] and len(tokens) > 200_000:
        return (
            "XLMRobertaTokenizer",
            f"it begins with <unk>, <s>, </s> and has {len(tokens)} pieces",
        )
    fitting = ", ".join(kind for kind, one in CLASSES.items() if one.files == group)
    raise Trouble(
        f"{file} does not show how it is read (it begins with {', '.join(tokens[:5])}); name the "
        f"class of the model's tokenizer, --tokenizer-class: {fitting}"
    )
