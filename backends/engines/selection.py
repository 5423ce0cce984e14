"""Select the engine that runs a model best on this machine.

In a process of its own: an engine may crash on a model, and the memory that the comparison needs is
given back at its end.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backends import engine_choice
from backends.batching.item import Item
from backends.batching.row_independence import make_up_rows
from backends.engine_choice import (
    AUTO,
    BF16,
    EXACT,
    F32,
    ONNXRUNTIME,
    OPENVINO,
    EngineChoice,
    EnginePreference,
)
from backends.engines.compare import difference, parameters
from backends.engines.runs import Arrays, RecordedModels, RecordingSession, Run, openvino_run
from backends.measure_runs import MeasuredRuns
from backends.model_config import DYNAMIC, FileSignature, ModelConfigError, files_of
from backends.onnxruntime.session import OnnxFile
from backends.onnxruntime.session_settings import SessionSettings
from backends.openvino import session as openvino
from backends.schedule import open_on_cpu, schedule_runs
from clients.base import Client, Environment
from clients.plugins.registry import load_clients
from clients.tensors.agreement import SPREAD, Agreement, says_nothing, tensors, worst_of
from clients.tensors.client import name_examples
from container.model_check.samples import Sample, ask, samples_in
from container.trouble import Trouble
from dispatcher.settings import read_settings

LIMIT = 1e-3
"""Of an output's range: how far it may be from ONNX Runtime's in f32, to be the same."""

LEAST_GAIN = 0.97
"""OpenVINO runs what it runs at this speed of ONNX Runtime's at least: it has all cores for a run
that is alone, and its weights are mapped."""

INT8 = ("i8", "u8", "i4", "u4")
"""OpenVINO's names of the types of such weights."""

BEYOND = {
    "TYPE_STRING": "it has tensors of text",
    "TYPE_FP64": "it has tensors in double precision, which OpenVINO computes in single",
}
"""Why OpenVINO does not run a model with tensors of a type."""

WIDE = 2**40 + 5
REPEATS = ("Loop", "TensorIterator")
"""OpenVINO's names of the operators that would run so many times."""

MOST_JOINED = 16  # requests in a run

TIMED_S = 1.5  # for each engine, at most
TIMES = 5
LEAST_TIMES = 2


@dataclass(frozen=True)
class Reference:
    """The reference: outputs of ONNX Runtime in f32, which `exact` runs.

    `results` are of the client, with the samples that they are of, and what `tap` recorded.
    """

    exact: Run
    client: Client | None
    results: Sequence[tuple[Sample, tuple[Any, list[Arrays]], list[Arrays]]]
    given: Sequence[Arrays]
    outputs: Sequence[Arrays]
    tap: RecordingSession
    is_int8: bool


def select_engine(
    folder: Path, file: Path, asked: EnginePreference, *, measures_runs: bool = False
) -> EngineChoice:
    """Compare the engines on this machine and return the best for a model."""
    signature = OnnxFile(file).signature
    stays = partial(EngineChoice, ONNXRUNTIME, F32, signature=signature)
    types = {spec.data_type for spec in (*signature.inputs, *signature.outputs)}
    if beyond := [reason for kind, reason in BEYOND.items() if kind in types]:
        return stays(beyond[0])
    known = answers(folder, file, signature)
    if not known.given:
        return stays("it has no samples, and cannot be run with made-up inputs")
    found = compare_engines(known, file, asked, stays)
    if not measures_runs:
        return found
    with suppress(Exception):  # each engine has its own
        return replace(found, runs=measure_on(found, file, signature, known.given[0]))
    return found


def measure_on(
    found: EngineChoice, file: Path, signature: FileSignature, given: Arrays
) -> MeasuredRuns:
    """Measure how the runs of a model share the cores on an engine.

    Raises Exception: what the engine raises, or where others need the cores.
    """
    size = sum(one.stat().st_size for one in files_of(file))
    config = {"input": [{"dims": list(one.shape[1:])} for one in signature.inputs]}
    session = open_on_cpu(file, found, schedule_runs(config, None, size), SessionSettings())
    is_batch = all(one.shape[:1] == (DYNAMIC,) for one in signature.inputs)
    item = Item(given, tuple(one.name for one in signature.outputs))
    try:
        return session.measure(item, MOST_JOINED if is_batch else 0)
    finally:
        session.close()


