"""A model that OpenVINO runs: its tensors, and runs on plain arrays."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, LifoQueue
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import ByRows
from backends.machine import allocator
from backends.machine.allocator import WORTHWHILE
from backends.machine.shared_folder import hold_lock
from backends.model_config import ModelConfigError, files_of
from backends.onnx_files.rows import ALL, NUMBERS, of_all_or_rows, take_rows, with_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from backends.batching.item import RunRows, Tensors

WEIGHTS = ".bin"
"""The suffix of the file beside an `.xml` that has the weights."""

EXACT = "f32"
"""The precision in which answers are those of ONNX Runtime; OpenVINO takes bf16 by itself where the
processor has it."""

# Properties with which a model is compiled:
# https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
THREADS, STREAMS = "INFERENCE_NUM_THREADS", "NUM_STREAMS"


class OpenVinoSession:
    """An open model; as many threads may run it at a time as it has streams.

    `shared` is a folder for what the instances of one container share, if any.

    Raises ModelConfigError: OpenVINO cannot read or compile the file.
    """

    def __init__(
        self, file: Path, properties: Mapping[str, Any], shared: Path | None = None
    ) -> None:
        model, self._mapped = read_mapped(file, shared)
        self._made = None if self._mapped == file else self._mapped
        try:
            self._compiled = core().compile_model(model, "CPU", dict(properties))
        except Exception as error:
            self._remove_made()
            raise unreadable(file, error) from error
        del model
        # An input may have the names of tensors that were the same, besides its own.
        self._order = [port.names for port in self._compiled.inputs]
        numbers = [name for one in self._order for name in one if name.startswith(NUMBERS)]
        self._of_rows = tuple(name.removeprefix(NUMBERS) for name in numbers)
        self.by_rows = ByRows(self._of_rows, self.run) if self._of_rows else None
        self._places = {
            name: place for place, port in enumerate(self._compiled.outputs) for name in port.names
        }
        self.at_once = int(self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self._free: LifoQueue[Any] = LifoQueue()
        for _ in range(self.at_once):
            self._free.put(self._compiled.create_infer_request())
        self._is_warm = False
        self._sizes, self._lean = allocator.Sizes(), sys.maxsize
        allocator.give_back()
        allocator.forget(self._mapped.with_suffix(WEIGHTS))

    def run(
        self, inputs: Tensors, outputs: Sequence[str], rows: Mapping[str, RunRows] = ALL
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs.

        Raises ValueError: one of these has other dimensions. Raises Exception: what OpenVINO
        raises.
        """
        fed, names = with_numbers(self._of_rows, inputs, outputs, rows)
        shrinks = self._sizes.shrinks(inputs)
        request = self._free.get()
        try:
            request.infer(
                [
                    np.ascontiguousarray(fed[name])
                    for names_of_one in self._order
                    for name in names_of_one & fed.keys()
                ],
                share_inputs=True,
            )
            answer = {
                name: request.get_output_tensor(self._places[name]).data.copy() for name in names
            }
        finally:
            self._free.put(request)
            if shrinks and self._lean < allocator.resident() - WORTHWHILE:
                self._release_memory()
        if not (self._is_warm or shrinks):  # it packs weights when it runs for the first time
            self._is_warm = True
            allocator.forget(self._mapped.with_suffix(WEIGHTS))
            self._lean = min(self._lean, allocator.resident())
        return of_all_or_rows(answer, rows)

    def _release_memory(self) -> None:
        """Give memory back, which OpenVINO refuses while the model runs."""
        idle: list[Any] = []
        with suppress(Empty):
            while len(idle) < self.at_once:
                idle.append(self._free.get_nowait())
        if len(idle) == self.at_once:
            self._compiled.release_memory()
            allocator.give_back()
            self._is_warm = False
        for request in idle:
            self._free.put(request)

    def close(self) -> None:
        self._free = LifoQueue()
        self._compiled = None
        self._remove_made()

    def _remove_made(self) -> None:
        """Remove what was made for all instances; those that have it open keep it."""
        if self._made:
            for file in (self._made, self._made.with_suffix(WEIGHTS)):
                file.unlink(missing_ok=True)


