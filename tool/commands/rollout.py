"""`dispatcher rollout MODEL`: shows and changes what a running endpoint tries beside a model."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.parse
from typing import Any

from container.trouble import Trouble
from tool.commands.invoke import add_endpoint, call, parameter, print_error, read_json

TRIED = {"canary": "answers a share of the callers", "shadow": "is compared after the answer"}
ENDS = {  # what each does, and its route
    "promote": ("make the canary the version that all callers get", "POST", "/promote"),
    "back": ("give the canary no further request", "POST", "/back"),
    "forget": ("have dispatch.toml count again", "DELETE", ""),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show what is tried beside a model, or change it in all web workers."
    parser.add_argument("model", metavar="MODEL", help="the name of the model")
    for kind, what in TRIED.items():
        also = "share=0.2 changes the one that is there, `none` takes it away"
        parser.add_argument(
            f"--{kind}", metavar="version=2,share=0.05", help=f"what {what}; {also}"
        )
    end = parser.add_mutually_exclusive_group()
    for name, (what, *_) in ENDS.items():
        end.add_argument(f"--{name}", dest="end", action="store_const", const=name, help=what)
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    """Send the change, if there is one, and show what is in force; return 0, or 1 for an error."""
    said = {kind: getattr(options, kind) for kind in TRIED}
    tables = {kind: read_table(kind, text) for kind, text in said.items() if text}
    if tables and options.end:
        raise Trouble(f"--{options.end} ends what the other options change; call them one by one")
    _, method, end = ENDS.get(options.end, ("", "PUT" if tables else "GET", ""))
    path = f"/models/{urllib.parse.quote(options.model, safe='')}/rollout{end}"
    body = json.dumps(tables).encode() if tables else None
    try:
        answer = call(options, path, body, method=method)
    except urllib.error.HTTPError as error:
        with error:
            return print_error(error.code, error.read())
    shown = json.dumps(read_json(options, answer), ensure_ascii=False, indent=2)
    sys.stdout.write(f"{shown}\n")
    return 0


def read_table(kind: str, text: str) -> dict[str, Any] | None:
    """Read `version=2,share=0.05`; `None` for `none`."""
    if text == "none":
        return None
    return dict(parameter(one, f"--{kind}", "version=2") for one in text.split(","))
