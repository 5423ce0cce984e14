"""`dispatcher quantize MODEL`: write an int8 version and report its errors."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.engines.compare import Answer, difference, parameters
from backends.engines.runs import (
    Arrays,
    RecordedModels,
    RecordingSession,
    Run,
    onnxruntime_run,
    open_session,
)
from clients.base import Client, Environment
from clients.model_files.model_folders import authors_folder, has_versions, version_folders
from clients.tensors.agreement import (
    LEAST_COSINE,
    LEAST_IOU,
    LEAST_MASK_IOU,
    PROBABILITY,
    SHADE,
    SPREAD,
    Agreement,
    says_nothing,
)
from clients.tensors.client import TensorClient
from container.model_check.samples import Sample, ask, samples_in
from container.trouble import Trouble
from tool.engines.offline import compose_links, load_offline, settings_here
from tool.placing import beside, put
from tool.progress import announce

FILE = "model.onnx"
HELD_OUT = 4  # every fourth sample is kept for the comparison
FEW = 8  # samples, with fewer of which ranges and comparison mean little
WIDE = 10.0  # limits that the median sample is off by, from which on nothing is written
SHOWN = 5

LIMITS = {
    **dict.fromkeys(("classes", "words"), f"the same first, probabilities within {PROBABILITY}"),
    "texts": f"the same text, its score within {PROBABILITY}",
    "names": f"the same names in the text, probabilities within {PROBABILITY}",
    "objects": f"the same objects, IoU at least {LEAST_IOU}, scores within {PROBABILITY}",
    "vectors": f"cosine at least {LEAST_COSINE}",
    "pictures": f"IoU of a mask's classes at least {LEAST_MASK_IOU}, shades within {SHADE}",
    "values": f"within {SPREAD} of an output's range",
}
TEXT = """{model}, version {version}, in int8: {place}
  samples  calibrated on {calibrated_on}, compared on {compared_on}{objects}
  answers  {agree} of {shown} agree: {limits}
  median   {median} limits
{worst}\
  size     {megabytes[0]:.1f} to {megabytes[1]:.1f} MB
