"""`dispatcher tokenizer FILE… --to FOLDER`: make a tokenizer folder from bare vocabularies.

`transformers` reads a vocabulary with one of its classes. What that class leaves out when it has no
more than the bare file (a mask that takes the blank before it, how characters are normalised) is
added, so that a text has the same ids as with the class in Python of `transformers` 4.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clients.repository.files import text_of
from clients.text.tokenizer import ALONE, FILES, NotReadable, load_tokenizer
from tool.placing import beside, put
from tool.tokenizer.bare_files import CLASSES, Bare, bare, charsmap
from tool.tokenizer.options import Wanted, add_wanted, wanted
from tool.trouble import Trouble

CONFIG = "tokenizer_config.json"
WHOLE = "tokenizer.json"
MODEL = "config.json"
UNBOUNDED = 10**9
SAMPLE = "The world has many people."
SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
EXPECTED = (
    "expected a folder that has one, or tokenizer.json, vocab.txt, vocab.json with merges.txt, or "
    "a model of sentencepiece (*.model)"
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
    sys.stdout.write(f"{make(options.files, options.to, wanted(options))}\n")
    return 0


def make(given: Sequence[Path], to: Path, says: Wanted) -> str:
    """Write a tokenizer folder; return a line about it.

    Raises:
        Trouble: the files are none of a tokenizer, do not show how they are read, or cannot be
            served; or something is there already.

    """
    if to.exists():
        raise Trouble(f"{to} is there already; choose another folder")
    files = found(given)
    with beside(to.parent) as place:
        folder = place / to.name
        folder.mkdir()
        about = completed(files, folder, says) if WHOLE in files else built(files, folder, says)
        try:
            made = load_tokenizer(folder)
        except (NotReadable, OSError) as error:
            raise Trouble(f"the tokenizer of {given[0]} cannot be served: {error}") from error
        put(place, to.parent, [Path(to.name)])
    tokens = " ".join(made.backend.encode(SAMPLE).tokens)
    longest = f"at most {made.longest}" if made.longest else "no limit (--max-tokens sets one)"
    return f"wrote {to}: {about}, {made.size} tokens, {longest} in a text; {SAMPLE!r} is {tokens}"


def found(given: Sequence[Path]) -> dict[str, Path]:
    """Return the files of a tokenizer by the names that transformers gives them.

    Raises:
        Trouble: there is no such file, or it is none of a tokenizer.

    """
    files: dict[str, Path] = {}
    for path in given:
        if not path.exists():
            raise Trouble(f"there is no {str(path)!r}; {EXPECTED}")
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        known = {
            name: one
            for one in inside
            # In a folder another name may be that of another model's file.
            if one.is_file() and (name := called(one)) and (one is path or name == one.name)
        }
        if not known:
            raise Trouble(f"{str(path)!r} is no file of a tokenizer; {EXPECTED}")
        files |= known
    if not files.keys() - {CONFIG, MODEL, *FILES[2:]}:
        raise Trouble(f"{given[0]} has no vocabulary; {EXPECTED}")
    for name, other in (("merges.txt", "vocab.json"), ("vocab.json", "merges.txt")):
        if name in files and other not in files:
            neighbour = files[name].with_name(other)
            if not neighbour.is_file():
                raise Trouble(f"{files[name]} needs {other}; name both")
            files[other] = neighbour
    # `.` and `..` have no name; a link to a file is not followed, such as into a cache's store.
    place = given[0] if given[0].name not in {"", ".."} else given[0].resolve()
    neighbour = place.parent / MODEL
    return files if MODEL in files or not neighbour.is_file() else {**files, MODEL: neighbour}


def called(path: Path) -> str:
    """Return the usual name of a tokenizer's file; empty for any other file."""
    if path.name in {*FILES, MODEL}:
        return path.name
    if path.suffix == ".model":
        return path.name
    for end in ("vocab.txt", "merges.txt", "vocab.json"):  # such as roberta-base-merges.txt
        if path.name.endswith(end):
            return end
    return ""


def completed(files: Mapping[str, Path], folder: Path, says: Wanted) -> str:
    """Copy a tokenizer.json and what belongs to it; name its mask and its longest text."""
    for name in (*FILES, MODEL):
        if name in files and name != MODEL:
            shutil.copyfile(files[name], folder / name)
    config = dictionary(files.get(CONFIG))
    content = dictionary(files[WHOLE])
    added = content.get("added_tokens") or []
    masks = [one["content"] for one in added if "mask" in str(one.get("content", "")).lower()]
    if not config.get("mask_token") and len(masks) == 1 and "special_tokens_map.json" not in files:
        config["mask_token"] = masks[0]
    if longest := says.longest or longest_of(config, dictionary(files.get(MODEL))):
        config["model_max_length"] = longest
    if config:
        write(folder / CONFIG, config)
    return f"from {WHOLE}"


