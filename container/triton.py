"""Finds a Triton on this machine and says how it is started.

Three kinds are known, looked for in this order: NVIDIA's image (`TRITON_HOME`), a `tritonserver`
on `PATH`, and the one that the `nvidia-pytriton` wheel carries ("embedded"). The last has no
backends but `python`, so it is given those of `container/backends`, which are written in Python;
the models' folders are the same for all three.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OWN_BACKENDS = Path(__file__).parent / "backends"


class NoTriton(Exception):
    """There is no Triton that can be started; the message says what to install."""


@dataclass(frozen=True)
class Triton:
    """A Triton that can be started.

    Args:
        kind: what it is, for the log.
        executable: the server's program.
        options: command-line options it needs besides the settings.
        environment: variables it needs besides those of this process.

    """

    kind: str
    executable: Path
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def find_triton(home: Path, search_path: str, run_dir: Path) -> Triton:
    """Return the first Triton there is.

    Args:
        home: where NVIDIA's image keeps it.
        search_path: folders to look in, as `PATH` spells them.
        run_dir: an existing folder, in which the embedded one's backends are laid out.

    Raises:
        NoTriton: there is none, or the embedded one lacks something.

    """
    if os.access(home / "bin" / "tritonserver", os.X_OK):
        backends = home / "backends"
        options = (f"--backend-directory={backends}",) if backends.is_dir() else ()
        return Triton(f"NVIDIA's, in {home}", home / "bin" / "tritonserver", options)
    if found := shutil.which("tritonserver", path=search_path):
        return Triton(f"on PATH, {found}", Path(found))
    return embedded(run_dir)


def embedded(run_dir: Path) -> Triton:
    """Return the Triton of the `nvidia-pytriton` wheel, with this project's backends.

    Raises:
        NoTriton: the wheel is not installed, or there is no `libpython` for its Python backend.

    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise NoTriton(
            "no tritonserver found; run this in NVIDIA's image, put tritonserver on PATH, or "
            "`make serve` to install the embedded one (the nvidia-pytriton wheel)"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    server = package / "tritonserver"
    libraries = [str(package.parent / "nvidia_pytriton.libs"), *libpython_folder()]
    backends = run_dir / "backends"
    lay_out_backends(server, backends)
    environment = {
        "LD_LIBRARY_PATH": joined(*libraries, os.environ.get("LD_LIBRARY_PATH", "")),
        # The Python backend runs the python3 that is first on PATH.
        "PATH": joined(str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)),
    }
    options = (f"--backend-directory={backends}", f"--cache-directory={server / 'caches'}")
    return Triton("embedded", server / "bin" / "tritonserver", options, environment)


def joined(*folders: str) -> str:
    return os.pathsep.join(folder for folder in folders if folder)


def libpython_folder() -> list[str]:
    """Return where `libpython` lies when the system's linker does not find it by itself.

    Raises:
        NoTriton: it is nowhere.

    """
    name = f"libpython{sysconfig.get_python_version()}.so.1.0"
    beside = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if (beside / name).is_file():
        return [str(beside)]
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise NoTriton(
            f"Triton's Python backend needs {name}, which is not installed; "
            f"`apt-get install libpython{sysconfig.get_python_version()}` brings it"
        ) from error
    return []


def lay_out_backends(server: Path, backends: Path) -> None:
    """Make the backend folder of the embedded Triton.

    Triton refuses a library that a link leads out of its backend's folder, so the wheel's files
    (3 MB) are copied.

    Raises:
        NoTriton: the wheel has no Python backend for this Python.

    """
    version = sysconfig.get_python_version()
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise NoTriton(
            f"the embedded Triton has no Python backend for Python {version} on "
            f"{platform.machine()}; use Python 3.11 or 3.12 on x86_64"
        )
    python = backends / "python"
    python.mkdir(parents=True)
    for path in (*filter(Path.is_file, (server / "backends" / "python").iterdir()), stub):
        shutil.copy(path, python)
    for path in OWN_BACKENDS.iterdir():
        if (path / "model.py").is_file():
            (backends / path.name).symlink_to(path)