"""
WRITTEN = """
`dispatcher engines` says how fast it is here. Triton serves the newest version from the next load
on, unless `version_policy` in config.pbtxt names others. To go back remove {folder},
or write into config.pbtxt: version_policy {{ specific {{ versions: {version} }} }}
"""
NOT_WRITTEN = """
Nothing was written: {refusal}. More samples, like those that callers
send, may help, or --exclude for the layers at fault; --keep writes it all the same.
"""


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


def run(options: argparse.Namespace) -> int:
    """Quantize, and print the report; return 1 where answers are too far off, else 0."""
    with choose_model(options) as model, announce(f"calibrating and comparing {options.model}"):
        report, refusal = quantize_model(model, options)
    if options.json:
        sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
    else:
        sys.stdout.write(as_text(report, refusal))
    return 0 if report["written"] else 1


@dataclass(frozen=True)
class Chosen:
    """The model to be quantized; its client asks what `tap` runs."""

    name: str
    file: Path
    version: str
    folder: Path  # the model's own one, where its author has it
    client: Client
    tap: RecordingSession

    def answers(self, samples: Sequence[Sample], by: Run) -> Iterator[tuple[list[Arrays], Answer]]:
        """Yield the model's inputs for each sample, and the client's answer, as `by` runs it."""
        self.tap.by = by
        for sample in samples:
            result = ask(self.client, sample, parameters(self.client), self.version)
            inputs, outputs = self.tap.emptied()
            if not inputs:
                raise Trouble(
                    f"the client has not asked the model for the sample {sample.name}; take it out "
                    "of the folder"
                )
            # Where results are compared, outputs need not be kept: a YOLOv5's have 8.6 MB.
            yield inputs, (result, outputs if self.client.compared_as == "values" else [])


@contextmanager
def choose_model(options: argparse.Namespace) -> Iterator[Chosen]:
    """Give the model of a name, or an alias."""
    name = options.model
    named = {} if options.repository is None else {"MODEL_DIR": options.repository}
    found = settings_here(**named)
    if found.missing:
        raise Trouble(found.missing)
    with compose_links(found) as repository:
        registry = load_offline(repository, found.client_folders)
        asked = registry.name(name)
        if reason := registry.broken.get(asked):
            raise Trouble(f"the client of {name!r} does not work: {reason}")
        client = registry.clients.get(asked)
        model = client.served_by if client else asked
        if not (folder := repository / model).is_dir():
            there = ", ".join(sorted(path.name for path in repository.iterdir())) or "none"
            raise Trouble(
                f"there is no model {model!r}; there are: {there}. Another folder of models is "
                "named with --repository DIR"
            )
        author = authors_folder(folder)
        version, file = file_of(folder, author, options.version)
        tap = RecordingSession(file)
        environment = Environment(RecordedModels(repository, model, tap), repository)
        if client is None or type(client) is TensorClient:
            client = TensorClient(environment, model)
        else:
            client = type(client)(environment)
        yield Chosen(model, file, version, author, client, tap)


def file_of(folder: Path, author: Path, version: str) -> tuple[str, Path]:
    """Return a version, or the latest, and its file."""
    from tool.engines.int8 import is_int8

    versions = {path.name: path for path in version_folders(folder) if (path / FILE).is_file()}
    if not versions:
        raise Trouble(
            f"{author} is no ONNX model: there is no file 1/{FILE}, which alone can be quantized"
        )
    if version and version not in versions:
        there = ", ".join(sorted(versions, key=int))
        raise Trouble(f"--version is {version!r}; {author} has {FILE} in version {there}")
    its = version or max(versions, key=int)
    file = versions[its].resolve() / FILE
    if is_int8(file):
        older = "" if version else "; name one in single precision with --version"
        raise Trouble(f"{folder.name!r}, version {its}, is int8 already{older}")
    return its, file


def target_of(model: Chosen, output: Path | None) -> Path:
    if output is None:
        if not has_versions(model.folder):
            raise Trouble(
                f"{model.folder} has no version folders; move its {FILE} into "
                f"{model.folder / '1'}, or name a new folder with --output"
            )
        numbers = [int(p.name) for p in model.folder.iterdir() if p.name.isdigit()]
        output = model.folder / str(max(numbers) + 1)
    if output.exists():
        raise Trouble(f"{output} is there already; name another folder with --output")
    return output.absolute()


def quantize_model(model: Chosen, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Write the int8 version, unless its answers are far off; return the report, and why not."""
    from tool.engines import int8

    target = target_of(model, options.output)
    samples = samples_in(options.samples)
    held = samples[HELD_OUT - 1 :: HELD_OUT] or samples[-1:]
    rest = [one for one in samples if one not in held] or samples
    with beside(target.parent) as place:
        made = place / target.name
        made.mkdir()
        exact = model.tap.by
        inputs = (one for taken, _ in model.answers(rest, exact) for one in taken)
        int8.quantize(model.file, made / FILE, inputs, options.exclude)
        known = [answer for _, answer in model.answers(held, exact)]
        after = onnxruntime_run(open_session(made / FILE))
        found = [
            difference(model.client, expected, got)
            for expected, (_, got) in zip(known, model.answers(held, after), strict=True)
        ]
        shown = [one for one in found if one.shows != ""]
        median = statistics.median(one.difference for one in shown or found)
        refusal = find_refusal(found, shown, median)
        sizes = [size(folder) for folder in (model.file.parent, made)]
        if is_written := not refusal or options.keep:
            put(place, target.parent, [Path(target.name)])
    pairs = sorted(
        zip(held, found, strict=True), key=lambda pair: (pair[1].passes, -pair[1].difference)
    )
    report = {
        "model": model.name,
        "kind": model.client.compared_as,
        "version": model.version,
        "file": str(target / FILE),
        "written": is_written,
        "calibrated_on": len(rest),
        "compared_on": len(held),
        "without_object": len(found) - len(shown),
        "agree": sum(one.passes for one in shown),
        "median_difference": finite(median),
        "differences": [
            {
                "sample": sample.name,
                "passes": one.passes,
                "worst": one.worst,
                "difference": finite(one.difference),
            }
            for sample, one in pairs
        ],
        "bytes_before": sizes[0],
        "bytes_after": sizes[1],
        "warnings": warnings(samples, says_nothing(found)),
    }
    return report, refusal


def find_refusal(found: Sequence[Agreement], shown: Sequence[Agreement], median: float) -> str:
    """Return why the version is not worth serving; empty where the author may judge."""
    if found and not shown:
        return "no compared sample has an object, by which the answers could be compared"
    if not median <= WIDE:
        return f"the median sample is off by more than {WIDE:g} limits"
    return ""


def warnings(samples: Sequence[Sample], nothing: str) -> list[str]:
    """Return why the report may say less than it seems to."""
    found = [f"{nothing}: give samples that differ in what is seen"] if nothing else []
    if len(samples) < FEW:
        found.append(
            f"{len(samples)} samples are few: a hundred that are like what callers send give "
            "better ranges and a surer comparison"
        )
    if len(samples) == 1:
        found.append("the one sample was calibrated on and compared: give at least two")
    return found


def size(folder: Path) -> int:
    """Return the bytes of a version, with weights that have a file of their own."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def finite(number: float) -> float | None:
    """Return a number as JSON can hold it."""
    return round(number, 4) if math.isfinite(number) else None


def as_text(report: Mapping[str, Any], refusal: str) -> str:
    """Return a report, and what the author may do now, as lines for a reader."""
    off, without = report["median_difference"], report["without_object"]
    text = TEXT.format(
        **report,
        place=report["file"] if report["written"] else "not written",
        objects=f", {without} of them without an object" if without else "",
        shown=report["compared_on"] - without,
        limits=LIMITS[report["kind"]],
        median="far beyond the" if off is None else f"{off:.2f} of these",
        megabytes=[report[side] / 1e6 for side in ("bytes_before", "bytes_after")],
        worst="".join(
            f"           {one['sample']}: {one['worst']}{'' if one['passes'] else ' (too much)'}\n"
            for one in report["differences"][:SHOWN]
        ),
    )
    after = WRITTEN if report["written"] else NOT_WRITTEN
    after = after.format(**report, folder=Path(report["file"]).parent, refusal=refusal)
    return "".join(f"warning: {one}\n" for one in report["warnings"]) + text + after
