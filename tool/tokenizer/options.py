"""What the author may say of a tokenizer; imports no large library."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from container.trouble import Trouble


@dataclass(frozen=True)
class Wanted:
    """What the author says of a tokenizer, where the files do not."""

    kind: str = ""  # the class of transformers
    lowercase: bool | None = None  # whether texts are written small first
    longest: int = 0  # the most tokens of a text


def add_wanted(parser: argparse.ArgumentParser) -> None:
    """Add the options for what a tokenizer's files may leave open."""
    parser.add_argument(
        "--tokenizer-class",
        default="",
        metavar="CLASS",
        help="of transformers, such as BertTokenizer, where no configuration names it",
    )
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether texts are written small first (default: if vocab.txt has no capital letters)",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=0, metavar="N", help="the longest text, in tokens"
    )


def read_wanted(options: argparse.Namespace) -> Wanted:
    """Return what the options of `add_wanted` say."""
    if options.max_tokens < 0:
        raise Trouble(f"--max-tokens is {options.max_tokens}; expected a whole number from 1")
    return Wanted(options.tokenizer_class, options.lowercase, options.max_tokens)
