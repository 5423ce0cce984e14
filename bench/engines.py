"""Measure a run of each model in each engine, and compare the outputs.

    python -m bench.engines
    python -m bench.engines --int8 resnet=resnet_int8.onnx yolov5=yolov5_int8.onnx

Prints two tables as Markdown: CPU-ms of one run, the median of rounds in which all engines take
turns, with how many times as fast as ONNX Runtime in fp32 that is; and how far the answers are from
the latter's. Each model runs by itself, without a server, decoding or batches of other callers.
"""

from __future__ import annotations

import argparse
import base64
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.load import models, work
from bench.measure import say
from bench.report import processor, table
from bench.servers.sessions import Engine, has_bf16, opened

INT8 = ("resnet", "yolov5")
TEXTS = ((1, 9), (8, 9), (1, 128))  # of so many tokens each
SENTENCES = (  # besides the timed one
    "The capital of France is [MASK].",
    "London is the [MASK] of England.",
    "I went to the [MASK] to buy some bread.",
)
PICTURES = work.PROJECT / "tests" / "pictures"
UNKNOWN = "–"

Output = npt.NDArray[Any]


@dataclass(frozen=True)
class Row:
    """A model with inputs of one size."""

    name: str
    kind: work.Work
    file: Path
    inputs: work.Tensors
    samples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Column:
    """An engine; with files of its own where they are in int8."""

    name: str
    engine: Engine
    files: Mapping[str, Path] | None = None

    def file(self, row: Row) -> Path | None:
        """Return what it runs in a row, or None where it has no file for it."""
        return row.file if self.files is None else self.files.get(row.kind.modelname)


def main(argv: list[str]) -> int:
    """Print the tables."""
    options = parsed(argv)
    cache = options.cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    repository = models.lay_out(cache)
    columns = columns_with(dict(options.int8))
    times, answers = [], []
    for row in rows(repository):
        if row.kind.modelname not in options.models:
            continue
        sessions = {
            column.name: opened(file, column.engine, threads=options.threads)
            for column in columns
            if (file := column.file(row)) and (column.engine != Engine.OPENVINO_BF16 or has_bf16())
        }
        took = timed(row.inputs, sessions, options.rounds, options.seconds)
        say(f"{row.name}: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in took.items()))
        times.append([row.name, *(cell(took, column.name) for column in columns)])
        seen = compared(row, sessions)
        answers.append([row.name, *(seen.get(column.name, UNKNOWN) for column in columns[1:])])
    names = [column.name for column in columns]
    sys.stdout.write(
        f"CPU-ms of one run, {processor()}, threads: {options.threads}, rounds: {options.rounds}\n"
        f"\n{table(['model', *names], times)}\n"
        f"\nThe worst difference from {names[0]}\n"
        f"\n{table(['model', *names[1:]], answers)}\n"
    )
    return 0


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="*", choices=work.WORKS, default=list(work.WORKS))
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each engine in each round")
    parser.add_argument(
        "--int8", nargs="+", type=int8, default=[], metavar="MODEL=PATH", help="files in int8"
    )
    parser.add_argument("--cache", type=Path, default=work.PROJECT / ".cache" / "bench")
    return parser.parse_args(argv)


def int8(text: str) -> tuple[str, Path]:
    """Return a model's name and its file in int8.

    Raises:
        argparse.ArgumentTypeError: it is none of the models, or there is no such file.

    """
    name, _, path = text.partition("=")
    if name not in INT8 or not path:
        raise argparse.ArgumentTypeError(
            f"{text} is not MODEL=PATH with a MODEL of {', '.join(INT8)}: "
            f"write {INT8[0]}=model_int8.onnx"
        )
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}: write where {name}'s is")
    return name, Path(path)


def columns_with(files: Mapping[str, Path]) -> list[Column]:
    """Return the engines, ONNX Runtime in fp32 first."""
    columns = [Column(engine, engine) for engine in Engine]
    if files:
        columns.append(Column("ONNX Runtime int8", Engine.ONNXRUNTIME, files))
        columns.append(Column("OpenVINO int8", Engine.OPENVINO_F32, files))
    return columns


