"""Small TorchScript models; where torch is absent, only a file that nobody can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.models.onnx_repository import ONE, parameter, tensor, together

_ROWS = "max_batch_size: 4\n"


def _difference(left: str, right: str, result: str, rows: str) -> str:
    return (
        _ROWS
        + tensor("input", left, "FP32", "2")
        + tensor("input", right, "FP32", "2")
        + tensor("output", result, "FP32", "2")
        + tensor("output", rows, "FP32", "2")
    )


_LOOKUP = _ROWS + tensor("input", "index", "INT64", "1") + tensor("output", "value", "FP32", "1")

SERVED = {
    # The order of the configuration is not that of forward: the names tell.
    "torch_names": _difference("right", "left", "output__0", "output__1") + together(4),
    "torch_indices": _difference("input__1", "input__0", "output__0", "output__1")
    + parameter("INFERENCE_MODE", "false")
    + parameter("DISABLE_OPTIMIZED_EXECUTION", "true")
    + parameter("INTRA_OP_THREAD_COUNT", "1"),
    "torch_order": _difference("first", "second", "difference", "rows"),
    "torch_lookup": _LOOKUP + together(3),
    "torch_words": tensor("input", "text", "STRING", "-1")
    + tensor("output", "twice", "STRING", "-1"),
    "torch_dict": _ROWS
    + tensor("input", "b", "FP32", "2", "optional: true")
    + tensor("input", "a", "FP32", "2")
    + tensor("output", "y", "FP32", "2"),
}

REFUSED = {
    "torch_count": (
        _ROWS + tensor("input", "left", "FP32", "2") + tensor("output", "y", "FP32", "2"),
        "the configuration has the inputs 'left', but the file's forward expects 'left', 'right'.",
    ),
    "torch_optional": (
        _difference("left", "right", "y", "rows").replace("dims", "optional: true dims", 1),
        "input 'left' is optional in the configuration, but the file's forward expects all",
    ),
    "torch_type": (
        _LOOKUP.replace("TYPE_INT64", "TYPE_UINT64"),
        "input 'index' is TYPE_UINT64 in the configuration, but PyTorch expects one of",
    ),
    "torch_ragged": (
        _ROWS
        + tensor("input", "index", "INT64", "1", "allow_ragged_batch: true")
        + tensor("output", "value", "FP32", "1"),
        "input 'index' has allow_ragged_batch, but ragged batches are expected only by the native",
    ),
    "torch_parameter": (
        _LOOKUP + parameter("INTRA_OP_THREAD_COUNT", "maybe"),
        "parameter 'INTRA_OP_THREAD_COUNT' is 'maybe', but expected is",
    ),
}

ABSENT = "torch_absent"
BARE = "torch_bare"


def write_repository(folder: Path, *, has_torch: bool) -> list[str]:
    """Write the models and return their names; those that need torch only where there is one."""
    configs = {ABSENT: _LOOKUP, BARE: ""}
    if has_torch:
        configs |= SERVED
        configs |= {name: config for name, (config, _) in REFUSED.items()}
        # Run apart: PyTorch warns that TorchScript is deprecated, and takes a second to import.
        program = Path(__file__).with_name("make_torchscript.py")
        subprocess.run([sys.executable, "-W", "ignore", program, folder], check=True, timeout=120)
    for name, config in configs.items():
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        if not (version / "model.pt").exists():
            (version / "model.pt").write_bytes(b"not a model")
        (folder / name / "config.pbtxt").write_text(f'platform: "pytorch_libtorch"\n{config}{ONE}')
    return list(configs)
