"""Complete a configuration from the file; decide whether requests share runs.

The rules are those of NVIDIA's native backends, so that a model repository which loads here
loads there too: `AutoCompleteMaxBatch` and `AutoCompleteIO` of the onnxruntime backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from backends.batching.row_independence import find_dependence, row_dependence
from backends.config_check import check_batching
from backends.model_config import (
    DYNAMIC,
    DYNAMIC_BATCHING,
    FileSignature,
    FileTensor,
    ModelConfigError,
    dims_of,
    files_of,
    has_operator,
    max_batch_size,
    needs_completion,
    unable,
)
from backends.onnxruntime.session import OnnxFile
from backends.sequence_state import state_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clients.model_files.config_text import Message

DEFAULT_MAX_BATCH_SIZE = 4
"""The native onnxruntime backend's default for a model that can batch and does not say how far."""

SCHEDULERS = ("sequence_batching", DYNAMIC_BATCHING, "ensemble_scheduling")

HOW_TO_SAY = (
    "`max_batch_size: 0` in config.pbtxt keeps it so; where each row is an item of its own, a "
    "`max_batch_size` above 1 and `dynamic_batching { }` let requests share runs"
)

DYNAMIC_QUANTIZATION = (b"DynamicQuantize", b"MatMulIntegerToFloat")
"""What the operators are called, or begin with. If the model returns only the best class, a test
would have to hit the one number that is rounded to another."""

OF_TABLES = (b"\x3a\x0aai.onnx.ml",)
"""In a file the domain of an operator (NodeProto.domain), whose first axis is rows: trees and such.
An exporter may name the domain without an operator of it."""


@dataclass(frozen=True)
class Completion:
    """What a model's file adds to its configuration.

    `warning` is what the author should look at, and how to mend it.
    """

    fields: Mapping[str, Any]
    info: str = ""
    warning: tuple[str, str] | None = None


def complete(
    config: Mapping[str, Any], written: Message, opened: OnnxFile, trials: Path | None = None
) -> Completion:
    """Return what a file adds to a configuration without inputs or outputs.

    Where nothing is written, every input and output begins with a dynamic dimension, and a trial
    shows that each row is answered as if it were alone, the model batches up to
    `DEFAULT_MAX_BATCH_SIZE`. Dynamic batching is turned on where the maximum is above 1, no
    scheduler is chosen, and the trial shows it. The native backends ask for the dynamic dimension
    alone; it may be an axis that is no batch.

    `written` is the configuration as its author wrote it, which may have a `max_batch_size` of 0:
    Triton hands over 0 in either case. `trials` is a folder that keeps the results of trials.

    Raises ModelConfigError: the file contradicts `max_batch_size`, or an input's rank is unknown.
    """
    if not needs_completion(config):
        return Completion({})
    signature = opened.signature
    left_out = _count_dims_left_out(config, signature)
    is_stated = bool(written.all("max_batch_size")) or 0 in left_out
    is_scheduled = any(name in config for name in SCHEDULERS)
    can_batch = all(
        spec.shape[:1] == (DYNAMIC,) for spec in (*signature.inputs, *signature.outputs)
    )
    limit = max_batch_size(config)
    is_tried = can_batch and not is_scheduled and (limit > 1 or not is_stated)
    most = limit or DEFAULT_MAX_BATCH_SIZE
    against = _find_against(opened, most, trials) if is_tried else ""
    is_independent = is_tried and not against
    fields: dict[str, Any] = {}
    if limit > 0:
        check_batching(config, signature)
    elif can_batch and not is_stated:
        is_for_a_batch = config.get("model_warmup") or any(count > 0 for count in left_out)
        if is_independent or is_scheduled or is_for_a_batch:
            limit = fields["max_batch_size"] = most
    if limit > 1 and is_independent:
        fields[DYNAMIC_BATCHING] = {}
    for field, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if not config.get(field):
            # Triton adds those of a sequence.
            own = {one["name"] for one in _of_sequence(config, field)}
            fields[field] = [
                _describe(config, field, spec, batched=limit > 0)
                for spec in specs
                if spec.name not in own
            ]
    if against:
        return Completion(fields, warning=(f"requests are run one by one: {against}", HOW_TO_SAY))
    tried = "requests share runs: in a test each row had the same answer as alone"
    return Completion(fields, tried if is_tried else "")


def _find_against(opened: OnnxFile, most: int, trials: Path | None) -> str:
    """Return why requests may not share runs of `most` rows; empty where they may."""
    if has_operator(opened.path, DYNAMIC_QUANTIZATION):
        return "it quantizes its activations while it runs, with one scale for all rows"
    files, edition = files_of(opened.path) if trials else (), f"{opened.runtime}, {most} rows"
    of_tables = has_operator(opened.path, OF_TABLES)
    try_it = partial(row_dependence, opened.signature, opened.run, most, of_tables=of_tables)
    return find_dependence(trials, files, edition, try_it)


def _count_dims_left_out(config: Mapping[str, Any], signature: FileSignature) -> list[int]:
    """Return how many dimensions of the file each listed tensor leaves out."""
    specs = (*signature.inputs, *signature.outputs)
    ranks = {spec.name: len(spec.shape) for spec in specs if spec.shape}
    listed = [*(config.get("input") or []), *(config.get("output") or [])]
    return [
        ranks[tensor["name"]] - len(dims_of(tensor)) for tensor in listed if tensor["name"] in ranks
    ]


def _of_sequence(config: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """Return the tensors of a model that callers neither send nor get."""
    controls = (config.get("sequence_batching") or {}).get("control_input") or []
    return state_tensors(config, field) + (controls if field == "input" else [])


def _describe(
    config: Mapping[str, Any], field: str, spec: FileTensor, *, batched: bool
) -> dict[str, Any]:
    if field == "input" and not spec.has_rank:
        raise ModelConfigError(
            f"{unable(config)}: the file does not say how many dimensions the input '{spec.name}' "
            "has, which Triton has to know.",
            "list every input in config.pbtxt with its name, data_type and dims, -1 where a size "
            "varies",
        )
    dims = list(spec.shape[1:] if batched else spec.shape)
    tensor: dict[str, Any] = {"name": spec.name, "data_type": spec.data_type, "dims": dims}
    if not spec.has_rank:
        tensor["dims"] = [DYNAMIC]  # an output's own shape is passed on, whatever is listed
    elif not dims:
        # Triton accepts no tensor without dimensions: it is declared as [1], and where there is a
        # batch dimension besides, reshaped to nothing.
        tensor["dims"] = [1]
        if batched:
            tensor["reshape"] = {"shape": []}
    return tensor
