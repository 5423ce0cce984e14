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
    check_batching,
    dims_of,
    max_batch_size,
    unable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


AS_IN_THE_FILE = "write it as the file has it, or leave input and output out of config.pbtxt"
_UNSUPPORTED_FIELDS = ("batch_input", "batch_output")


def check(config: Mapping[str, Any], signature: FileSignature) -> None:
    """Compare a complete configuration with the file.

    Dimensions of an input may be dynamic on either side; those of an output have to be equal,
    as on the native backend.

    Raises ModelConfigError: naming the tensor, what the configuration says and what the file says.
    """
    refuse_unsupported(config)
    inputs = config.get("input") or []
    if max_batch_size(config) > 0:
        check_batching(config, signature)
        for tensor in inputs:
            if tensor.get("optional"):
                raise ModelConfigError(
                    f"{unable(config)}: input '{tensor['name']}' is optional in the "
                    "configuration, but that is expected only where max_batch_size is 0.",
                    "leave `optional` out; or write max_batch_size: 0, and -1 before all dims",
                )
    known = {spec.name: spec for spec in (*signature.inputs, *signature.optional)}
    for tensor in inputs:
        _compare(config, "input", tensor, known)
    controls = _sequence_controls(config)
    for tensor in controls:
        _compare(config, "input", tensor, known)
    outputs = {spec.name: spec for spec in signature.outputs}
    for tensor in config.get("output") or []:
        _compare(config, "output", tensor, outputs)
    _check_all_given(config, signature, [*inputs, *controls])


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
                f"{unable(config)}: input '{tensor['name']}' has allow_ragged_batch, but ragged "
                "batches are expected only by the native backends.",
                f"leave allow_ragged_batch out, or {NATIVE}",
            )


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise ModelConfigError for what Triton's Python-based backends cannot do."""
    for field in _UNSUPPORTED_FIELDS:
        if config.get(field):
            raise ModelConfigError(
                f"{unable(config)}: the configuration has {field}, but ragged batches are "
                "expected only by the native backends.",
                f"leave {field} out, or {NATIVE}",
            )
    if (config.get("model_transaction_policy") or {}).get("decoupled"):
        raise ModelConfigError(
            f"{unable(config)}: the configuration has model_transaction_policy.decoupled, but a "
            "file gives one answer to each request.",
            'leave it out; a model.py with backend: "python" can give several',
        )
    if (config.get("sequence_batching") or {}).get("state"):
        raise ModelConfigError(
            f"{unable(config)}: sequence_batching has state, but implicit state is expected only "
            "by the native backends.",
            f"leave it out, or {NATIVE}",
        )


def _compare(
    config: Mapping[str, Any],
    kind: str,
    tensor: Mapping[str, Any],
    known: Mapping[str, FileTensor],
) -> None:
    name = tensor["name"]
    spec = known.get(name)
    if spec is None:
        raise ModelConfigError(
            f"{unable(config)}: the configuration has {kind} '{name}', but the file's {kind}s are "
            f"{join_names(known)}.",
            AS_IN_THE_FILE,
        )
    if tensor["data_type"] != spec.data_type:
        raise ModelConfigError(
            f"{unable(config)}: {kind} '{name}' is {tensor['data_type']} in the configuration, "
            f"but {spec.data_type} in the file.",
            AS_IN_THE_FILE,
        )
    dims = dims_of(tensor)
    if spec.unshaped:
        fits = True  # the configuration knows better
    elif not spec.shape:
        fits = all(size == 1 for size in dims)
    else:
        full = [DYNAMIC, *dims] if max_batch_size(config) > 0 else dims
        fits = _same_shape(full, spec.shape, exact=kind == "output")
    if not fits:
        shape = list(spec.shape)
        batch = " behind the batch dimension" if max_batch_size(config) > 0 else ""
        raise ModelConfigError(
            f"{unable(config)}: {kind} '{name}' has dims {dims}{batch} in the configuration, but "
            f"shape {shape} in the file.",
            AS_IN_THE_FILE,
        )


def _same_shape(configured: Sequence[int], actual: Sequence[int], *, exact: bool) -> bool:
    if len(configured) != len(actual):
        return False
    return all(
        one == other or (not exact and DYNAMIC in (one, other))
        for one, other in zip(configured, actual, strict=True)
    )


def _sequence_controls(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the control inputs that Triton adds to requests of a sequence."""
    controls = []
    for tensor in (config.get("sequence_batching") or {}).get("control_input") or []:
        for control in tensor.get("control") or []:
            data_type = control.get("data_type")
            for filled, its_type in (
                ("int32_false_true", "TYPE_INT32"),
                ("fp32_false_true", "TYPE_FP32"),
                ("bool_false_true", "TYPE_BOOL"),
            ):
                if control.get(filled):
                    data_type = its_type
            controls.append({"name": tensor["name"], "data_type": data_type, "dims": [1]})
    return controls


def _check_all_given(
    config: Mapping[str, Any], signature: FileSignature, tensors: Iterable[Mapping[str, Any]]
) -> None:
    given = {tensor["name"]: bool(tensor.get("optional")) for tensor in tensors}
    for spec in signature.inputs:
        if spec.name not in given:
            raise ModelConfigError(
                f"{unable(config)}: input '{spec.name}' is missing from the configuration, but "
                f"the file expects it as {spec.data_type} with shape {list(spec.shape)}.",
                "list it beside the others, or leave input and output out of config.pbtxt",
            )
        if given[spec.name]:
            raise ModelConfigError(
                f"{unable(config)}: input '{spec.name}' is optional in the configuration, but the "
                "file has no default for it.",
                "leave `optional` out",
            )


def join_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
