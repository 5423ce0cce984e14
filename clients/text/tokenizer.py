"""Tokenizers, read from a folder as `AutoTokenizer` of `transformers` reads them.

The ids of a text depend on all files of the folder and on classes of `transformers`. These need 45
MB, so they read the folder in a process of its own, and return a tokenizer of the library
`tokenizers` as JSON to the web worker. That takes a second, so the JSON is kept in a file for other
starts, where the virtual environment can be written to.

    python -m clients.text.tokenizer FOLDER…    # makes these files, for a read-only image
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

from tokenizers import Tokenizer as Backend

UNBOUNDED = 10**9  # a tokenizer without a limit states a larger number
READING_S = 60  # mostly it takes one second

KEPT = Path(sys.prefix) / "tokenizers"

# Larger files in the folder are weights, not part of the tokenizer.
LARGEST_FILE = 2**27

# JSON files that `transformers` ignores, or does not name, when they are damaged.
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

# The process must not ask the Hugging Face hub, and should log errors alone.
ALONE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

SAVE_IT = (
    "put tokenizer.json and tokenizer_config.json there, as "
    '`AutoTokenizer.from_pretrained("the model\'s name").save_pretrained("tokenizer")` writes them'
)

AS_JSON = "--as-json"  # what the other process is called with

KEPT_WORDS = 2**14  # of a vocabulary, each after a certain character

# Texts for which `tokenizers` must give the same ids as `transformers`.
SAMPLES = ("The world has many people.", "naïve 中文字 \u200b don't 🙂", " 3.14  a_b-c\tend\n")


@dataclass(frozen=True)
class Tokenizer:
    """Turns texts into tokens."""

    # Of the library `tokenizers`; it neither pads nor truncates, because all threads would share
    # that setting
    backend: Any
    mask: str = ""  # the mask token; empty if there is none
    unknown: str = ""  # the token for what has none; empty if there is none
    first: str = ""  # the token before a text, as BERT's [CLS]; empty if there is none
    padding: int | None = None  # the id of the padding token; `None` if there is none
    type_padding: int = 0  # the padding value of `token_type_ids`
    from_left: bool = False  # whether texts are padded on the left
    longest: int = 0  # the most tokens of a text; 0 if the tokenizer states no limit

    def id(self, token: str) -> int | None:
        """Return a token's id; `None` if it is no token."""
        found: int | None = self.backend.token_to_id(token)
        return found

    def filled(self, before: str, token: int, after: str) -> str:
        """Return a text with a token in place of its mask.

        If the token shows whether it begins a word or continues one, blanks are set accordingly;
        blanks of the text are never doubled, and not changed where a word begins.
        """
        word, goes_on = self.words(before[-1:], token)
        if not word:
            return before + after
        if goes_on and self.is_blind_to_blanks:
            before = before.rstrip() or before
        elif not before or before[-1].isspace():
            word = word.removeprefix(" ")
        return before + word + after

    @cached_property
    def words(self) -> Callable[[str, int], tuple[str, bool]]:
        """`word`, with a cache: the same tokens come again and again."""
        return lru_cache(KEPT_WORDS)(self.word)

    def word(self, before: str, token: int) -> tuple[str, bool]:
        """Return a token as text, with its blank, and whether it continues a word.

        The text is empty if the model has more tokens than the tokenizer.
        """
        piece = self.backend.id_to_token(token)
        if not piece:
            return "", False
        word = self.decoded("a", piece)[1:]
        if not self.puts_blanks_between:
            return word, not word.startswith(" ")
        # BERT's tokens show only that they continue a word.
        goes_on, word = not word.startswith(" ") and word != piece, word.removeprefix(" ")
        if not goes_on and self.is_one_word(before + word):
            word = f" {word}"
        return word, goes_on

    def decoded(self, *pieces: str) -> str:
        decoder = self.backend.decoder
        return str(decoder.decode(list(pieces))) if decoder else " ".join(pieces)

    def is_one_word(self, text: str) -> bool:
        """Whether the pre-tokenizer keeps a text in one word."""
        if self.backend.normalizer:
            text = self.backend.normalizer.normalize_str(text)
        cut = self.backend.pre_tokenizer
        return cut is None or len(cut.pre_tokenize_str(text)) == 1

    @cached_property
    def edges(self) -> tuple[list[int], list[int]]:
        """The special tokens that stand before every text, and behind it."""
        encoding = self.backend.encode("a")
        own = [place for place, other in enumerate(encoding.special_tokens_mask) if not other]
        return (encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]) if own else ([], [])

    @cached_property
    def puts_blanks_between(self) -> bool:
        """Whether the decoder puts blanks between tokens that show none."""
        return self.decoded("a", "a") == "a a"

    @cached_property
    def is_blind_to_blanks(self) -> bool:
        """Whether a blank before the mask does not change the tokens."""
        alone, apart = (self.backend.encode(f"a{blank}{self.mask}").ids for blank in ("", " "))
        return bool(alone == apart)


class TokenizerNotReadable(Exception):
    """A tokenizer cannot be read; the message is what follows its name."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what, self.fix = what, fix


# Tokenizers in use, by a digest of their files: models with equal ones share one.
in_use: MutableMapping[str, Tokenizer] = WeakValueDictionary()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer in a folder.

    Raises:
        OSError: the folder, or a file in it, cannot be read.
        TokenizerNotReadable: `AutoTokenizer` cannot read it, or `tokenizers` would give other ids.

    """
    key = digest(folder)
    if (found := in_use.get(key)) is None:
        fields = fields_from(folder, KEPT / f"{key}.json")
        backend = Backend.from_str(fields.pop("backend"))
        backend.encode_special_tokens = fields.pop("encode_special_tokens")
        found = in_use[key] = Tokenizer(backend, **fields)
    return found


