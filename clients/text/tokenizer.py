"""Tokenizers, read from a folder as `AutoTokenizer` of `transformers` reads them.

Which ids a text gets is said by all files of the folder and by classes of `transformers`, so these
are asked: in a process of its own, for they take 45 MB and would stay in every web worker. What
comes back is the tokenizer of the library `tokenizers` that they have made, as JSON.

`python -P clients/text/tokenizer.py FOLDER` is that process. It imports nothing of this project.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from tokenizers import Tokenizer as Backend

UNBOUNDED = 10**9  # a tokenizer that knows no limit gives a number beyond this
READING_S = 60  # mostly it takes one second

# No file of a tokenizer is larger; weights may lie beside them.
LARGEST_FILE = 2**27

# Files whose JSON would be passed over, or named by nobody, where it is damaged.
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

# What the process must not do: ask the Hugging Face hub, and be talkative.
ALONE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

SAVE_IT = (
    "put tokenizer.json and tokenizer_config.json there, as "
    '`AutoTokenizer.from_pretrained("the model\'s name").save_pretrained("tokenizer")` writes them'
)

KEPT_WORDS = 2**14  # of a vocabulary, as they stand behind some character

# Texts whose ids have to be the same, once the classes of `transformers` are gone.
SAMPLES = ("The world has many people.", "naïve 中文字 \u200b don't 🙂", " 3.14  a_b-c\tend\n")


@dataclass(frozen=True)
class Tokenizer:
    """What turns a text into tokens.

    Args:
        backend: tells a text's tokens; it neither pads nor cuts off, which is state that all
            threads would share.
        mask: the token for a blank; nothing where there is none.
        padding: the id that stands where a text has no more; `None` where there is none.
        type_padding: what stands there in `token_type_ids`.
        from_left: whether it stands before a text, not behind it.
        longest: how many tokens a text may have; 0 where that is not said.

    """

    backend: Any
    mask: str = ""
    padding: int | None = None
    type_padding: int = 0
    from_left: bool = False
    longest: int = 0

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return int(self.backend.get_vocab_size())

    def id(self, token: str) -> int | None:
        """Return a token's id; `None` where it is no token."""
        found: int | None = self.backend.token_to_id(token)
        return found

    def filled(self, before: str, token: int, after: str) -> str:
        """Return a text with a token in its blank.

        Where a token says whether a word begins with it or goes on, that counts; blanks that the
        text has are neither doubled nor, where a word begins, changed.

        Args:
            before: the text before the mask.
            token: its id.
            after: the text behind the mask.

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
        """`word`, which is asked for the same few tokens again and again."""
        return lru_cache(KEPT_WORDS)(self.word)

    def word(self, before: str, token: int) -> tuple[str, bool]:
        """Return a token as text, with the blank before it, and whether a word goes on with it.

        Nothing where the model has more tokens than the tokenizer.

        Args:
            before: the character before it; nothing at the beginning of a text.
            token: its id.

        """
        piece = self.backend.id_to_token(token)
        if not piece:
            return "", False
        word = self.decoded("a", piece)[1:]
        if not self.puts_blanks_between:
            return word, not word.startswith(" ")
        # As with BERT, whose pieces say only that a word goes on.
        goes_on, word = not word.startswith(" ") and word != piece, word.removeprefix(" ")
        if not goes_on and self.is_one_word(before + word):
            word = f" {word}"
        return word, goes_on

    def decoded(self, *pieces: str) -> str:
        """Return pieces as one text."""
        decoder = self.backend.decoder
        return str(decoder.decode(list(pieces))) if decoder else " ".join(pieces)

    def is_one_word(self, text: str) -> bool:
        """Whether a text is not cut before its words are made pieces."""
        if self.backend.normalizer:
            text = self.backend.normalizer.normalize_str(text)
        cut = self.backend.pre_tokenizer
        return cut is None or len(cut.pre_tokenize_str(text)) == 1

    @cached_property
    def puts_blanks_between(self) -> bool:
        """Whether pieces that say nothing of blanks have one between them, once they are text."""
        return self.decoded("a", "a") == "a a"

    @cached_property
    def is_blind_to_blanks(self) -> bool:
        """Whether a blank before the mask changes no token."""
        alone, apart = (self.backend.encode(f"a{blank}{self.mask}").ids for blank in ("", " "))
        return bool(alone == apart)


class NotReadable(Exception):
    """A tokenizer cannot be read; the message is what follows its name.

    Args:
        what: is wrong.
        fix: how to mend it.

    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what, self.fix = what, fix