def built(files: Mapping[str, Path], folder: Path, says: Wanted) -> str:
    """Build tokenizer.json from bare files; return how they were read."""
    config, model = dictionary(files.get(CONFIG)), dictionary(files.get(MODEL))
    named = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if isinstance(config.get("do_lower_case"), bool) and says.lowercase is None:
        says = replace(says, lowercase=config["do_lower_case"])
    read = bare(files, says.kind or (named if named in CLASSES else ""), says.lowercase, model)
    longest = says.longest or longest_of(config, model) or CLASSES[read.kind].longest
    fields = {**config, **read.fields, "tokenizer_class": read.kind, "model_max_length": longest}
    whole = transformers_of(read, fields)
    backend = with_what_is_left_out(read, whole)
    (folder / WHOLE).write_text(backend.to_str(pretty=True), encoding="utf-8")
    special = {f"{one}_token": getattr(whole, f"{one}_token", None) for one in SPECIAL}
    write(
        folder / CONFIG,
        {
            # Not the class itself: it would build another tokenizer from the vocabulary.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": longest,
            "padding_side": whole.padding_side,
            "pad_token_type_id": whole.pad_token_type_id,
            "clean_up_tokenization_spaces": False,
            **{name: str(token) for name, token in special.items() if token},
        },
    )
    return f"read as {read.kind} ({read.why})"


def transformers_of(read: Bare, fields: Mapping[str, Any]) -> Any:
    """Return the tokenizer that transformers makes of bare files."""
    os.environ |= ALONE
    from transformers import AutoTokenizer  # noqa: PLC0415  it takes a second

    with tempfile.TemporaryDirectory(prefix="dispatcher-tokenizer-") as place:
        for name, path in read.files.items():
            shutil.copyfile(path, Path(place) / name)
        write(Path(place) / CONFIG, fields)
        try:
            return AutoTokenizer.from_pretrained(
                place, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # a damaged file raises many kinds
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise Trouble(
                f"{', '.join(map(str, read.files.values()))} cannot be read as {read.kind}: "
                f"{reason:.200}; fetch the files again, or name another --tokenizer-class"
            ) from error


def with_what_is_left_out(read: Bare, whole: Any) -> Any:
    """Return the tokenizer of the library `tokenizers`, as the class in Python reads texts."""
    from tokenizers import AddedToken, Tokenizer, normalizers  # noqa: PLC0415  as above

    kind = CLASSES[read.kind]
    if kind.mask_takes_blank and whole.mask_token:
        mask = AddedToken(whole.mask_token, lstrip=True, special=True, normalized=False)
        whole.add_special_tokens({"mask_token": mask})
    backend = Tokenizer.from_str(whole.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    first: list[Any] = []
    if kind.normalised_first and (table := charsmap(read)):
        first.append(normalizers.Precompiled(table))
    if read.kind == "BertTokenizer":
        first.append(normalizers.NFC())
    if first:
        backend.normalizer = normalizers.Sequence([*first, backend.normalizer])
    return backend


def longest_of(config: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    """Return the most tokens of a text that the files state; 0 where none does."""
    for value in (config.get("model_max_length"), positions(model)):
        if isinstance(value, int | float) and 1 <= value < UNBOUNDED:
            return int(value)
    return 0


def positions(model: Mapping[str, Any]) -> int:
    """Return how many places a model knows; RoBERTa's kind counts two that are no tokens."""
    value = model.get("max_position_embeddings")
    if not isinstance(value, int):
        return 0
    kinds = ("roberta", "camembert", "mpnet", "bart")
    return value - 2 * any(kind in str(model.get("model_type", "")) for kind in kinds)


def dictionary(path: Path | None) -> dict[str, Any]:
    """Return the content of a JSON file; empty where there is none.

    Raises:
        Trouble: it is no JSON object.

    """
    if path is None:
        return {}
    try:
        content = json.loads(text_of(path))
    except (OSError, ValueError) as error:
        raise Trouble(f"{path} cannot be read: {error}; mend it, or fetch it again") from error
    if not isinstance(content, dict):
        raise Trouble(f"{path} is no JSON object; fetch it again")
    return content


def write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(f"{json.dumps(content, indent=2, ensure_ascii=False)}\n", encoding="utf-8")
