"""`dispatcher new-key`: make an API key and its line for API_KEYS_FILE."""

from __future__ import annotations

import argparse
import sys

from container.trouble import Trouble
from dispatcher.auth.api_keys import EXPECTED, SCOPES, BadKeys, new_key


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scope", choices=SCOPES, metavar="SCOPE", help=" or ".join(SCOPES))
    parser.add_argument("name", metavar="NAME", help="whose key it is, for the log")
    limits = "models=NAME,NAME per_minute=NUMBER concurrent=NUMBER, of a key for inference"
    parser.add_argument("limits", metavar="LIMIT", nargs="*", help=limits)


def run(options: argparse.Namespace) -> int:
    """Print the key on stderr, for its user, and the line for the file on stdout.

    So `>> FILE` keeps the line, and the key itself is nowhere but on the screen.
    """
    try:
        key, line = new_key(options.scope, options.name, *options.limits)
    except BadKeys as error:
        given = " ".join((options.name, *options.limits))
        raise Trouble(f"there is no such {options.scope} key as {given!r}; {EXPECTED}") from error
    sys.stderr.write(f"x-api-key: {key}\n")
    sys.stdout.write(f"{line}\n")
    return 0
