"""Tokenizers, read from a folder as the Hugging Face hub has them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

UNBOUNDED = 10**9  # a tokenizer that knows no limit gives a number beyond this


@dataclass(frozen=True)
class Tokenizer:
    """What turns a text into tokens.

    Args:
        backend: tells a text's tokens; it neither pads nor cuts off, which is state that all
            threads would share.
        mask: the token for a blank; nothing where there is none.
        padding: the id that stands where a text has no more.
        longest: how many tokens a text may have; 0 where that is not said.

    """

    backend: Any
    mask: str
    padding: int
    longest: int

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return int(self.backend.get_vocab_size())

    def id(self, token: str) -> int | None:
        """Return a token's id; `None` where it is no token."""
        found: int | None = self.backend.token_to_id(token)
        return found

    def decode(self, token: int) -> str:
        """Return a token as text."""
        return str(self.backend.decode([token], skip_special_tokens=False))


def load_tokenizer(folder: Path, needed: Iterable[str]) -> Tokenizer:
    """Read the tokenizer in a folder.

    What `transformers` would make of `tokenizer.json` is the object that `tokenizers` reads from
    it by itself, in 25 MB less. Where the folder lacks that file, or leaves something of what is
    needed to the classes of `transformers`, those are asked.

    Args:
        folder: as `AutoTokenizer.from_pretrained` takes it.
        needed: keys of tokenizer_config.json without which the caller could not go on.

    Raises:
        Exception: whatever either library raises over a damaged folder.

    """
    config = read(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file() and all(config.get(name) for name in needed):
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        mask, padding = content(config.get("mask_token")), content(config.get("pad_token"))
        longest = config.get("model_max_length") or UNBOUNDED
    else:
        from transformers import AutoTokenizer  # noqa: PLC0415  it takes 25 MB

        whole = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        backend = whole.backend_tokenizer
        mask, padding, longest = whole.mask_token, whole.pad_token, whole.model_max_length
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(
        backend,
        mask or "",
        backend.token_to_id(padding or "") or 0,
        int(longest) if 1 <= longest < UNBOUNDED else 0,
    )


def read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return config if isinstance(config, dict) else {}


def damage(folder: Path) -> str:
    """Return which file of a tokenizer that cannot be loaded is to blame, and why, if one is."""
    limit = None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IsADirectoryError:
            return f"{name} is a folder"
        except UnicodeDecodeError:
            return f"{name} is no UTF-8"
        except (OSError, ValueError) as error:
            return f"{name} cannot be read ({error})"
        if not isinstance(found, dict):
            return f"{name} is no JSON object"
        limit = found.get("model_max_length")
    if limit is not None and not isinstance(limit, int | float):
        return f"tokenizer_config.json has a `model_max_length` that is no number: {limit!r:.60}"
    return ""


def content(token: object) -> str:
    """Return a token's text; some folders write it with its properties."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""