def compare_engines(
    known: Reference, file: Path, asked: EnginePreference, stays: Callable[[str], EngineChoice]
) -> EngineChoice:
    """Return OpenVINO in the fastest precision that passes; else what `stays` makes of a reason."""
    if asked.engine == ONNXRUNTIME:
        return stays("as its configuration says")
    wide = answer_wide_integers(file, known.given[0], known.exact)
    wanted = BF16 if asked.precision == AUTO else F32
    candidates = engine_choice.precisions(asked, engine_choice.processor())
    reasons = [f"this processor has no {wanted}"] if wanted not in candidates else []
    for precision in candidates:  # the first is the fastest
        try:
            speedup, worst = measure(known, file, precision, wide)
        except Trouble as error:
            reasons.append(f"OpenVINO in {precision} {error}")
            continue
        if speedup >= LEAST_GAIN or asked.engine == OPENVINO:
            reason = "" if precision == wanted else "; ".join(reasons)
            return replace(
                stays(reason),
                engine=OPENVINO,
                precision=precision,
                speedup=round(speedup, 2),
                difference=worst,
            )
        reasons.append(f"OpenVINO in {precision} is {speedup:.2f} times as fast")
    return stays("; ".join(reasons))


def measure(
    known: Reference, file: Path, precision: str, wide: tuple[Arrays, Arrays] | None
) -> tuple[float, str]:
    """Compare OpenVINO with the reference; return its speedup, and the worst difference in words.

    Raises Trouble where it cannot run the model, or has other answers.
    """
    try:
        run = openvino_run(file, precision)
        found = compare_with(known, run, file, is_exact=precision == F32)
        if wide and found.passes:
            found = worst_of([found, tensors(wide[1], run(wide[0]))])
        if found.passes:
            return faster(known.exact, run, known.given[0]), found.worst
    except Trouble:
        raise
    except Exception as error:  # such as an operator that is missing
        raise Trouble(f"cannot: {openvino.unreadable(file, error).what}") from error
    raise Trouble(f"has other answers: {found.worst}")


def answers(folder: Path, file: Path, signature: FileSignature) -> Reference:
    """Return a model's outputs for its samples, or for made-up inputs.

    Raises Trouble: one of the model's own samples cannot be read, or its client refuses it.
    """
    tap = RecordingSession(file)
    exact = tap.by
    client = client_of(folder, tap)
    results = results_of(client, folder, file, tap) if client else []
    given = [one for *_, some in results for one in some]
    outputs = [one for _, (_, some), _ in results for one in some]
    if not given:
        client = None
        given, outputs = (
            list(map(dict, side)) for side in make_up_rows(signature, lambda x, _: exact(x))
        )
    return Reference(exact, client, results, given, outputs, tap, has_int8(file))


def results_of(
    client: Client, folder: Path, file: Path, tap: RecordingSession
) -> list[tuple[Sample, tuple[Any, list[Arrays]], list[Arrays]]]:
    """Return a client's result for its example and each sample, with the model's tensors.

    Raises Trouble: one of the model's own samples cannot be read, or the client refuses it.
    """
    results, own = [], folder / engine_choice.SAMPLES
    examples = [Sample(f"the {name}", partial(dict, one)) for name, one in name_examples(client)]
    for sample in (*examples, *(samples_in(own) if own.is_dir() else ())):
        try:
            result = ask(client, sample, parameters(client), file.parent.name)
        except Trouble:
            if sample not in examples:
                raise
            tap.emptied()
            continue  # the class asks other models too
        given, outputs = tap.emptied()
        results.append((sample, (result, outputs), given))
    return results


