"""What a model's configuration says, completed from what its file holds.

The rules are those of NVIDIA's native backends, so that a model repository which loads here
loads there too: `AutoCompleteMaxBatch` and `AutoCompleteIO` of the onnxruntime backend.
A configuration is the dictionary that Triton makes of `config.pbtxt`.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clients.model_files.config_text import read_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

DYNAMIC = -1
"""A dimension of any size, in Triton's configuration and in the shapes that are read here."""

NUMPY_TYPES = {
    "bool": "TYPE_BOOL",
    **{f"uint{bits}": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
}
"""The element types that Triton's Python backend can carry besides texts, by numpy's names."""

DEFAULT_MAX_BATCH_SIZE = 4
"""The native onnxruntime backend's default for a model that can batch and does not say how far."""

DYNAMIC_BATCHING = "dynamic_batching"
_SCHEDULERS = ("sequence_batching", DYNAMIC_BATCHING, "ensemble_scheduling")

NATIVE = "build the image on NVIDIA's, which has these"
TO_MEND = " To mend it: "
"""Before what helps, in the text of an error: a line is all that Triton passes on of it."""


class ModelConfigError(ValueError):
    """A model cannot be served as configured; the text is a line for its author.

    `what` is a sentence on what is wrong and what is expected; `fix` says how to mend it.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}{TO_MEND}{fix}" if fix else what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True, slots=True)
class FileTensor:
    """An input or output of a model file.

    `data_type` is spelled as in the configuration (`TYPE_FP32`); `shape` includes the batch
    dimension, has -1 where any size is accepted, and is empty for a scalar. `unshaped` is whether
    the file has no shape: it is empty then, too, or what the runtime makes out.
    """

    name: str
    data_type: str
    shape: tuple[int, ...]
    unshaped: bool = False

    @property
    def any_rank(self) -> bool:
        """Whether the number of dimensions is unknown."""
        return self.unshaped and not self.shape


@dataclass(frozen=True, slots=True)
class FileSignature:
    """The tensors of a model file; `optional` are inputs that may be left out."""

    inputs: tuple[FileTensor, ...]
    outputs: tuple[FileTensor, ...]
    optional: tuple[FileTensor, ...] = ()


def max_batch_size(config: Mapping[str, Any]) -> int:
    """Return the configured maximum, 0 where the model does not batch."""
    return int(config.get("max_batch_size") or 0)


def is_cached(config: Mapping[str, Any]) -> bool:
    """Whether Triton may keep the answers in its response cache."""
    return bool((config.get("response_cache") or {}).get("enable"))


def instance_count(config: Mapping[str, Any]) -> int:
    """Return how many instances Triton starts; a count is for each GPU."""
    groups = config.get("instance_group") or []
    return max(
        1,
        sum(
            int(group.get("count") or 1) * max(1, len(group.get("gpus") or [])) for group in groups
        ),
    )


def files_of(file: Path) -> list[Path]:
    """Return a model's files: its weights may have some of their own beside it."""
    return sorted(one for one in file.parent.rglob("*") if one.is_file())


def has_operator(file: Path, names: Iterable[bytes]) -> bool:
    """Whether a graph has an operator that is called so, or whose name begins so."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as graph:
        return any(graph.find(name) >= 0 for name in names)


def read_kind(kind: str, folder: Path) -> str:
    """Return the kind of an instance that its configuration asks for.

    If Triton sees a GPU, it replaces `KIND_AUTO` by `GPU`, also in the configuration that a backend
    gets. An author who wrote `KIND_AUTO`, or no kind, is not to blame for a runtime without CUDA.
    """
    if kind != "GPU":
        return kind
    groups = read_folder(folder).messages("instance_group")
    return "GPU" if any(group.text("kind") == "KIND_GPU" for group in groups) else "AUTO"


def needs_completion(config: Mapping[str, Any]) -> bool:
    """Whether inputs or outputs are missing; a complete one stays as it is."""
    return not ((config.get("input") or config.get("batch_input")) and config.get("output"))


def may_be_tried(config: Mapping[str, Any], signature: FileSignature, *, stated: bool) -> bool:
    """Whether `row_independence` can tell if requests may share runs.

    `stated` is whether `max_batch_size` is written; Triton hands over 0 in either case.
    """
    return (
        needs_completion(config)
        and (max_batch_size(config) > 1 or not stated)
        and not any(name in config for name in _SCHEDULERS)
        and all(_can_batch(spec) for spec in (*signature.inputs, *signature.outputs))
    )


def lists_all_dims(config: Mapping[str, Any], signature: FileSignature) -> bool:
    """Whether a tensor is listed with all dimensions of the file, without batch."""
    return 0 in _dims_left_out(config, signature)


def completion(
    config: Mapping[str, Any], signature: FileSignature, *, stated: bool, independent: bool
) -> dict[str, Any]:
    """Return the fields that a file adds to an incomplete configuration.

    Where nothing is written, every input and output begins with a dynamic dimension, and rows are
    known to be independent, the model batches up to `DEFAULT_MAX_BATCH_SIZE`. Dynamic batching is
    turned on where the maximum is above 1, no scheduler is chosen, and rows are independent. The
    native backends ask for the dynamic dimension alone; it may be an axis that is no batch.

    `stated` is whether `max_batch_size` is written, `independent` whether a trial has shown that
    each row is answered as if it were alone.

    Raises ModelConfigError: `max_batch_size` is set, but a tensor has no dynamic first dimension;
    or the file does not say how many dimensions an input has.
    """
    if not needs_completion(config):
        return {}
    _refuse_unknown_ranks(config, signature)
    fields: dict[str, Any] = {}
    limit = max_batch_size(config)
    is_scheduled = any(name in config for name in _SCHEDULERS)
    if limit > 0:
        check_batching(config, signature)
    elif (
        not stated
        and (independent or is_scheduled or _is_written_for_a_batch(config, signature))
        and all(_can_batch(spec) for spec in (*signature.inputs, *signature.outputs))
    ):
        limit = fields["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
    if limit > 1 and independent and not is_scheduled:
        fields[DYNAMIC_BATCHING] = {}
    for field, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if not config.get(field):
            fields[field] = [_describe(spec, batched=limit > 0) for spec in specs]
    return fields


def unable(config: Mapping[str, Any]) -> str:
    return f"unable to load model '{config.get('name', '')}'"


def _can_batch(spec: FileTensor) -> bool:
    return bool(spec.shape) and spec.shape[0] == DYNAMIC


def _is_written_for_a_batch(config: Mapping[str, Any], signature: FileSignature) -> bool:
    """Whether the written configuration implies a batch dimension."""
    left_out = _dims_left_out(config, signature)
    return bool(config.get("model_warmup")) or any(count > 0 for count in left_out)


def _dims_left_out(config: Mapping[str, Any], signature: FileSignature) -> list[int]:
    """Return how many dimensions of the file each listed tensor leaves out."""
    specs = (*signature.inputs, *signature.outputs)
    ranks = {spec.name: len(spec.shape) for spec in specs if spec.shape}
    listed = [*(config.get("input") or []), *(config.get("output") or [])]
    return [
        ranks[tensor["name"]] - len(dims_of(tensor)) for tensor in listed if tensor["name"] in ranks
    ]


def _refuse_unknown_ranks(config: Mapping[str, Any], signature: FileSignature) -> None:
    """Raise ModelConfigError where the rank of an input is not known."""
    unknown = [spec for spec in signature.inputs if spec.any_rank]
    if not unknown or config.get("input"):
        return
    batched = max_batch_size(config) > 0
    lines = ", ".join(
        f'{{ name: "{spec.name}" data_type: {spec.data_type} dims: {sizes} }}'
        for spec in signature.inputs
        if (sizes := [DYNAMIC] if spec.any_rank else _describe(spec, batched=batched)["dims"])
    )
    dims = " and ".join(f"of '{spec.name}'" for spec in unknown)
    raise ModelConfigError(
        f"{unable(config)}: the file does not say how many dimensions the input "
        f"'{unknown[0].name}' has, which Triton has to know.",
        f"write into config.pbtxt: input [ {lines} ], but with a number in the dims {dims} for "
        f"each dimension{' behind the batch' if batched else ''}, -1 where its size varies",
    )


def check_batching(config: Mapping[str, Any], signature: FileSignature) -> None:
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if not (_can_batch(spec) or spec.any_rank):
                raise ModelConfigError(
                    f"{unable(config)}: max_batch_size is {max_batch_size(config)} in the "
                    f"configuration, but {kind} '{spec.name}' has shape {list(spec.shape)} in the "
                    "file, where batching expects a dynamic (-1) first dimension.",
                    "write max_batch_size: 0, and all dims that are listed as the file has them; "
                    "or export the model with a first dimension of any size",
                )


def _describe(spec: FileTensor, *, batched: bool) -> dict[str, Any]:
    dims = list(spec.shape[1:] if batched else spec.shape)
    tensor: dict[str, Any] = {"name": spec.name, "data_type": spec.data_type, "dims": dims}
    if spec.any_rank:
        tensor["dims"] = [DYNAMIC]  # Triton passes on an output's own shape, whatever is listed
    elif not dims:
        # Triton accepts no tensor without dimensions: it is declared as [1], and where there is
        # a batch dimension besides, reshaped to nothing.
        tensor["dims"] = [1]
        if batched:
            tensor["reshape"] = {"shape": []}
    return tensor


def dims_of(tensor: Mapping[str, Any]) -> list[int]:
    reshape = tensor.get("reshape")
    dims = tensor.get("dims") if reshape is None else reshape.get("shape")
    return [int(size) for size in dims or []]