def rows(repository: Path) -> list[Row]:
    """Return what is run: two models of pictures, and two of texts in three sizes."""
    pictures = [
        {"img": base64.b64encode(file.read_bytes()).decode()}
        for file in sorted(PICTURES.glob("*.png"))
    ]
    found = []
    for kind, name in ((work.ResNet, "ResNet-50"), (work.YoloV5, "YOLOv5s")):
        model = kind(repository)
        inputs, _ = model.prepare(work.payload(model.modelname))
        found.append(Row(name, model, model.file, inputs, pictures))
    text = work.Bert(repository)
    shipped = work.PROJECT / "model_repository" / text.modelname / "1" / "model.onnx"
    for name, file in (("BERT-base shape", text.file), ("bert_base as shipped", shipped)):
        for count, tokens in TEXTS:
            payload = work.payload(text.modelname, tokens=tokens)
            inputs = work.joined([text.prepare(payload)[0]] * count)
            samples = [payload, *({"text": sentence} for sentence in SENTENCES)]
            found.append(Row(f"{name}, {count} × {tokens} tokens", text, file, inputs, samples))
    return found


def timed(
    inputs: work.Tensors, sessions: Mapping[str, Any], rounds: int, seconds: float
) -> dict[str, float]:
    """Return CPU milliseconds of a run by engine: the median over rounds."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        session.run(["output"], inputs)  # OpenVINO prepares itself for each new shape
    for _ in range(rounds):
        for name, session in sessions.items():
            end = time.perf_counter() + seconds
            while True:
                before = time.process_time()
                session.run(["output"], inputs)
                times[name].append((time.process_time() - before) * 1e3)
                if time.perf_counter() >= end:
                    break
    return {name: statistics.median(some) for name, some in times.items()}


def cell(took: Mapping[str, float], name: str) -> str:
    if name not in took:
        return UNKNOWN
    return f"{took[name]:.1f} ({took[Engine.ONNXRUNTIME] / took[name]:.2f}×)"


def compared(row: Row, sessions: Mapping[str, Any]) -> dict[str, str]:
    """Return how far each engine's outputs are from ONNX Runtime's in fp32."""
    differs: Callable[[Sequence[tuple[Output, Output]]], str] = logits
    inputs, kept = zip(*map(row.kind.prepare, row.samples), strict=True)
    if isinstance(row.kind, work.YoloV5):
        differs = partial(objects, row.kind, kept)
    # Of a text the scores at its masks; of others all.
    wanted = [its[1] if isinstance(row.kind, work.Bert) else ... for its in kept]
    outputs = {
        # Copied, for the next run writes where this one has.
        name: [
            np.array(session.run(["output"], one)[0][0][part])
            for one, part in zip(inputs, wanted, strict=True)
        ]
        for name, session in sessions.items()
    }
    right = outputs.pop(Engine.ONNXRUNTIME)
    return {name: differs(list(zip(right, came, strict=True))) for name, came in outputs.items()}


def logits(pairs: Sequence[tuple[Output, Output]]) -> str:
    """Compare scores, [classes] or [masks, words]."""
    most = max(float(np.abs(one - other).max()) for one, other in pairs)
    same = all(np.array_equal(one.argmax(-1), other.argmax(-1)) for one, other in pairs)
    return f"same top 1: {'yes' if same else 'no'}; logits {most:.3g}"


def objects(
    finder: work.YoloV5, kept: Sequence[Any], pairs: Sequence[tuple[Output, Output]]
) -> str:
    """Compare detected objects: their scores, and their boxes in pixels."""
    scores, pixels, same = 0.0, 0.0, True
    for its, (one, other) in zip(kept, pairs, strict=True):
        right, came = (finder.finish(output, its) for output in (one, other))
        same &= sorted(row[0] for row in right) == sorted(row[0] for row in came)
        for kind, score, *box in right:
            alike = [row for row in came if row[0] == kind]
            if alike:
                nearest = min(alike, key=lambda row: apart(row[2:], box))
                scores = max(scores, abs(nearest[1] - score))
                pixels = max(pixels, apart(nearest[2:], box))
    return f"same objects: {'yes' if same else 'no'}; scores {scores:.3g}, {pixels:.2g} pixels"


def apart(box: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest distance of two boxes' sides."""
    return max(abs(one - two) for one, two in zip(box, other, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
