"""`dispatcher tokenizer FILE… --to FOLDER`: let `transformers` make a tokenizer folder of files."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.model_files.files import text_of
from clients.text.tokenizer import (
    ALONE,
    TokenizerNotReadable,
    load_tokenizer,
    refusal,
    translate_errors,
)
from container.trouble import Trouble
from tool.placing import beside, put
from tool.tokenizer.options import Wanted, add_wanted, read_wanted

CONFIG, WHOLE, WORDS = "tokenizer_config.json", "tokenizer.json", "vocab.txt"
SPECIAL = "special_tokens_map.json"
DESCRIBING = (CONFIG, "config.json", SPECIAL, "added_tokens.json")
NAMES = (WHOLE, WORDS, "vocab.json", "merges.txt", *DESCRIBING)
SAMPLE = "The world has many people."
EXPECTED = (
    "expected a folder that has one, or tokenizer.json, vocab.txt, vocab.json with merges.txt, or "
    "a model of sentencepiece (*.model)"
)
NAME_IT = (
    "name the class of the model's tokenizer, --tokenizer-class, such as BertTokenizer for "
    "vocab.txt, RobertaTokenizer or GPT2Tokenizer for merges.txt, XLMRobertaTokenizer or "
    "T5Tokenizer for a *.model; or fetch the files again"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="vocab.txt; vocab.json and merges.txt; a model of sentencepiece (*.model); "
        "tokenizer.json; or a folder with them",
    )
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the new folder, such as MODEL/tokenizer",
    )
    add_wanted(parser)


def run(options: argparse.Namespace) -> int:
    """Write the folder; return the exit code."""
    sys.stdout.write(f"{make(options.files, options.to, read_wanted(options))}\n")
    return 0


def make(given: Sequence[Path], to: Path, says: Wanted) -> str:
    """Write a tokenizer folder; return a line about it."""
    if to.exists():
        raise Trouble(f"{to} is there already; choose another folder")
    files = find_files(given)
    with beside(to.parent) as place:
        folder, source = place / to.name, place / "source"
        source.mkdir()
        for path in files:
            shutil.copyfile(path, source / path.name)
        write_config(source, says)
        whole = read(source, given[0], says)
        whole.save_pretrained(folder)
        try:
            made = load_tokenizer(folder)
        except (TokenizerNotReadable, OSError) as error:
            raise Trouble(f"the tokenizer of {given[0]} cannot be served: {error}") from error
        put(place, to.parent, [Path(to.name)])
    tokens = " ".join(made.backend.encode(SAMPLE).tokens)
    longest = f"at most {made.longest}" if made.longest else "no limit (--max-tokens sets one)"
    return (
        f"wrote {to}: read as {type(whole).__name__}, {made.size} tokens, {longest} in a text; "
        f"{SAMPLE!r} is {tokens}"
    )


def find_files(given: Sequence[Path]) -> list[Path]:
    """Return the files of a tokenizer that are named, or are in a folder."""
    files = []
    for path in given:
        if not path.exists():
            raise Trouble(f"there is no {str(path)!r}; {EXPECTED}")
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        known = [one for one in inside if one.name in NAMES or one.suffix == ".model"]
        if not known:
            raise Trouble(f"{str(path)!r} is no file of a tokenizer; {EXPECTED}")
        files += known
    if all(one.name in DESCRIBING for one in files):
        raise Trouble(f"{given[0]} has no vocabulary; {EXPECTED}")
    return files


def write_config(folder: Path, says: Wanted) -> None:
    """Add to tokenizer_config.json what the author says, and what only other files say."""
    config = read_object(folder / CONFIG)
    if says.kind:
        config["tokenizer_class"] = says.kind
    if says.lowercase is not None:
        config["do_lower_case"] = says.lowercase
    elif (folder / WORDS).is_file() and not (folder / WHOLE).is_file():
        words = read_lines(folder / WORDS)
        config.setdefault(
            "do_lower_case", all(one == one.lower() or one[0] == "[" for one in words)
        )
    added = read_object(folder / WHOLE).get("added_tokens") or []
    masks = [one["content"] for one in added if "mask" in str(one.get("content", "")).lower()]
    if len(masks) == 1 and not (folder / SPECIAL).is_file():
        config.setdefault("mask_token", masks[0])
    if says.longest:
        config["model_max_length"] = says.longest
    if config:
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")


def read(folder: Path, given: Path, says: Wanted) -> Any:
    """Return the tokenizer that transformers makes of a folder's files."""
    os.environ |= ALONE
    import transformers

    models = list(folder.glob("*.model"))
    kind = getattr(transformers, says.kind, None)
    if len(models) == 1 and (name := getattr(kind, "vocab_files_names", {}).get("vocab_file")):
        models[0].rename(folder / name)

    def damaged(error: Exception) -> Trouble:
        reason = str(refusal(folder, error).what).replace(f"{folder}/", "")
        return Trouble(f"the tokenizer of {given}, {reason}, is not read; {NAME_IT}")

    with translate_errors(damaged):
        return transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )


def read_lines(path: Path) -> list[str]:
    try:
        return [line for line in text_of(path).split("\n") if line]
    except ValueError as error:
        raise Trouble(f"{path.name} is no vocabulary: {error}; fetch it again") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(text_of(path))
    except (OSError, ValueError) as error:
        raise Trouble(f"{path.name} cannot be read: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise Trouble(f"{path.name} is no JSON object; fetch it again")
    return content
