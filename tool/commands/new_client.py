"""`dispatcher new-client NAME`: write the smallest complete client."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
import sys
from pathlib import Path

from tool.trouble import Trouble

TEMPLATE = Path(__file__).parent / "template"
# What the files import or define themselves.
TAKEN = {"BadPayload", "Client", "MODELS", "OnnxModels", "Path", "ROOT"}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name that callers use")
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder of models and clients, laid out as SageMaker's /opt/ml/model (default: here)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the files; return the exit code."""
    files = contents(options.name)
    root: Path = options.into
    if there := [path for path in files if (root / path).exists()]:
        raise Trouble(f"{root / there[0]} is there already; choose another name or folder")
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        sys.stdout.write(f"wrote {root / path}\n")
    test = next(path for path in files if path.name.startswith("test_"))
    sys.stdout.write(
        NEXT.format(
            python=shlex.quote(sys.executable),
            root=shlex.quote(str(root)),
            test=shlex.quote(str(root / test)),
            name=options.name,
        )
    )
    return 0


NEXT = """
It doubles numbers, and can be served as it is. Change it step by step:
  test it    {python} {test}
  check it   dispatcher check {root}
  serve it   dispatcher serve {root}
  ask it     dispatcher invoke {name} --json '{{"numbers": [1, 2.5]}}'
"""


def contents(name: str) -> dict[Path, bytes]:
    """Return the files by their paths.

    Raises:
        Trouble: the name cannot be one of a model and of a class.

    """
    if not NAME.fullmatch(name):
        raise Trouble(
            f"the name is {name!r}; expected letters, digits, '_', '.' and '-', a letter first"
        )
    words = re.split(r"[^A-Za-z0-9]+", name)
    kind = "".join(word[:1].upper() + word[1:] for word in words)
    file = re.sub(r"[^A-Za-z0-9]", "_", name).lower()
    if keyword.iskeyword(kind):
        raise Trouble(f"{name!r} is a word of Python's own; choose another name")
    if kind in TAKEN:
        kind += "Client"

    def filled(template: str) -> bytes:
        text = (TEMPLATE / f"{template}.txt").read_text()
        return text.format(name=name, kind=kind, file=file).encode()

    return {
        Path(name, "config.pbtxt"): filled("config.pbtxt"),
        Path(name, "1", "model.onnx"): (TEMPLATE / "model.onnx").read_bytes(),
        Path("code", "clients", f"{file}.py"): filled("client.py"),
        Path("code", "tests", f"test_{file}.py"): filled("test.py"),
    }
