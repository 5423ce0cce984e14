"""`dispatcher new-key`: make an API key and its line for API_KEYS_FILE."""

from __future__ import annotations

import argparse
import sys

from container.trouble import Trouble
from dispatcher.auth.api_keys import NAME, NAMED, SCOPES, new_key


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scope", choices=SCOPES, metavar="SCOPE", help=" or ".join(SCOPES))
    parser.add_argument("name", metavar="NAME", help="whose key it is, for the log")


def run(options: argparse.Namespace) -> int:
    """Print the key on stderr, for its user, and the line for the file on stdout.

    So `>> FILE` keeps the line, and the key itself is nowhere but on the screen.
    """
    if not NAME.fullmatch(options.name):
        raise Trouble(f"{options.name!r} is no name; expected {NAMED}")
    key, line = new_key(options.scope, options.name)
    sys.stderr.write(f"x-api-key: {key}\n")
    sys.stdout.write(f"{line}\n")
    return 0
