"""`dispatcher new-client NAME`: write the smallest complete client, or one for a model's file."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from container.trouble import Trouble
from tool.placing import beside, put
from tool.scaffold.options import add_source, class_name, file_name, refuse_to_overwrite

TEMPLATE = Path(__file__).parent / "template"
# What the files import or define themselves.
TAKEN = {"BadPayload", "Client", "EXAMPLE", "Letterbox", "MODELS", "OnnxModels", "Path", "ROOT"}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name that callers use")
    add_source(parser, required=False)


def run(options: argparse.Namespace) -> int:
    """Write the files; return the exit code."""
    names = names_of(options.name)
    files = files_of(names)
    root: Path = options.into
    if options.source is None:
        refuse_what_needs_a_model(options)
        made = contents(options.name)
        refuse_to_overwrite(root, *made)
        with beside(root) as place:
            for path, content in made.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_bytes(content)
            put(place, root, (Path(options.name), *files))
        written = [root / path for path in made]
        about, ask = "It doubles numbers, and can be", '{"numbers": [1, 2.5]}'
    else:
        from tool.scaffold.client import write

        write(options, names, files)
        written = [path for path in sorted((root / options.name).rglob("*")) if path.is_file()]
        written += [root / path for path in files]
        about, ask = "It returns the model's outputs, and can be", "PAYLOAD.json"
    sys.stdout.writelines(f"wrote {path}\n" for path in written)
    sys.stdout.write(
        NEXT.format(
            about=about,
            ask=shlex.quote(ask),
            python=shlex.quote(sys.executable),
            root=shlex.quote(str(root)),
            test=shlex.quote(str(root / files[1])),
            name=options.name,
        )
    )
    return 0


def refuse_what_needs_a_model(options: argparse.Namespace) -> None:
    """Raise Trouble for an option that says something of a model's file, without that file."""
    for name in ("family", "labels", "tokenizer"):
        if getattr(options, name):
            raise Trouble(f"--{name} is about a model's file: name it, --from model.onnx")


NEXT = """
{about} served as it is. Change it step by step:
  test it    {python} {test}
  check it   dispatcher check {root}
  serve it   dispatcher serve {root}
  ask it     dispatcher invoke {name} --json {ask}
"""


def contents(name: str) -> dict[Path, bytes]:
    """Return the files of the smallest client by their paths.

    Raises:
        Trouble: the name cannot be one of a model and of a class.

    """
    names = names_of(name)
    client, test = files_of(names)

    def filled(template: str) -> bytes:
        return (TEMPLATE / f"{template}.txt").read_text(encoding="utf-8").format(**names).encode()

    return {
        Path(name, "config.pbtxt"): filled("config.pbtxt"),
        Path(name, "1", "model.onnx"): (TEMPLATE / "model.onnx").read_bytes(),
        client: filled("client.py"),
        test: filled("test.py"),
    }


def names_of(name: str) -> dict[str, str]:
    """Return a model's name, that of its class and that of its file.

    Raises:
        Trouble: the name cannot be one of a model and of a class.

    """
    if not NAME.fullmatch(name):
        raise Trouble(
            f"the name is {name!r}; expected letters, digits, '_', '.' and '-', a letter first"
        )
    kind = class_name(name)
    if keyword.iskeyword(kind):
        raise Trouble(f"{name!r} is a word of Python's own; choose another name")
    if kind in TAKEN:
        kind += "Client"
    return {"name": name, "kind": kind, "file": file_name(name)}


def files_of(names: Mapping[str, str]) -> tuple[Path, Path]:
    """Return where the class and its test are."""
    file = f"{names['file']}.py"
    return Path("code", "clients", file), Path("code", "tests", f"test_{file}")