def digest(folder: Path) -> str:
    """Return a digest of the files in a folder, and of what reads them."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    found.update(f"{version('transformers')} {version('tokenizers')}".encode())
    for path in sorted(one for one in folder.iterdir() if one.is_file()):
        size = path.stat().st_size
        found.update(f"{path.name!r} {size} ".encode())
        if size <= LARGEST_FILE:
            found.update(path.read_bytes())
    return found.hexdigest()


def fields_from(folder: Path, kept: Path) -> dict[str, Any]:
    """Return the fields of a `Tokenizer`, which an earlier start may have kept."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    fields = read(folder)
    with suppress(OSError):  # where that is possible
        kept.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as place:
            part = Path(place, kept.name)
            part.write_text(json.dumps(fields), encoding="utf-8")
            part.rename(kept)  # whole, or not there
    return fields


def read(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Tokenizer`, its backend as JSON, from another process.

    Raises TokenizerNotReadable: it cannot be read.
    """
    try:
        done = subprocess.run(
            # Not by `-m`: this project may not be on the path of that process.
            [sys.executable, "-P", __file__, AS_JSON, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **ALONE},
            timeout=READING_S,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = f"which was not read by the process for it ({error})"
        raise TokenizerNotReadable(reason, "see the log, and try it again") from error
    if "fix" in answer:
        raise TokenizerNotReadable(**answer)
    return answer


# In the other process, which imports nothing of this project


def main(folder: Path) -> None:
    """Write the fields for a folder, or an error, to the standard output as JSON."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # other output goes to the log
        try:
            answer = fields_of(folder)
        except TokenizerNotReadable as error:
            answer = {"what": error.what, "fix": error.fix}
        json.dump(answer, out)


@contextmanager
def translate_errors(make: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise another error for each of `transformers` and `tokenizers`, which have many kinds."""
    try:
        yield
    except Exception as error:
        raise make(error) from error


def fields_of(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Tokenizer`, its backend as JSON.

    Raises TokenizerNotReadable: it cannot be read.
    """
    if what := damage(folder):
        raise TokenizerNotReadable(f"whose {what}", "mend that file, or save the tokenizer again")
    damaged = partial(refusal, folder)
    with translate_errors(damaged):
        from transformers import AutoTokenizer  # noqa: PLC0415  it takes a second

        whole = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    with translate_errors(lambda _: python_code(whole)):
        backend = Backend.from_str(whole.backend_tokenizer.to_str())
    backend.encode_special_tokens = whole.split_special_tokens
    backend.no_padding()
    backend.no_truncation()
    if not set(backend.get_vocab()) - {*whole.all_special_tokens, "▁"}:
        what = "which has special tokens alone, for the file with its words is missing"
        raise TokenizerNotReadable(what, SAVE_IT)
    texts = [f"{text} {whole.mask_token}" for text in SAMPLES]
    with translate_errors(damaged):  # the token for unknown words is missing
        ours = backend.encode_batch(texts)
    with translate_errors(lambda _: python_code(whole)):  # it takes more than a text
        theirs = whole(texts, return_token_type_ids=True)
    if [[one.ids, one.type_ids] for one in ours] != [
        list(one) for one in zip(theirs["input_ids"], theirs["token_type_ids"], strict=True)
    ]:
        raise python_code(whole)
    longest = whole.model_max_length
    return {
        "backend": backend.to_str(),
        "encode_special_tokens": whole.split_special_tokens,
        "mask": whole.mask_token or "",
        "unknown": whole.unk_token or "",
        "first": whole.cls_token or "",
        "padding": whole.pad_token_id,
        "type_padding": whole.pad_token_type_id,
        "from_left": whole.padding_side == "left",
        "longest": int(longest) if 1 <= longest < UNBOUNDED else 0,
    }


def python_code(whole: Any) -> TokenizerNotReadable:
    """Return the error for a tokenizer that the library `tokenizers` cannot hold."""
    return TokenizerNotReadable(
        f"which takes Python code (`{type(whole).__name__}` of transformers) that no "
        "tokenizer.json holds",
        "serve plain tensors, or write a class that makes the ids",
    )


def refusal(folder: Path, error: Exception) -> TokenizerNotReadable:
    """Return the error for a folder that `transformers` cannot read.

    Its errors have no classes of their own: the text alone names `auto_map`.
    """
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return TokenizerNotReadable(
            "whose tokenizer_config.json names code of its own (`auto_map`), which is not run",
            "leave `auto_map` out if tokenizer.json holds all that the code does, else write a "
            "class that makes the ids",
        )
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    what, fix = "which has no tokenizer.json, and from its other files none can be made", SAVE_IT
    if (folder / "tokenizer.json").exists():
        what, fix = "which cannot be loaded", "save the tokenizer again"
    return TokenizerNotReadable(f"{what} ({reason:.250})", fix)


def damage(folder: Path) -> str:
    """Return which file of a tokenizer is damaged, and how; empty if none is."""
    for path in map(folder.joinpath, FILES):
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            limit = found.get("model_max_length")
        except (OSError, ValueError, AttributeError) as error:
            return f"{path.name} cannot be read ({error})"
        if not isinstance(limit, int | float | None):
            return f"{path.name} has a `model_max_length` that is no number: {limit!r:.60}"
    return ""


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_JSON]:
        main(Path(sys.argv[2]))
    else:
        for one in sys.argv[1:]:
            load_tokenizer(Path(one))
