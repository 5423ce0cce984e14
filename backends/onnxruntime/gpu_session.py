"""A session of ONNX Runtime for one model instance on a GPU, on plain arrays."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import ByRows
from backends.model_config import DYNAMIC, ModelConfigError, files_of, has_operator, max_batch_size
from backends.onnx_files.proto import FLOATS, is_half, single_operator
from backends.onnxruntime import session

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import RunRows, Tensors
    from backends.model_config import FileSignature
    from backends.onnxruntime.execution_providers import Provider
    from backends.onnxruntime.session_settings import SessionSettings

AT_ONCE = 2
"""Runs of one instance: the copies and the Python of one overlap the other's arithmetic. A second
instance of BERT-base, which does the same for twice the memory, brought 1.7 times the answers."""

CONVOLUTIONS = (b'"\x04Conv', b'"\x09FusedConv', b'"\x0dConvTranspose')
"""What is planned for a shape, as a graph's file has it: `NodeProto.op_type`, field 4 of a node."""

LARGE = 512 * 2**20
"""Bytes of a model from which it has two sessions and not more: each has its own weights."""

TF32_SINCE = 8  # the major number of the compute capability, which is this attribute in cuda.h:
COMPUTE_CAPABILITY_MAJOR = 75

PICKERS = ("GatherND", "places"), ("Slice", "starts", "ends", "axes")
"""What picks rows of an output, and what one of its columns, with their inputs beside it."""


