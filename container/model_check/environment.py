"""Look for mistakes in the environment of a Python model, packed or plain."""

from __future__ import annotations

import ctypes.util
import lzma
import os
import posixpath
import re
import sys
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.config_text import Field, Message
from clients.model_files.findings import ConfigFindings
from container.programs.find_triton import STUB, embedded_server, stub_versions

KEY = "EXECUTION_ENV_PATH"
FOLDER = "$$TRITON_MODEL_DIRECTORY"
PACK = "make it with venv-pack or conda-pack"
OWN_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
INTERPRETER = re.compile(r"bin/python[\d.]*")
NUMPY_1 = 12  # minor version of the newest Python for which there is a numpy below 2
CARRIED = "3.13"  # the wheel has a libpython for this stub alone


@dataclass(frozen=True)
class EnvironmentCheck:
    """Checks the environment that a configuration names.

    Args:
        folder: the model's.
        config: takes what is wrong.
        field: the entry of `parameters`.

    """

    folder: Path
    config: ConfigFindings
    field: Field

    def run(self) -> None:
        """Note what keeps Triton from using the environment."""
        value = string_value(self.field)
        path = self.path(value)
        if path is None or not self.is_inside(path, value):
            return
        try:
            names = plain(path) if path.is_dir() else packed(path)
        except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            reason = str(error).partition("\n")[0]
            self.error(f'is "{value}", which cannot be read as a tar archive: {reason}', PACK)
            return
        if not names or (path.is_file() and not path.stat().st_size):
            self.error(f'is "{value}", which is empty', PACK)
        elif "bin/activate" not in names:
            inner = next((name for name in names if name.endswith("/bin/activate")), "")
            where = f"; it is in {inner.removesuffix('/bin/activate')}/" if inner else ""
            self.error(f'is "{value}", which has no bin/activate{where}; Triton refuses that', PACK)
        else:
            self.contents(names, path)

    def error(self, what: str, fix: str) -> None:
        self.config.error(KEY, [self.field], what, fix)

    def path(self, value: str) -> Path | None:
        """Return the path that Triton takes, if there is something."""
        if FOLDER in value:
            path = Path(os.path.normpath(value.replace(FOLDER, str(self.folder))))
        elif value.startswith("/"):
            path = Path(value)
        else:
            rest = value.removeprefix("$TRITON_MODEL_DIRECTORY").lstrip("/")
            self.error(f'is "{value}", which is no path', f'write "{FOLDER}/{rest}"')
            return None
        if os.path.lexists(path) and not path.exists():
            self.error(
                f'is "{value}", a link to {path.readlink()}, which is not there',
                "put the environment itself there",
            )
        elif not path.exists():
            self.error(f'is "{value}", which is not there', f"put the environment there, or {PACK}")
        else:
            return path
        return None

    def is_inside(self, path: Path, value: str) -> bool:
        """Whether the path stays in the folder that is checked."""
        root = self.config.findings.root
        if FOLDER not in value or self.folder == root or path.resolve().is_relative_to(root):
            return True
        if not path.is_relative_to(self.folder):  # else the check of links reports it
            self.error(
                f'is "{value}", which leads out of the folder, to {path.resolve()}',
                "put the environment itself beside the model folders",
            )
        return False

    def contents(self, names: Mapping[str, str], path: Path) -> None:
        """Look at the Python, the packages and the links of an environment."""
        found = re.search(r"^lib/python(3\.\d+)/", "\n".join(names), re.MULTILINE)
        if found is None:
            self.error("is an environment without lib/python3", PACK)
            return
        version = found[1]
        self.stub(version)
        self.interpreter(names, version)
        self.numpy(names)
        if path.is_dir() and path.is_relative_to(self.folder):
            return  # the check of links looks at it
        for name, target in names.items():
            if target and not INTERPRETER.fullmatch(name) and leads_out(name, target):
                self.error(
                    f"has a link that leads out of the environment: {name} to {target}",
                    "put the file itself there, and pack it again",
                )

    def stub(self, version: str) -> None:
        """Compare the version of Python with those that Triton has a stub for."""
        own, server = self.folder / STUB, embedded_server()
        if own.is_file():
            needed = re.search(rb"libpython(3\.\d+)\.so", own.read_bytes())
            if needed and needed[1].decode() != version:
                self.error(
                    f"has Python {version}, but the {STUB} in the folder is for Python "
                    f"{needed[1].decode()}",
                    "remove that file, or put the one for the same Python there",
                )
        elif server is None and version != OWN_VERSION:
            self.config.warning(
                KEY,
                [self.field],
                f"has Python {version}, but this one is {OWN_VERSION}",
                f"pack Python {OWN_VERSION}, or put a {STUB} for {version} into the folder",
            )
        elif server and version not in stub_versions(server):
            usable = (one for one in stub_versions(server) if int(one.split(".")[1]) <= NUMPY_1)
            stubs = ", ".join(usable)
            what = f"has Python {version}, for which Triton has no stub"
            self.error(what, f"use the server's {OWN_VERSION}, or one of {stubs}")

    def interpreter(self, names: Mapping[str, str], version: str) -> None:
        """Note an interpreter, or its library, that is not there."""
        name = "bin/python3"
        for _ in names:
            target = names.get(name)
            if not target or target.startswith("/"):
                break
            name = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        else:
            target = None
        if target is None:
            self.error("has no bin/python3", PACK)
            return
        program = Path(target)
        if target and not program.exists():
            self.error(
                f"has a bin/python3 that is a link to {target}, which is not here",
                "pack it with conda-pack, or with venv-pack and --python-prefix=/usr",
            )
            return
        real = re.fullmatch(r"python(3\.\d+)", program.resolve().name) if target else None
        if real and real[1] != version:
            self.error(
                f"has packages of Python {version}, but its bin/python3 is Python {real[1]}",
                f"make it again with Python {version}",
            )
            return
        library = f"libpython{version}.so.1.0"
        beside = program.resolve().parents[1] / "lib" / library if target else None
        if not (
            version in {OWN_VERSION, CARRIED}
            or f"lib/{library}" in names
            or (beside and beside.exists())
            or ctypes.util.find_library(f"python{version}")
        ):
            self.error(
                f"has Python {version}, but no {library}",
                f"pack it with conda-pack, which brings it, or use Python {OWN_VERSION}",
            )

    def numpy(self, names: Mapping[str, str]) -> None:
        """Note a numpy that is missing, or that Triton cannot use."""
        text = "\n".join(names)
        found = re.search(r"site-packages/numpy-((\d+)\.[\d.]+)\.dist-info", text)
        if found and int(found[2]) >= 2 and embedded_server():
            self.error(
                f"has numpy {found[1]}, with which this Triton sends empty tensors",
                f"install 'numpy<2' there, which Python 3.{NUMPY_1} and older have",
            )
        elif "site-packages/numpy/" not in text:
            self.config.warning(
                KEY,
                [self.field],
                "has no numpy of its own, which Triton's Python backend needs",
                "install 'numpy<2' there",
            )


def string_value(field: Field) -> str:
    """Return the value of an entry of `parameters`."""
    entry = field.value
    values = entry.messages("value") if isinstance(entry, Message) else []
    return values[0].text("string_value") if values else ""


def packed(archive: Path) -> dict[str, str]:
    """Return the names in a packed environment, with the target of each link."""
    if not archive.stat().st_size:
        return {}
    with tarfile.open(archive, "r|*") as members:
        return {
            member.name.removeprefix("./"): member.linkname if member.issym() else ""
            for member in members
        }


def plain(folder: Path) -> dict[str, str]:
    """Return the names in a folder, with the target of each link."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else ""
        for path in folder.rglob("*")
    }


def leads_out(name: str, target: str) -> bool:
    """Whether a link in an environment leads out of it."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return place.startswith(("/", ".."))


def is_interpreter(path: Path) -> bool:
    """Whether a path is the interpreter of a virtual environment, a link that may lead out."""
    environment = path.parent.parent
    name = path.relative_to(environment).as_posix()
    is_named_so = bool(INTERPRETER.fullmatch(name)) and (environment / "pyvenv.cfg").is_file()
    return is_named_so and path.exists()
