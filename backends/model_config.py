"""What a model's configuration says, and what its file holds.

A configuration is the dictionary that Triton makes of `config.pbtxt`.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clients.model_files.config_text import read_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

DYNAMIC = -1
"""A dimension of any size, in Triton's configuration and in the shapes that are read here."""

DYNAMIC_BATCHING = "dynamic_batching"

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
    dimension, has -1 where any size is accepted, and is empty for a scalar. Without `has_rank` it
    is empty because the file does not say how many dimensions there are.
    """

    name: str
    data_type: str
    shape: tuple[int, ...]
    has_rank: bool = True

    @property
    def dtype(self) -> str:
        """NumPy's name of the type, but of texts."""
        return self.data_type.removeprefix("TYPE_").lower().replace("fp", "float")


@dataclass(frozen=True, slots=True)
class FileSignature:
    """The tensors of a model file."""

    inputs: tuple[FileTensor, ...]
    outputs: tuple[FileTensor, ...]


def max_batch_size(config: Mapping[str, Any]) -> int:
    """Return the configured maximum, 0 where the model does not batch."""
    return int(config.get("max_batch_size") or 0)


def instance_count(config: Mapping[str, Any]) -> int:
    """Return how many instances Triton starts; a count is for each GPU."""
    groups = config.get("instance_group") or []
    counts = (int(one.get("count") or 1) * max(1, len(one.get("gpus") or [])) for one in groups)
    return max(1, sum(counts))


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


def unable(config: Mapping[str, Any]) -> str:
    return f"unable to load model '{config.get('name', '')}'"


def dims_of(tensor: Mapping[str, Any]) -> list[int]:
    reshape = tensor.get("reshape")
    dims = tensor.get("dims") if reshape is None else reshape.get("shape")
    return [int(size) for size in dims or []]


def read_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Return every parameter's `string_value` by its key."""
    parameters = config.get("parameters") or {}
    return {key: str(value.get("string_value", "")) for key, value in parameters.items()}


def count_of(config: Mapping[str, Any], key: str) -> int:
    """Return the parameter as a number of threads; 0 where it is left out.

    0 and, as on the native backends, any negative number mean the default.

    Raises ModelConfigError: naming the key.
    """
    text = read_parameters(config).get(key, "0")
    if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        raise ModelConfigError(f"parameter '{key}' is '{text}', but expected is a whole number.")
    return max(0, int(text))
