"""`dispatcher serve FOLDER`: serve the models and classes of a folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from clients.model_files.model_folders import can_be_read
from container.trouble import Trouble
from dispatcher.settings import PROJECT

NEEDED = ("flask", "gunicorn", "tritonclient")
ELSEWHERE = (
    "serving needs Linux, for Triton: with Docker, `docker run --rm -p {port}:8080 -v "
    '"{folder}:/served"{settings} triton-dispatcher` serves this '
    "folder, once `docker build -t triton-dispatcher .` in the project's repository has made the "
    "image"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve the models and classes of a folder with Triton and NGINX, on Linux, until Ctrl-C. "
        "Settings are environment variables, as for the container."
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="a folder per model, with classes in code/clients; or the folders models and clients",
    )
    parser.add_argument("--port", type=int, default=None, help="port to listen on (default: 8080)")


def run(options: argparse.Namespace) -> int:
    """Become the server; return only where it cannot be started."""
    folder: Path = options.folder.resolve()
    if not folder.is_dir() or not can_be_read(folder):
        raise Trouble(
            f"{options.folder} is no folder that can be read; expected one with a folder per model"
        )
    if sys.platform != "linux":
        raise Trouble(elsewhere(folder, options.port or 8080))
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise Trouble(
            f"serving needs {', '.join(missing)}, which this Python lacks: "
            "`pip install 'triton-dispatcher[serve]'` brings all that is needed but NGINX"
        )
    environment = {**os.environ, **settings(folder, os.environ), "PYTHON": sys.executable}
    if options.port is not None:
        environment["SAGEMAKER_BIND_TO_PORT"] = str(options.port)
    sys.stdout.flush()
    os.execve("/bin/sh", ["/bin/sh", str(PROJECT / "serve")], environment)  # noqa: S606  on purpose


def elsewhere(folder: Path, port: int) -> str:
    """Return how Docker serves a folder."""
    inside = {
        name: value.replace(str(folder), "/served").replace("\\", "/").replace(os.pathsep, ":")
        for name, value in settings(folder, {}).items()
    }
    given = "".join(f" -e {name}={value}" for name, value in inside.items() if value)
    return ELSEWHERE.format(port=port, folder=folder, settings=given)


def settings(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that serve what is in a folder, and nothing else."""
    models = folder / "models"
    beside = (folder / "clients", folder / "code" / "clients")
    classes = [str(place) for place in beside if place.is_dir()]
    return {
        "MODEL_REPOSITORY": str(models if models.is_dir() else folder),
        "MODEL_DIR_USE": "ignore",
        "CLIENTS_PATH": os.pathsep.join(
            filter(None, [*classes, environment.get("CLIENTS_PATH", "")])
        ),
    }