def computing_in(precision: str) -> dict[str, Any]:
    """Return the properties of a precision, "f32" or "bf16".

    In f32 nothing is computed in fewer bits. By itself OpenVINO rounds what is multiplied with
    weights in int8 to int8 as well, which is twice as fast and gives other answers.
    """
    exact = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if precision == EXACT else {}
    return {"INFERENCE_PRECISION_HINT": precision, **exact}


def properties(precision: str, threads: int, at_once: int) -> dict[str, Any]:
    """Return what a model is compiled with, for `at_once` runs that share the threads."""
    return {
        **computing_in(precision),
        THREADS: threads,
        STREAMS: at_once,
        # Each process would pin its threads to the same cores as all others.
        "ENABLE_CPU_PINNING": False,
    }


def read(file: Path) -> Any:
    """Return a file as an `openvino.Model`.

    Raises ModelConfigError: OpenVINO cannot read it.
    """
    try:
        return core().read_model(file)
    except Exception as error:
        raise unreadable(file, error) from error


def read_by_rows(file: Path, folder: Path | None = None) -> Any:
    """Return a file as an `openvino.Model`, whose outputs are made by rows where that is possible.

    What is made of the file is in a folder meanwhile: from memory it would be copied once more.

    Raises ModelConfigError: OpenVINO cannot read it.
    """
    made, names = take_rows(file, inlined=True)
    if names:
        with (
            suppress(OSError, RuntimeError),
            NamedTemporaryFile(suffix=".onnx", dir=folder) as part,
        ):
            part.write(made)
            part.flush()
            del made
            return core().read_model(part.name)
    return read(file)


def read_mapped(file: Path, shared: Path | None) -> tuple[Any, Path]:
    """Return a model whose weights are mapped where that is possible, and the file that it is in.

    Weights of ONNX files are read into each process's own memory; those in OpenVINO's own format
    are mapped, are there once for all instances, and need not stay in memory once they are packed
    for the processor. So it is made once in the folder that instances share.
    """
    if shared is None:
        return read_by_rows(file), file
    known = [
        (str(f), s.st_size, s.st_mtime_ns, s.st_ino) for f in files_of(file) if (s := f.stat())
    ]
    made = shared / "ir" / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.xml"
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(made.with_suffix(".lock")):  # until it is open: another may remove it
            if not made.exists():
                _save(file, made)
            return read(made), made
    except OSError as error:
        sys.stderr.write(f"the weights of '{file}' are not mapped: {error}\n")
        return read_by_rows(file), file


def unreadable(file: Path, error: Exception) -> ModelConfigError:
    """Return the error for a file that OpenVINO cannot read or compile."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from", "Check "))]
    reason = (said or lines or [type(error).__name__])[-1][:200]
    return ModelConfigError(f"OpenVINO cannot open '{file}': {reason}")


def _save(file: Path, made: Path) -> None:
    """Write a model in OpenVINO's own format."""
    part, model = made.with_suffix(".part.xml"), read_by_rows(file, made.parent)
    import openvino

    try:
        openvino.save_model(model, part, compress_to_fp16=False)
        part.with_suffix(WEIGHTS).rename(made.with_suffix(WEIGHTS))
        part.rename(made)
    except RuntimeError as error:  # a full disk is one to OpenVINO
        raise OSError(str(unreadable(made, error))) from error
    finally:
        for left in (part, part.with_suffix(WEIGHTS)):
            left.unlink(missing_ok=True)


@cache
def core() -> Any:
    """Return the process's one `openvino.Core`.

    OpenVINO's plug-in for CPUs sets a stack for signal handlers when it is loaded, and sets the one
    before it when it is unloaded, which may have been freed by then. A plug-in belongs to a `Core`:
    with several, the next signal, such as Ctrl-C, ended the process by a segmentation fault.

    Raises ModelConfigError: OpenVINO is not there.
    """
    # The package that `pip` installs with it would send statistics to OpenVINO's makers at each
    # import. Where a module is None, importing it fails, and OpenVINO does without.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    # Only where a file is opened: Triton starts one more process for each model, which completes
    # its configuration and often has nothing to open.
    try:
        import openvino
    except ImportError as error:
        raise ModelConfigError(
            f"OpenVINO cannot be imported ({error}).",
            "install it in the environment of the container: pip install --no-deps openvino",
        ) from error
    # Its first use sets a static of C++ up, for which two threads at once wait for each other.
    openvino.Type.f32.to_dtype()
    return openvino.Core()