def has_int8(file: Path) -> bool:
    """Whether a model has weights in int8, which each engine rounds otherwise."""
    try:
        nodes = openvino.read(file).get_ops()
    except ModelConfigError:  # which is the reason why OpenVINO does not run it
        return False
    constants = (node.output(0) for node in nodes if node.get_type_name() == "Constant")
    return any(
        one.get_element_type().get_type_name() in INT8 and one.get_partial_shape().rank.get_length()
        for one in constants
    )


def answer_wide_integers(file: Path, given: Arrays, exact: Run) -> tuple[Arrays, Arrays] | None:
    """Return inputs with integers beyond 32 bits, and the outputs for them.

    OpenVINO computes in 32 bits, and raises no error for a larger number. None where the model
    takes no such numbers, as where they are those of words, or of repetitions.
    """
    wide = {
        name: np.full_like(array, WIDE)
        for name, array in given.items()
        if array.dtype in (np.int64, np.uint64)
    }
    try:
        operators = {node.get_type_name() for node in openvino.read(file).get_ops()}
        if not wide or not operators.isdisjoint(REPEATS):
            return None
        return {**given, **wide}, exact({**given, **wide})
    except Exception:  # each engine has its own
        return None


def client_of(folder: Path, tap: RecordingSession) -> Client | None:
    """Return a model's client, which uses the recording session; None where none works."""
    with tempfile.TemporaryDirectory(prefix="dispatcher-") as beside:
        repository = Path(beside).resolve()
        (repository / folder.name).symlink_to(folder.resolve())
        server = RecordedModels(repository, folder.name, tap)
        with redirect_stdout(sys.stderr):  # standard output is for the choice
            registry = load_clients(
                Environment(server, repository), read_settings(os.environ).client_folders
            )
        tap.emptied()  # a class may ask its model as it is made
        found = (one for one in registry.clients.values() if one.served_by == folder.name)
        return next(found, None)


def compare_with(known: Reference, run: Run, file: Path, *, is_exact: bool) -> Agreement:
    """Compare an engine's outputs with the reference.

    In f32 outputs have to be the same, to `LIMIT`; in another precision, or where weights are in
    int8, callers have to see the same: see `clients.tensors.agreement`.

    Raises Trouble: there is nothing that callers could see, as where no sample has an object.
    """
    outputs = [run(one) for one in known.given]
    limit = LIMIT if is_exact and not known.is_int8 else SPREAD
    found = worst_of([tensors(*pair, limit) for pair in zip(known.outputs, outputs, strict=True)])
    client = known.client
    is_another = not math.isfinite(found.difference)  # another shape, or what is no number
    if client is None or is_another or (is_exact and not known.is_int8):
        return found
    # However near the tensors are: of two classes that are nearly equal the other may be first.
    known.tap.by = run
    seen = []
    for sample, expected, _ in known.results:
        result = ask(client, sample, parameters(client), file.parent.name)
        seen.append(difference(client, expected, (result, known.tap.emptied()[1])))
    if why := says_nothing(seen):
        if is_exact:  # the outputs have to be the same then
            return found
        raise Trouble(f"was not compared: {why}; put others into {engine_choice.SAMPLES}/")
    return worst_of(seen)


def faster(exact: Run, run: Run, given: Arrays) -> float:
    """Return the speedup of a run by processor time."""
    best = [math.inf, math.inf]
    end = time.monotonic() + 2 * TIMED_S
    for number in range(TIMES):
        for place, one in enumerate((exact, run)):
            begun = time.process_time()
            one(given)
            best[place] = min(best[place], time.process_time() - begun)
        if number + 1 >= LEAST_TIMES and time.monotonic() > end:
            break
    return best[0] / best[1]


def main(
    folder: str, file: str, engine: str = AUTO, precision: str = EXACT, runs: str = ""
) -> None:
    """Print the choice for a model, in JSON; its engine and precision may be asked for."""
    logging.disable(logging.CRITICAL)
    try:
        asked = EnginePreference(engine, precision)
        found = select_engine(Path(folder), Path(file), asked, measures_runs=bool(runs))
    except Trouble as error:
        sys.exit(str(error))
    sys.stdout.write(f"{json.dumps(asdict(found))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
