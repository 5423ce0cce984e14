"""What both commands are given: a container, what it gets, and the service's limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from sagemaker_emulator.archive import unpack_archive
from sagemaker_emulator.host.limits import Limits
from sagemaker_emulator.trouble import Trouble


def add_container(parser: argparse.ArgumentParser) -> None:
    """Declare what is run."""
    add = parser.add_argument
    add(
        "what",
        metavar="IMAGE|URL|.",
        help="an image; the address of a running server, which is not stopped; or a folder, whose "
        "program ./serve is started without Docker",
    )
    add(
        "--model",
        type=Path,
        metavar="PATH",
        help="a folder or model.tar.gz for /opt/ml/model; served instead of the image's own "
        "models, but for --env MODEL_DIR_USE=beside",
    )
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    add(
        "--multi-model",
        type=Path,
        metavar="FOLDER",
        help="the NAME.tar.gz and folders in it are the models of a multi-model endpoint",
    )
    limits = parser.add_argument_group("the service's limits, in seconds")
    limits.add_argument(
        "--start-timeout", type=seconds, default=Limits.start_s, help="first good ping (480)"
    )
    limits.add_argument("--timeout", type=seconds, default=Limits.answer_s, help="an answer (60)")
    limits.add_argument(
        "--stop-timeout", type=seconds, default=Limits.stop_s, help="SIGTERM to SIGKILL (30)"
    )


def seconds(text: str) -> float:
    return positive(text, float)


def count(text: str) -> int:
    return int(positive(text, int))


def positive(text: str, kind: Callable[[str], float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number above 0")
    return value


def refuse_wrong(options: argparse.Namespace) -> None:
    """Raise Trouble where a server that runs already is given a model, or a folder is none."""
    if "://" in options.what and (options.model or options.env):
        raise Trouble(
            f"{options.what} runs already: --model and --env are for an image or a folder"
        )
    if options.multi_model and not options.multi_model.is_dir():
        raise Trouble(f"--multi-model is {str(options.multi_model)!r}, no folder")


def model_folder(path: Path | None, work: Path) -> Path | None:
    """Return the folder for /opt/ml/model; an archive is unpacked into a folder for work."""
    if path is None or path.is_dir():
        return path and path.resolve()
    if not path.is_file():
        raise Trouble(f"--model is {str(path)!r}, where there is no folder and no archive")
    folder = work / "model"
    folder.mkdir()
    unpack_archive(path, folder)
    return folder


def variables(given: Sequence[str]) -> dict[str, str]:
    """Return what `--env NAME=VALUE` gives a container."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise Trouble(f"--env is {one!r}; expected NAME=VALUE")
        found[name] = value
    return found