class GpuSession:
    """An open model on a GPU; `at_once` threads may run it at a time.

    ONNX Runtime plans a convolution whenever its shape is another than in the run before, which
    takes 0.1 to 1.4 s. So where only the batch's size varies each of some sizes has a session of
    its own, which has run before the first request, and a batch is filled up to the next size with
    copies of its rows. A size of 0 is that of a session for all.

    Raises ModelConfigError: ONNX Runtime cannot use the GPU or read the file, or a tensor's type is
    not served.
    """

    on_cpu = False
    joined = True

    def __init__(
        self,
        file: Path,
        config: Mapping[str, Any],
        settings: SessionSettings,
        providers: Sequence[Provider],
    ) -> None:
        runtime, options = session.import_onnxruntime(), session.session_options(settings)
        # Else each process warns, coloured for a terminal, that CUDA is no plug-in.
        runtime.set_default_logger_severity(session.ERROR)
        name, chosen = providers[0]
        first = session.open_model(file, options, providers)
        if name not in first.get_providers():
            raise ModelConfigError(
                f"there is a GPU, but ONNX Runtime cannot use its {name}; it has written why.",
                "install the library or the driver that it names, or write KIND_CPU",
            )
        # As ONNX Runtime calls it: "cuda", and its number.
        self._device = name.removesuffix("ExecutionProvider").lower(), int(chosen["device_id"])
        self.at_once = 1 if "sequence_batching" in config else AT_ONCE
        self.precision = find_precision(file, chosen)
        self.signature = session.read_signature(first, file)
        sizes = batch_sizes(file, self.signature, max_batch_size(config))
        self._sessions = {sizes[0]: first}
        for size in sizes[1:]:
            self._sessions[size] = session.open_model(file, options, providers)
        self._pickers = {
            spec.name: [
                runtime.InferenceSession(
                    single_operator(FLOATS[spec.data_type], *one), options, list(providers)
                )
                for one in PICKERS
            ]
            for spec in self.signature.outputs
            if len(spec.shape) == 3 and spec.data_type in FLOATS
        }
        self.by_rows = ByRows(self._pickers, self.run_rows, self.run_above)
        outputs = [spec.name for spec in self.signature.outputs]
        with ThreadPoolExecutor(self.at_once) as pool:  # as many as will run: each needs memory
            for size in filter(None, sizes):
                zeros = {
                    spec.name: np.zeros((size, *spec.shape[1:]), spec.dtype)
                    for spec in self.signature.inputs
                }
                with suppress(Exception):  # it takes no zeros: the first request is planned for
                    list(pool.map(self.run, [zeros] * self.at_once, [outputs] * self.at_once))

    def run(
        self, inputs: Tensors, outputs: Sequence[str], stay: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the named outputs; those that `stay` on the GPU as an `OrtValue`, filled up.

        Raises Exception: what ONNX Runtime raises.
        """
        count = 0 if 0 in self._sessions else len(next(iter(inputs.values())))
        size, opened = next(one for one in self._sessions.items() if one[0] >= count)
        if count < size:
            inputs = {name: np.resize(x, (size, *x.shape[1:])) for name, x in inputs.items()}
        if stay:
            binding = opened.io_binding()
            for name, array in inputs.items():
                binding.bind_cpu_input(name, np.ascontiguousarray(array))
            for name in outputs:
                binding.bind_output(name, *(self._device if name in stay else ()))
            opened.run_with_iobinding(binding)
            found = zip(outputs, binding.get_outputs(), strict=True)
            came = {name: one if name in stay else one.numpy() for name, one in found}
        else:
            came = dict(zip(outputs, opened.run(list(outputs), dict(inputs)), strict=True))
        if count < size:
            for name in {*outputs} - {*stay}:
                if came[name].shape[:1] == (size,):
                    came[name] = came[name][:count]
        return came

    def run_rows(
        self, inputs: Tensors, outputs: Sequence[str], rows: Mapping[str, RunRows]
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs, of some only these rows, which are picked on the GPU.

        Raises ValueError: one of these has other dimensions. Raises Exception: as `run` does.
        """
        came = self.run(inputs, outputs, rows)
        for name, wanted in rows.items():
            (count, longest), dims = wanted.dims, came[name].shape()
            if dims[0] < count or dims[1:-1] != [longest]:
                raise ValueError(f"output '{name}' has shape {dims}.")
            places = np.stack(np.divmod(np.asarray(wanted.numbers, np.int64), longest), axis=1)
            came[name] = _ask(self._pickers[name][0], came[name], places=places)
        return came

    def run_above(
        self, inputs: Tensors, outputs: Sequence[str], above: Mapping[str, tuple[int, float]]
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs, of some only rows with more than a number in a column.

        These have the shape [batch, most rows, columns]: where others have more, zeros follow.

        Raises ValueError: one of these has no such column. Raises Exception: as `run` does.
        """
        count = len(next(iter(inputs.values())))
        came = self.run(inputs, outputs, above)
        for name, (column, least) in above.items():
            table = came[name]
            size, *_, columns = dims = table.shape()
            if len(dims) != 3 or size < count or not 0 <= column < columns:
                raise ValueError(f"output '{name}' has shape {dims}.")
            picks, slices = self._pickers[name]
            one = {"starts": [column], "ends": [column + 1], "axes": [2]}
            numbers = _ask(slices, table, **one)[:count, :, 0]
            places = np.argwhere(numbers > least)
            counts = np.bincount(places[:, 0], minlength=count)
            order = np.arange(len(places)) - np.repeat(counts.cumsum() - counts, counts)
            came[name] = np.zeros((count, counts.max(initial=0), columns), numbers.dtype)
            if len(places):  # of no rows a GPU makes an error
                came[name][places[:, 0], order] = _ask(picks, table, places=places)
        return came

    def close(self) -> None:
        self._sessions, self._pickers = {}, {}


def _ask(picker: Any, table: Any, **integers: Any) -> NDArray[Any]:
    """Return what is picked from a table that stays where it is."""
    binding = picker.io_binding()
    binding.bind_ortvalue_input("table", table)
    for name, numbers in integers.items():
        binding.bind_cpu_input(name, np.asarray(numbers, np.int64))
    binding.bind_output("output")
    picker.run_with_iobinding(binding)
    output: NDArray[Any] = binding.copy_outputs_to_cpu()[0]
    return output


def batch_sizes(file: Path, signature: FileSignature, most: int) -> Sequence[int]:
    """Return the sizes of batches, at `most`, that have a session each; 0 for one for all."""
    if not (most and has_operator(file, CONVOLUTIONS)) or any(
        DYNAMIC in spec.shape[1:] or spec.shape[:1] != (DYNAMIC,) or spec.data_type == "TYPE_STRING"
        for spec in signature.inputs
    ):
        return [0]
    is_large = sum(one.stat().st_size for one in files_of(file)) > LARGE
    powers = [1 << exponent for exponent in range(1 if is_large else most.bit_length())]
    return [*(size for size in powers if size < most), most]


def find_precision(file: Path, options: Mapping[str, str]) -> str:
    """Return in what CUDA's provider, with these options, computes products: fp16, tf32 or f32."""
    major = ctypes.c_int()
    with suppress(OSError, AttributeError):  # no driver
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuInit(0)
        device = int(options["device_id"])
        cuda.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
    if is_half(file):
        return "fp16"
    return "tf32" if major.value >= TF32_SINCE and options.get("use_tf32") != "0" else "f32"
