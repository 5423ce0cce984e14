"""A TorchScript module for one model instance, run on plain arrays."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.tensor_shapes import conform
from backends.model_config import FileSignature, ModelConfigError
from backends.pytorch.torchscript_settings import (
    DATA_TYPES,
    input_order,
    output_indices,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import Tensors

DEFAULT_FILE = "model.pt"

TRACE = (
    "save the model as TorchScript: torch.jit.trace(model, example).save('model.pt'); what "
    "torch.save writes needs the model's own code"
)

_HERE = "<--- HERE"
_REASON = re.compile(r"^[\w.]+: .*", re.MULTILINE | re.DOTALL)
"""What TorchScript's errors end with, behind the places in the code that have led to it."""


def import_torch() -> Any:
    """Return the module `torch`; raise ModelConfigError where it is not installed."""
    # OpenMP's threads spin between two runs unless this is set before they are loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError as error:
        raise ModelConfigError(
            f"a TorchScript model was given, but torch cannot be imported ({error}): install it "
            "into the environment of the container (pip install torch), or use NVIDIA's Triton "
            "image, or export the model to ONNX."
        ) from error
    return torch


def device_of(torch: Any, kind: str, device_id: int) -> Any:
    """Return an instance's `torch.device`; None leaves it to the file."""
    if kind == "MODEL":
        return None
    if kind in ("GPU", "AUTO") and torch.cuda.is_available():
        return torch.device("cuda", device_id)
    if kind == "GPU":
        raise ModelConfigError(
            "the instance is of kind KIND_GPU, but the installed PyTorch finds no CUDA device: "
            "expected is a PyTorch for CUDA and a GPU, or KIND_CPU."
        )
    return torch.device("cpu")


class TorchScriptModule:
    """The loaded module; one thread at a time may run it."""

    at_once = 1
    by_rows = None
    signature = None  # the configuration alone says what its tensors are

    def __init__(
        self,
        file: Path,
        signature: FileSignature,
        threads: tuple[int, int],
        kind: str,
        device_id: int,
    ) -> None:
        """Load the file and match the configured names with forward's arguments.

        Raises ModelConfigError: there is no torch, no such file, or its forward does not fit.
        """
        self._torch = import_torch()
        device = device_of(self._torch, kind, device_id)
        if not file.is_file():
            raise ModelConfigError(f"the model's file was expected at '{file}', but there is none.")
        self._file = file
        self._told: set[str] = set()
        self._torch.set_num_threads(threads[0])
        # PyTorch takes this number once, before its first parallel work.
        with contextlib.suppress(RuntimeError):
            self._torch.set_num_interop_threads(threads[1])
        try:
            with self._torch.inference_mode():
                self._module = self._torch.jit.load(str(file), map_location=device)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise ModelConfigError(f"PyTorch cannot open '{file}': {reason}", TRACE) from error
        if device is None:
            first = next(self._module.parameters(), None)
            device = self._torch.device("cpu") if first is None else first.device
        self._device = device
        self.on_cpu = device.type == "cpu"
        specs = {spec.name: spec for spec in (*signature.inputs, *signature.optional)}
        self.prepare = partial(conform, specs=specs)
        self._outputs = {spec.name: spec for spec in signature.outputs}
        self._indices = output_indices(list(self._outputs))
        self._takes_dict, self._order = _arguments(
            self._module, list(specs), [spec.name for spec in signature.optional]
        )

    def run(self, inputs: Tensors, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Run forward and return the named results.

        Raises ValueError for a result that is not as configured, RuntimeError where forward failed.
        """
        with self._torch.inference_mode():
            arguments = {name: self._argument(array) for name, array in inputs.items()}
            results = self._forward(arguments)
        values = results if isinstance(results, tuple) else (results,)
        return {name: self._array(name, values) for name in outputs}

    def close(self) -> None:
        self._module = None

    def _forward(self, arguments: Mapping[str, Any]) -> Any:
        try:
            if self._takes_dict:
                return self._module(arguments)
            return self._module(*(arguments[name] for name in self._order))
        except Exception as error:
            place, reason = place_and_reason(str(error))
            if not place:
                raise
            if place not in self._told:
                # Once for each: callers may fail there as often as they like.
                self._told.add(place)
                sys.stderr.write(f"'{self._file}' failed: {str(error).strip()}\n")
            raise RuntimeError(reason) from error

    def _argument(self, array: NDArray[Any]) -> Any:
        if array.dtype == np.object_:
            return array.tolist()
        # Triton's arrays are in shared memory; PyTorch wants them writable.
        writable = array if array.flags.writeable else array.copy()
        return self._torch.from_numpy(np.ascontiguousarray(writable)).to(self._device)

    def _array(self, name: str, values: Sequence[Any]) -> NDArray[Any]:
        index = self._indices[name]
        if index >= len(values):
            raise ValueError(
                f"output '{name}' was expected to be result {index} of forward, but it has only "
                f"{len(values)}."
            )
        value = values[index]
        if isinstance(value, self._torch.Tensor):
            array: NDArray[Any] = self._copied(value)
        elif isinstance(value, list) and all(isinstance(element, str) for element in value):
            array = np.array(value, dtype=object)
        else:
            raise TypeError(
                f"output '{name}' is a {type(value).__name__}, but a tensor or a list of str was "
                "expected."
            )
        data_type = DATA_TYPES.get(array.dtype.name)
        expected = self._outputs[name].data_type
        if data_type != expected:
            raise TypeError(
                f"output '{name}' is {data_type or array.dtype.name}, but {expected} was expected "
                "(the configuration)."
            )
        return array

    def _copied(self, value: Any) -> NDArray[Any]:
        # It may be a buffer of the module's, into which the next run writes; that begins before
        # this one is answered where several requests come at once.
        own = value.detach().to("cpu", copy=True, memory_format=self._torch.contiguous_format)
        array: NDArray[Any] = own.numpy()
        return array


def place_and_reason(text: str) -> tuple[str, str]:
    """Return the place and the message of an error of TorchScript.

    Of any other error that is all of its text, and no place.
    """
    traceback = text.rfind(_HERE)
    found = _REASON.search(text, traceback) if traceback >= 0 else None
    return (text[: found.start()], found[0].strip()) if found else ("", text)


def _arguments(module: Any, names: list[str], optional: list[str]) -> tuple[bool, list[str]]:
    """Return whether forward takes one dictionary, and the names in order."""
    # The first is the module, which a class may call other than `self`.
    arguments = module.forward.schema.arguments[1:]
    kinds = [argument.type.kind() for argument in arguments]
    if kinds == ["DictType"]:
        return True, names
    if optional:  # also where the argument has a default, as on the native backend
        raise ModelConfigError(
            f"input '{optional[0]}' is optional in the configuration, but the file's forward "
            "expects all of its arguments; only of one dictionary of tensors some may be left out."
        )
    for argument, kind in zip(arguments, kinds, strict=True):
        if kind not in ("TensorType", "ListType"):
            raise ModelConfigError(
                f"the file's forward takes '{argument.name}' of type {argument.type}, but expected "
                "are tensors, lists of str, or one dictionary of tensors."
            )
    return False, input_order(names, [argument.name for argument in arguments])
