"""A TorchScript model's configuration, in the native pytorch backend's spellings.

https://github.com/triton-inference-server/pytorch_backend#parameters
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from backends import parameters
from backends.config_check import join_names
from backends.machine.cpu_share import usable_cpus
from backends.model_config import (
    DYNAMIC,
    NUMPY_TYPES,
    FileSignature,
    FileTensor,
    ModelConfigError,
    dims_of,
    instance_count,
    max_batch_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DATA_TYPES = {
    **{
        name: its for name, its in NUMPY_TYPES.items() if name not in ("uint16", "uint32", "uint64")
    },
    "object": "TYPE_STRING",
}
"""What the native backend takes, by numpy's names; TYPE_STRING is a list of str."""

_INDEXED = re.compile(r".*?__([0-9]+)")


def thread_counts(config: Mapping[str, Any], cpus: int | None = None) -> tuple[int, int]:
    """Return the threads within and between operators; by default the instance's share of the CPUs.

    Raises ModelConfigError for a parameter that is no number.
    """
    share = max(1, (cpus or usable_cpus()) // instance_count(config))
    within = parameters.count_of(config, "INTRA_OP_THREAD_COUNT") or share
    return within, parameters.count_of(config, "INTER_OP_THREAD_COUNT") or share


def warn_of_unread(config: Mapping[str, Any]) -> list[str]:
    """Return a warning for each switch of PyTorch's JIT and of the native backend's processes."""
    return [
        f"the parameter '{key}' is left out: PyTorch's own default holds here."
        for key in parameters.texts(config)
        if key.startswith(("DISABLE_", "ENABLE_", "INFERENCE_MODE"))
    ]


def read_signature(config: Mapping[str, Any]) -> FileSignature:
    """Return the tensors of the configuration, with the batch dimension.

    Raises ModelConfigError for a type that PyTorch lacks: it knows lists of strings alone.
    """
    inputs, outputs = config.get("input") or [], config.get("output") or []
    return FileSignature(
        tuple(_spec(config, "input", one) for one in inputs if not one.get("optional")),
        tuple(_spec(config, "output", one) for one in outputs),
        tuple(_spec(config, "input", one) for one in inputs if one.get("optional")),
    )


def input_order(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the configured names in the order of forward's arguments.

    All of them are arguments' names, or all end with `__` and the argument's index, or their
    own order counts, as on the native backend. Raises ModelConfigError where none of it fits.
    """
    if len(names) != len(arguments):
        raise ModelConfigError(
            f"the configuration has the inputs {join_names(names)}, but the file's forward expects "
            f"{join_names(arguments)}."
        )
    if set(names) == set(arguments):
        return list(arguments)
    indices = _indices(names)
    if indices is None:
        return list(names)
    if sorted(indices) != list(range(len(names))):
        raise ModelConfigError(
            f"the configuration has the inputs {join_names(names)}, but the indices 0 to "
            f"{len(names) - 1} were expected, once each."
        )
    return [name for _, name in sorted(zip(indices, names, strict=True))]


def output_indices(names: Sequence[str]) -> dict[str, int]:
    """Return for each configured output which of forward's results it is.

    Names that end with `__` and an index say so; if one does not, their order counts.
    """
    return dict(zip(names, _indices(names) or range(len(names)), strict=True))


def _spec(config: Mapping[str, Any], kind: str, tensor: Mapping[str, Any]) -> FileTensor:
    name = tensor["name"]
    if tensor["data_type"] not in DATA_TYPES.values():
        raise ModelConfigError(
            f"{kind} '{name}' is {tensor['data_type']} in the configuration, but PyTorch expects "
            f"one of {', '.join(sorted(DATA_TYPES.values()))}."
        )
    batch = [DYNAMIC] if max_batch_size(config) > 0 else []
    shape = (*batch, *dims_of(tensor))
    if tensor["data_type"] == "TYPE_STRING" and len(shape) != 1:
        raise ModelConfigError(
            f"{kind} '{name}' is TYPE_STRING with shape {list(shape)} in the configuration, but "
            "PyTorch expects one dimension, the batch dimension counted."
        )
    return FileTensor(name, tensor["data_type"], shape)


def _indices(names: Iterable[str]) -> list[int] | None:
    matches = [_INDEXED.fullmatch(name) for name in names]
    return [int(match[1]) for match in matches if match] if all(matches) else None
