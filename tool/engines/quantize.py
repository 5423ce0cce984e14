"""`dispatcher quantize MODEL`: write an int8 version and report its errors."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from clients.base import Client, Environment
from clients.repository.config_text import Message
from clients.repository.model_folders import CONFIG, authors_folder, has_versions
from clients.tensors.agreement import says_nothing
from clients.tensors.client import TensorClient
from dispatcher.settings import PROJECT
from tool.checks.model import configured
from tool.checks.versions import served, version_folders
from tool.engines.quantize_report import (
    Answer,
    Report,
    as_text,
    difference,
    finite,
    kind,
    listed,
    parameters,
)
from tool.engines.runs import Arrays, RecordedModels, RecordingSession, Run, onnxruntime_run, opened
from tool.offline import Offline, composed, load_offline, settings_here
from tool.samples import Sample, ask, samples_in
from tool.trouble import Trouble

FILE = "model.onnx"
EXTRA = PROJECT / "container" / "image" / "requirements" / "quantize.txt"
HELD_OUT = 4  # every fourth sample is kept for the comparison
FEW = 8  # samples, with fewer of which ranges and comparison mean little
WIDE = 10.0  # limits that the median sample is off by, from which on nothing is written


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write an int8 version of an ONNX model, calibrated on samples by way of the model's "
        "client, and compare its answers with the model's own on every fourth of them. Classes "
        "of clients are imported for it."
    )
    parser.add_argument("model", metavar="MODEL", help="the name that callers use")
    parser.add_argument(
        "--samples",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="what callers send: pictures, .txt with a text in each line, .json with payloads",
    )
    parser.add_argument(
        "--repository",
        metavar="DIR",
        help="folder of models and clients (default: MODEL_DIR and MODEL_REPOSITORY)",
    )
    parser.add_argument("--version", default="", help="of the model (default: the latest)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="new folder for model.onnx (default: the model's next version)",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NODE",
        help="leave nodes of this name, or pattern such as '/head/*', as they are; may be repeated",
    )
    parser.add_argument(
        "--keep", action="store_true", help="write it even where answers are far off"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


@dataclass(frozen=True)
class Chosen:
    """The model to be quantized.

    Args:
        folder: the model's own one, where its author has it.

    """

    repository: Path
    name: str
    version: str
    file: Path
    folder: Path
    client: Client

    def client_on(self, server: Any) -> Client:
        """Return a client like the model's, whose model runs elsewhere."""
        environment = Environment(server, self.repository)
        if type(self.client) is TensorClient:
            return TensorClient(environment, self.name)
        return type(self.client)(environment)


def run(options: argparse.Namespace) -> int:
    """Quantize, and print the report; return 1 where answers are too far off, else 0."""
    needed()
    with chosen(options) as model:
        report = quantized(model, options)
    if options.json:
        sys.stdout.write(f"{json.dumps(asdict(report), indent=2)}\n")
    else:
        sys.stdout.write(as_text(report))
        sys.stdout.write(what_next(model, report, options))
    return 0 if report.written else 1


def what_next(model: Chosen, report: Report, options: argparse.Namespace) -> str:
    """Return what the author may do now, as lines."""
    new = Path(report.file).parent
    if not report.written:
        return (
            f"\nNothing was written: {refused(report)}. More samples, like those that callers\n"
            "send, may help, or --exclude for the layers at fault; --keep writes it all the same.\n"
        )
    if options.output:
        return (
            f"\nTo serve it move it to {model.folder / 'N' / FILE}, N being the newest version.\n"
        )
    config = configured(model.folder) or Message()
    if new not in served(config, version_folders(model.folder)):
        return f"\nThe `version_policy` in {model.folder / CONFIG} leaves version {new.name} out.\n"
    return (
        f"\nTriton serves the newest version: {new.name} from the next load on. To go back remove "
        f"{new},\nor write into config.pbtxt: version_policy {{ specific {{ versions: "
        f"{model.version} }} }}\n"
    )


