"""Compare a configuration with its file, and refuse what is not supported.

The rules are those of NVIDIA's native backends: `ValidateInputs` and `ValidateOutputs` of the
onnxruntime backend, `CompareDimsSupported` of the backend library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.model_config import (
    DYNAMIC,
    NATIVE,
    FileSignature,
    FileTensor,
    ModelConfigError,
    dims_of,
    max_batch_size,
    unable,
)
from backends.sequence_state import state_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AS_IN_THE_FILE = "write it as the file has it, or leave input and output out of config.pbtxt"
RAGGED = "ragged batches are expected only by the native backends."


def check(config: Mapping[str, Any], signature: FileSignature) -> None:
    """Compare a complete configuration with the file.

    Dimensions of an input may be dynamic on either side; those of an output have to be equal,
    as on the native backend.

    Raises ModelConfigError: naming the tensor, what the configuration says and what the file says.
    """
    refuse_unsupported(config)
    if max_batch_size(config) > 0:
        check_batching(config, signature)
    inputs, outputs = config.get("input") or [], config.get("output") or []
    states = state_tensors(config, "input")
    for kind, tensors, specs, is_exact in (
        ("input", states, signature.inputs, False),
        ("output", state_tensors(config, "output"), signature.outputs, False),
        ("input", inputs, signature.inputs, False),
        ("output", outputs, signature.outputs, True),
    ):
        known = {spec.name: spec for spec in specs}
        for tensor in tensors:
            _compare(config, kind, tensor, known, is_exact=is_exact)
            if tensor.get("optional"):
                raise ModelConfigError(
                    f"{unable(config)}: input '{tensor['name']}' is optional in the configuration, "
                    "but the file has no default for it.",
                    "leave `optional` out",
                )
    # Triton adds those that control a sequence.
    controls = (config.get("sequence_batching") or {}).get("control_input") or []
    given = {tensor["name"] for tensor in (*inputs, *states, *controls)}
    for spec in signature.inputs:
        if spec.name not in given:
            raise ModelConfigError(
                f"{unable(config)}: input '{spec.name}' is missing from the configuration, but "
                f"the file expects it as {spec.data_type} with shape {list(spec.shape)}.",
                "list it beside the others, or leave input and output out of config.pbtxt",
            )


def take_every_shape(config: Mapping[str, Any]) -> None:
    """Let Triton's dynamic batcher batch requests of different shapes.

    A backend in Python gets every request by itself, and can find out which share a run. With
    requests of one shape at a time it does not know of the others; and while one of another shape
    waits behind a batch that cannot begin yet, Triton (2.51) looks at it again and again, with all
    of a core: `DynamicBatchScheduler::BatcherThread`.
    """
    for tensor in config.get("input") or []:
        if DYNAMIC in dims_of(tensor):
            tensor["allow_ragged_batch"] = True


def refuse_ragged(config: Mapping[str, Any]) -> None:
    """Refuse a configuration with ragged batches, as it was written.

    Raises ModelConfigError: naming the input.
    """
    for tensor in config.get("input") or []:
        if tensor.get("allow_ragged_batch"):
            raise ModelConfigError(
                f"{unable(config)}: input '{tensor['name']}' has allow_ragged_batch, but {RAGGED}",
                f"leave allow_ragged_batch out, or {NATIVE}",
            )


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise ModelConfigError for what Triton's Python-based backends cannot do."""
    policy = config.get("model_transaction_policy") or {}
    for has_it, what, why, fix in (
        (config.get("batch_input"), "the configuration has batch_input", RAGGED, NATIVE),
        (config.get("batch_output"), "the configuration has batch_output", RAGGED, NATIVE),
        (
            policy.get("decoupled"),
            "the configuration has model_transaction_policy.decoupled",
            "a file gives one answer to each request.",
            'write a model.py with backend: "python", which can give several',
        ),
    ):
        if has_it:
            raise ModelConfigError(
                f"{unable(config)}: {what}, but {why}", f"leave it out, or {fix}"
            )


def check_batching(config: Mapping[str, Any], signature: FileSignature) -> None:
    """Raise ModelConfigError where a tensor has no batch; an unknown rank may have one."""
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if spec.has_rank and spec.shape[:1] != (DYNAMIC,):
                raise ModelConfigError(
                    f"{unable(config)}: max_batch_size is {max_batch_size(config)} in the "
                    f"configuration, but {kind} '{spec.name}' has shape {list(spec.shape)} in the "
                    "file, where batching expects a dynamic (-1) first dimension.",
                    "write max_batch_size: 0, and all dims that are listed as the file has them; "
                    "or export the model with a first dimension of any size",
                )


def _compare(
    config: Mapping[str, Any],
    kind: str,
    tensor: Mapping[str, Any],
    known: Mapping[str, FileTensor],
    *,
    is_exact: bool,
) -> None:
    name, data_type, dims = tensor["name"], tensor["data_type"], dims_of(tensor)
    spec = known.get(name)
    is_batched = max_batch_size(config) > 0
    full = [DYNAMIC, *dims] if is_batched else dims
    if spec is None:
        names = ", ".join(f"'{one}'" for one in known) or "none"
        what = f"the configuration has {kind} '{name}', but the file's {kind}s are {names}."
    elif data_type != spec.data_type:
        what = (
            f"{kind} '{name}' is {data_type} in the configuration, but {spec.data_type} in the "
            "file."
        )
    elif not _fits(full, spec, is_exact=is_exact):
        batch = " behind the batch dimension" if is_batched else ""
        what = (
            f"{kind} '{name}' has dims {dims}{batch} in the configuration, but shape "
            f"{list(spec.shape)} in the file."
        )
    else:
        return
    raise ModelConfigError(f"{unable(config)}: {what}", AS_IN_THE_FILE)


def _fits(dims: Sequence[int], spec: FileTensor, *, is_exact: bool) -> bool:
    if not spec.has_rank:  # the configuration knows better
        return True
    shape = spec.shape or (1,) * len(dims)  # a scalar
    return len(dims) == len(shape) and all(
        one == other or (not is_exact and DYNAMIC in (one, other))
        for one, other in zip(dims, shape, strict=True)
    )
