"""`dispatcher new-client NAME`: write the smallest complete client, with its model."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

from container.trouble import Trouble
from tool.placing import beside, put
from tool.scaffold.options import add_into, class_name, file_name, next_steps, refuse_to_overwrite

TEMPLATE = Path(__file__).parent / "template"
# What the files import or define themselves.
TAKEN = {"BadPayload", "Client", "MODELS", "OnnxModels", "Path", "ROOT"}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name that callers use")
    add_into(parser)


def run(options: argparse.Namespace) -> int:
    made = contents(options.name)
    root: Path = options.into
    refuse_to_overwrite(root, Path(options.name), *made)
    with beside(root) as place:
        for path, content in made.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content)
        *_, client, test = made
        put(place, root, (Path(options.name), client, test))
    sys.stdout.writelines(f"wrote {root / path}\n" for path in made)
    sys.stdout.write("\nIt doubles numbers, and can be served as it is. Change it step by step:")
    ask = f"invoke {options.name} --json '{{\"numbers\": [1, 2.5]}}'"
    sys.stdout.write(next_steps(root, test, ask))
    return 0


def contents(name: str) -> dict[Path, bytes]:
    """Return the files of the smallest client by their paths, the class and its test last."""
    if not NAME.fullmatch(name):
        raise Trouble(
            f"the name is {name!r}; expected letters, digits, '_', '.' and '-', a letter first"
        )
    kind, file = class_name(name), file_name(name)
    if keyword.iskeyword(kind):
        raise Trouble(f"{name!r} is a word of Python's own; choose another name")
    if kind in TAKEN:
        kind += "Client"

    def fill(template: str) -> bytes:
        text = (TEMPLATE / f"{template}.txt").read_text(encoding="utf-8")
        return text.format(name=name, kind=kind, file=file).encode()

    return {
        Path(name, "config.pbtxt"): fill("config.pbtxt"),
        Path(name, "1", "model.onnx"): (TEMPLATE / "model.onnx").read_bytes(),
        Path("code", "clients", f"{file}.py"): fill("client.py"),
        Path("code", "tests", f"test_{file}.py"): fill("test.py"),
    }