def refused(report: Report) -> str:
    """Return why the version is not worth serving; empty where the author may judge."""
    if report.without_object == report.compared_on:
        return "no compared sample has an object, by which the answers could be compared"
    if report.median_difference is None or report.median_difference > WIDE:
        return f"the median sample is off by more than {WIDE:g} limits"
    are_same = report.agree == report.compared_on - report.without_object
    if not are_same and report.milliseconds_after > report.milliseconds_before:
        return "it is slower, and not all answers agree"
    return ""


def needed() -> None:
    """Import the libraries that the image does not have.

    Raises:
        Trouble: it is not installed.

    """
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        command = [sys.executable, "-m", "pip", "install", "--require-hashes", "-r", str(EXTRA)]
        raise Trouble(
            f"quantizing needs the package {error.name}, which is not installed; run "
            f"`{shlex.join(command)}`"
        ) from error


@contextmanager
def chosen(options: argparse.Namespace) -> Iterator[Chosen]:
    """Give the model of a name, or an alias.

    Raises:
        Trouble: there is no such model, or no such version, or it is no ONNX model.

    """
    name = options.model
    named = {} if options.repository is None else {"MODEL_DIR": options.repository}
    found = settings_here(**named)
    if found.missing:
        raise Trouble(found.missing)
    with composed(found) as repository:
        registry = load_offline(repository, found.client_folders)
        asked = registry.name(name)
        if reason := registry.broken.get(asked):
            raise Trouble(f"the client of {name!r} does not work: {reason}")
        client = registry.clients.get(asked)
        model = client.served_by if client else asked
        folder = repository / model
        if not folder.is_dir():
            there = ", ".join(sorted(path.name for path in repository.iterdir())) or "none"
            raise Trouble(
                f"there is no model {model!r}; there are: {there}. Another folder of models is "
                "named with --repository DIR"
            )
        file = file_of(folder, authors_folder(folder), options.version)
        yield Chosen(
            repository,
            model,
            file.parent.name,
            file.parent.resolve() / FILE,
            authors_folder(folder),
            client or TensorClient(Environment(Offline(repository), repository), model),
        )


def file_of(folder: Path, author: Path, version: str) -> Path:
    """Return the file of a version, or of the latest.

    Raises:
        Trouble: there is none.

    """
    versions = {path.name: path for path in version_folders(folder) if (path / FILE).is_file()}
    if not versions:
        raise Trouble(
            f"{author} is no ONNX model: there is no file 1/{FILE}, which alone can be quantized"
        )
    if version and version not in versions:
        there = ", ".join(sorted(versions, key=int))
        raise Trouble(f"--version is {version!r}; {author} has {FILE} in version {there}")
    return versions[version or max(versions, key=int)] / FILE


def target_of(model: Chosen, output: Path | None) -> Path:
    """Return the folder to be written.

    Raises:
        Trouble: it is there already, or cannot be made there.

    """
    if output is None:
        if not has_versions(model.folder):
            raise Trouble(
                f"{model.folder} has no version folders; move its {FILE} into "
                f"{model.folder / '1'}, or name a new folder with --output"
            )
        numbers = [int(p.name) for p in model.folder.iterdir() if p.name.isdigit()]
        output = model.folder / str(max(numbers) + 1)
    output = output.absolute()
    if os.path.lexists(output):
        raise Trouble(f"{output} is there already; name another folder with --output")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Trouble(f"{output.parent} cannot be made: {error.strerror}") from error
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise Trouble(
            f"{output.parent} must not be written to; name another place with --output FOLDER"
        )
    return output


class Asking:
    """Runs a model's client, and records the model's inputs and outputs."""

    def __init__(self, model: Chosen, session: Any, run: Run) -> None:
        self._tap = RecordingSession(session, run)
        self._version = model.version
        self.client = model.client_on(RecordedModels(model.repository, model.name, self._tap))

    def __call__(self, sample: Sample) -> tuple[list[Arrays], Answer]:
        """Return the model's inputs for a sample, and the client's answer.

        Raises:
            Trouble: the client refuses the sample, or does not ask the model.

        """
        result = ask(self.client, sample, parameters(self.client), self._version)
        inputs, outputs = self._tap.emptied()
        if not inputs:
            raise Trouble(
                f"the client has not asked the model for the sample {sample.name}; take it out of "
                "the folder"
            )
        # Where results are compared, outputs need not be kept: a YOLOv5's have 8.6 MB.
        return inputs, (result, outputs if kind(self.client) == "tensors" else [])


