"""Look for mistakes in the path to a Python model's environment, packed or plain.

What is wrong inside of it, such as its Python or numpy, the server says at the load: see
`container/programs/triton_python_backend_stub`.
"""

from __future__ import annotations

import lzma
import os
import re
import tarfile
import zlib
from pathlib import Path

from clients.model_files.config_text import Field, Message
from container.model_check.findings import ConfigFindings

KEY = "EXECUTION_ENV_PATH"
FOLDER = "$$TRITON_MODEL_DIRECTORY"
PACK = "make it with venv-pack or conda-pack"
INTERPRETER = re.compile(r"bin/python[\d.]*")


def check_environment(folder: Path, config: ConfigFindings, field: Field) -> None:
    """Note what keeps Triton from using the environment that an entry of `parameters` names."""
    value = string_value(field)

    def error(what: str, fix: str) -> None:
        config.error(KEY, [field], f'is "{value}", which {what}', fix)

    if FOLDER not in value and not value.startswith("/"):
        rest = value.removeprefix("$TRITON_MODEL_DIRECTORY").lstrip("/")
        error("is no path", f'write "{FOLDER}/{rest}"')
        return
    path, root = Path(os.path.normpath(value.replace(FOLDER, str(folder)))), config.findings.root
    if not path.exists():
        error("is not there", f"put the environment itself there, or {PACK}")
    elif FOLDER in value and folder != root and not path.resolve().is_relative_to(root):
        if not path.is_relative_to(folder):  # else the check of links reports it
            error(
                f"leads out of the folder, to {path.resolve()}",
                "put the environment itself beside the model folders",
            )
    else:
        try:
            activated = (path / "bin" / "activate").is_file() if path.is_dir() else is_packed(path)
        except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as fault:
            reason = str(fault).partition("\n")[0]
            error(f"cannot be read as a tar archive: {reason}", PACK)
        else:
            if not activated:
                error("has no bin/activate; Triton refuses that", PACK)


def string_value(field: Field) -> str:
    """Return the value of an entry of `parameters`."""
    entry = field.value
    values = entry.messages("value") if isinstance(entry, Message) else []
    return values[0].text("string_value") if values else ""


def is_packed(archive: Path) -> bool:
    """Whether an archive holds an environment."""
    with tarfile.open(archive, "r|*") as members:
        return any(member.name.removeprefix("./") == "bin/activate" for member in members)


def is_interpreter(path: Path) -> bool:
    """Whether a path is the interpreter of a virtual environment, a link that may lead out."""
    environment = path.parent.parent
    name = path.relative_to(environment).as_posix()
    is_named_so = bool(INTERPRETER.fullmatch(name)) and (environment / "pyvenv.cfg").is_file()
    return is_named_so and path.exists()
