"""Finds a Triton on this machine and how to start it.

It looks in this order: NVIDIA's image (`NVIDIAS`), a `tritonserver` on `PATH`, and the server
in the `nvidia-pytriton` wheel ("embedded"). The last has no backend but `python`, so it is given
those of `backends`, which are written in Python. All three read the same model
folders.
"""

from __future__ import annotations

import ctypes
import filecmp
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from container.trouble import Trouble

NVIDIAS = Path("/opt/tritonserver")  # in its image
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# Else Triton looks for a GPU, and warns that there is none.
WITHOUT_GPU = ("--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false")

OWN_BACKENDS = Path(__file__).resolve().parents[2] / "backends"

# The backend folder that an image makes: the temporary one of a container may be `noexec`.
PREPARED = Path(sys.prefix) / "triton-backends"

STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class TritonProgram:
    """A Triton that can be started, with the options and variables that it needs besides."""

    kind: str  # where it is from
    executable: Path
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    has_our_backends: bool = False

    @property
    def caches(self) -> Path:
        """The folder of the libraries for response caches."""
        return self.executable.resolve().parents[1] / "caches"


def find_triton(home: Path, search_path: str, run_dir: Path) -> TritonProgram:
    """Return the first Triton there is.

    `run_dir` takes the backend folder of the embedded one where the image has none.

    Raises Trouble: there is none, or the embedded one lacks something.
    """
    executable = home / "bin" / "tritonserver"
    if os.access(executable, os.X_OK):
        backends = home / "backends"
        options = (f"--backend-directory={backends}",) if backends.is_dir() else ()
        return TritonProgram(f"NVIDIA's, in {home}", executable, options)
    if found := shutil.which("tritonserver", path=search_path):
        return TritonProgram(f"on PATH, {found}", Path(found))
    return find_embedded(run_dir)


def find_embedded(run_dir: Path) -> TritonProgram:
    """Return the Triton of the `nvidia-pytriton` wheel, with this project's backends.

    Raises Trouble: the wheel is not installed, or there is no `libpython` for its Python backend.
    """
    server = find_server()
    if server is None:
        raise Trouble(
            "no tritonserver found; run this in NVIDIA's image, put tritonserver on PATH, or "
            "install the embedded one (the nvidia-pytriton wheel): `make serve` in a checkout, "
            "else `pip install 'triton-dispatcher[serve]'`"
        )
    libraries = [str(server.parents[1] / "nvidia_pytriton.libs"), *libpython_folder()]
    backends = PREPARED
    if not is_laid_out(server, backends):
        backends = run_dir / "backends"
        lay_out_backends(server, backends)
    environment = {
        "LD_LIBRARY_PATH": join_paths(*libraries, os.environ.get("LD_LIBRARY_PATH", "")),
        # The Python backend runs the python3 that is first on PATH.
        "PATH": join_paths(str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)),
        # For the file of our own that Triton starts as its stub.
        "PYTHON_STUBS": str(server / "python_backend_stubs"),
        "PYTHON_STUB_DEFAULT": sysconfig.get_python_version(),
        "PYTHON_STUB_BIN": str(Path(sys.prefix) / "bin"),
        "MODEL_TRIAL": str(Path(__file__).with_name("trial")),
        "PYTHONFAULTHANDLER": "1",  # a model's process that crashes says where
    }
    options = [f"--backend-directory={backends}", f"--cache-directory={server / 'caches'}"]
    if not NVIDIA_DRIVER.exists():
        options += WITHOUT_GPU
    executable = server / "bin" / "tritonserver"
    return TritonProgram("embedded", executable, tuple(options), environment, has_our_backends=True)


def find_server() -> Path | None:
    """Return the folder of the wheel's Triton; None where the wheel is not installed."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "tritonserver"


def join_paths(*folders: str) -> str:
    return os.pathsep.join(folder for folder in folders if folder)


def libpython_folder() -> list[str]:
    """Return the folder of `libpython` where the system's linker does not find it.

    Raises Trouble: it is not installed.
    """
    name = f"libpython{sysconfig.get_python_version()}.so.1.0"
    beside = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if (beside / name).is_file():
        return [str(beside)]
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise Trouble(
            f"Triton's Python backend needs {name}, which is not installed; "
            f"`apt-get install libpython{sysconfig.get_python_version()}` brings it"
        ) from error
    return []


def is_laid_out(server: Path, backends: Path) -> bool:
    """Whether a backend folder is what `lay_out_backends` would make now."""
    python = backends / "python"
    return all(
        (python / path.name).is_file() and filecmp.cmp(path, python / path.name, shallow=False)
        for path in wheel_backend(server)
    ) and all((backends / path.name).resolve() == path.resolve() for path in own_backends())


def lay_out_backends(server: Path, backends: Path) -> None:
    """Make the backend folder of the embedded Triton.

    Triton refuses a library behind a link that leads out of the backend's folder, so the wheel's
    files (3 MB) are copied.

    Raises Trouble: the wheel has no Python backend for this Python.
    """
    python = backends / "python"
    python.mkdir(parents=True)
    for path in wheel_backend(server):
        shutil.copy(path, python)
    for path in own_backends():
        (backends / path.name).symlink_to(path)


def wheel_backend(server: Path) -> list[Path]:
    """Return the files of the Python backend: the wheel's, and our own stub.

    Ours starts the wheel's stub for the Python of the model's environment.

    Raises Trouble: the wheel has no stub for this Python.
    """
    version = sysconfig.get_python_version()
    if not (server / "python_backend_stubs" / version / STUB).is_file():
        raise Trouble(
            f"the embedded Triton has no Python backend for Python {version} on "
            f"{platform.machine()}; use Python 3.11 or 3.12"
        )
    wheel = filter(Path.is_file, (server / "backends" / "python").iterdir())
    return [*wheel, Path(__file__).with_name(STUB)]


def own_backends() -> list[Path]:
    return [path for path in OWN_BACKENDS.iterdir() if (path / "model.py").is_file()]


def prepare() -> None:
    """Make the backend folder of an image; empty without an embedded Triton."""
    shutil.rmtree(PREPARED, ignore_errors=True)
    PREPARED.mkdir()
    if server := find_server():
        lay_out_backends(server, PREPARED)


if __name__ == "__main__":
    prepare()