# What is in use, by what its files hold: models with the same tokenizer share it.
in_use: MutableMapping[str, Tokenizer] = WeakValueDictionary()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer in a folder.

    Args:
        folder: as `AutoTokenizer.from_pretrained` takes it.

    Raises:
        OSError: the folder, or a file in it, cannot be read.
        NotReadable: `AutoTokenizer` cannot read it, or it would not do here as it does there.

    """
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    key = digest(folder)
    if (found := in_use.get(key)) is None:
        fields = read(folder)
        backend = Backend.from_str(fields.pop("backend"))
        backend.encode_special_tokens = fields.pop("encode_special_tokens")
        found = in_use[key] = Tokenizer(backend, **fields)
    return found


def digest(folder: Path) -> str:
    """Return what changes with a file in a folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    parts = []
    for path in files:
        parts.append([path.name, path.stat().st_size])
        if path.stat().st_size <= LARGEST_FILE:
            parts[-1].append(hashlib.sha256(path.read_bytes()).hexdigest())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Tokenizer`, its backend as JSON, as another process reads them.

    Raises:
        NotReadable: it cannot be read.

    """
    try:
        done = subprocess.run(
            # Not as a module: the folder that this one is in may be no part of what is searched.
            [sys.executable, "-P", __file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **ALONE},
            timeout=READING_S,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = f"which was not read by the process for it ({error})"
        raise NotReadable(reason, "see the log, and try it again") from error
    if "fix" in answer:
        raise NotReadable(**answer)
    return answer


# In the other process


def main(folder: Path) -> None:
    """Write what is to be said of a folder to the standard output, as JSON."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # whatever else is written is for the log
        try:
            answer = fields_of(folder)
        except NotReadable as error:
            answer = {"what": error.what, "fix": error.fix}
        json.dump(answer, out)


def fields_of(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Tokenizer`, its backend as JSON.

    Raises:
        NotReadable: it cannot be read.

    """
    if what := damage(folder):
        raise NotReadable(f"whose {what}", "mend that file, or save the tokenizer again")
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415  it takes a second

        whole = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever the libraries raise over a damaged folder
        raise refusal(folder, error) from error
    try:
        backend = Backend.from_str(whole.backend_tokenizer.to_str())
    except Exception as error:  # it has none, or one that holds Python
        raise python_code(whole) from error
    backend.encode_special_tokens = whole.split_special_tokens
    backend.no_padding()
    backend.no_truncation()
    if not set(backend.get_vocab()) - {*whole.all_special_tokens, "▁"}:
        what = "which has special tokens alone, for the file with its words is missing"
        raise NotReadable(what, SAVE_IT)
    check_samples(folder, whole, backend)
    longest = whole.model_max_length
    return {
        "backend": backend.to_str(),
        "encode_special_tokens": whole.split_special_tokens,
        "mask": whole.mask_token or "",
        "padding": whole.pad_token_id,
        "type_padding": whole.pad_token_type_id,
        "from_left": whole.padding_side == "left",
        "longest": int(longest) if 1 <= longest < UNBOUNDED else 0,
    }


def check_samples(folder: Path, whole: Any, backend: Backend) -> None:
    """Raise NotReadable where `transformers` and `tokenizers` make different ids of a text."""
    texts = [f"{text} {whole.mask_token}" for text in SAMPLES]
    try:
        encodings = backend.encode_batch(texts)
    except Exception as error:  # the token for unknown words is missing
        raise refusal(folder, error) from error
    for text, ours in zip(texts, encodings, strict=True):
        try:
            theirs = whole(text, return_token_type_ids=True)
        except Exception as error:  # what it takes is more than a text
            raise python_code(whole) from error
        if (theirs["input_ids"], theirs["token_type_ids"]) != (ours.ids, ours.type_ids):
            raise python_code(whole)


def python_code(whole: Any) -> NotReadable:
    """Return the error for a tokenizer that is more than the library `tokenizers` has."""
    return NotReadable(
        f"which takes Python code (`{type(whole).__name__}` of transformers) that no "
        "tokenizer.json holds",
        "serve plain tensors, or write a class that makes the ids",
    )


def refusal(folder: Path, error: Exception) -> NotReadable:
    """Return the error for a folder of which nothing can be made."""
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return NotReadable(
            "whose tokenizer_config.json names code of its own (`auto_map`), which is not run",
            "leave `auto_map` out if tokenizer.json holds all that the code does, else write a "
            "class that makes the ids",
        )
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if (folder / "tokenizer.json").exists():
        return NotReadable(f"which cannot be loaded ({reason:.200})", "save the tokenizer again")
    models = [path.name for path in sorted(folder.glob("*.model"))]
    if models and "tiktoken` is required" in reason:  # it is tried where sentencepiece has failed
        reason = f"{models[0]} is no model of sentencepiece, or that package is missing"
    elif "Couldn't instantiate" in reason:
        reason = (
            "neither `tokenizer_class` in tokenizer_config.json nor `model_type` in config.json "
            "says how they are read"
        )
    what = "which has no tokenizer.json, and from its other files none can be made"
    return NotReadable(f"{what} ({reason:.250})", SAVE_IT)


def damage(folder: Path) -> str:
    """Return which file of a tokenizer is no such file, and why, if one is."""
    for path in map(folder.joinpath, FILES):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            return f"{path.name} is a folder"
        except UnicodeDecodeError:
            return f"{path.name} is no UTF-8"
        except (OSError, ValueError) as error:
            return f"{path.name} cannot be read ({error})"
        if not isinstance(found, dict):
            return f"{path.name} is no JSON object"
        limit = found.get("model_max_length")
        if limit is not None and not isinstance(limit, int | float):
            return f"{path.name} has a `model_max_length` that is no number: {limit!r:.60}"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