def quantized(model: Chosen, options: argparse.Namespace) -> Report:
    """Write the int8 version, unless its answers are far off; return the report."""
    from tool.engines import int8  # noqa: PLC0415  it needs the extra

    target = target_of(model, options.output)
    if int8.is_int8(model.file):
        older = "" if options.version else "; name one in single precision with --version"
        raise Trouble(f"{model.name!r}, version {model.version}, is int8 already{older}")
    samples = samples_in(options.samples)
    rest, held = apart(samples)
    session = opened(model.file)
    bar = tqdm(total=len(rest) + 2 * len(held), unit="sample", disable=None, leave=False)
    with bar, tempfile.TemporaryDirectory(dir=target.parent, prefix=".quantize-") as beside:
        made = Path(beside, "new")
        made.mkdir()
        exact = Asking(model, session, onnxruntime_run(session))

        def counted(
            what: str, some: list[Sample], asking: Asking
        ) -> Iterator[tuple[list[Arrays], Answer]]:
            bar.set_description(what)
            for sample in some:
                yield asking(sample)
                bar.update()

        inputs = (one for taken, _ in counted("calibrate", rest, exact) for one in taken)
        int8.quantize(model.file, Path(beside), made / FILE, inputs, options.exclude)
        known = [(taken[:1], answer) for taken, answer in counted("compare", held, exact)]
        example = known[0][0]
        engine, before, after = int8.engine(model.file, made / FILE, example[0])
        fast = Asking(model, session, after)
        found = [
            difference(fast.client, expected, got)
            for (_, expected), (_, got) in zip(known, counted("compare", held, fast), strict=True)
        ]
        times = int8.medians([before, after], example)
        shown = [one for one in found if one.shows != ""]
        median = statistics.median(one.difference for one in shown or found)
        report = Report(
            model=model.name,
            kind=kind(fast.client),
            version=model.version,
            file=str(target / FILE),
            written=False,
            calibrated_on=len(rest),
            compared_on=len(held),
            without_object=len(found) - len(shown),
            agree=sum(one.passes for one in shown),
            median_difference=finite(median),
            differences=listed(held, found),
            engine=engine,
            milliseconds_before=round(times[0], 3),
            milliseconds_after=round(times[1], 3),
            bytes_before=size(model.file.parent),
            bytes_after=size(made),
            warnings=warnings(samples, rest, says_nothing(found)),
        )
        if refused(report) and not options.keep:
            return report
        put(made, target)
    return replace(report, written=True)


def apart(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return samples for calibration and for comparison; one serves both."""
    if len(samples) < HELD_OUT:
        return samples[:-1] or samples, samples[-1:]
    held = samples[HELD_OUT - 1 :: HELD_OUT]
    return [one for n, one in enumerate(samples, start=1) if n % HELD_OUT], held


def warnings(samples: list[Sample], rest: list[Sample], nothing: str) -> list[str]:
    """Return why the report may say less than it seems to."""
    found = [f"{nothing}: give samples that differ in what is seen"] if nothing else []
    if len(samples) < FEW:
        found.append(
            f"{len(samples)} samples are few: a hundred that are like what callers send give "
            "better ranges and a surer comparison"
        )
    if len(rest) == len(samples):
        found.append("the one sample was calibrated on and compared: give at least two")
    return found


def size(folder: Path) -> int:
    """Return the bytes of a version, with weights that have a file of their own."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def put(made: Path, target: Path) -> None:
    """Rename the finished folder to its final name.

    Raises:
        Trouble: another process has made one of that name meanwhile.

    """
    if os.path.lexists(target):
        raise Trouble(f"{target} has been made meanwhile; name another folder with --output")
    made.rename(target)
