"""Complete a configuration from the file; decide whether requests share runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from backends import model_config
from backends.batching.row_independence import find_dependence, row_dependence
from backends.model_config import FileSignature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import Tensors
    from clients.model_files.config_text import Message

HOW_TO_SAY = (
    "`max_batch_size: 0` in config.pbtxt keeps it so; where each row is an item of its own, a "
    "`max_batch_size` above 1 and `dynamic_batching { }` let requests share runs"
)

QUANTIZES = "it quantizes its activations while it runs, with one scale for all rows"
DYNAMIC_QUANTIZATION = (b"DynamicQuantize", b"MatMulIntegerToFloat")
"""What the operators are called, or begin with. If the model returns only the best class, a test
would have to hit the one number that is rounded to another."""

TRIED = "in a test each row had the same answer as alone"


@dataclass(frozen=True)
class Completion:
    """What a model's file adds to its configuration.

    `warning` is what the author should look at, and how to mend it.
    """

    fields: Mapping[str, Any]
    info: str = ""
    warning: tuple[str, str] | None = None


class ModelFile(Protocol):
    """A model's file, opened by the engine of the backend that it is for."""

    path: Path
    runtime: str
    """The engine and its version."""
    signature: FileSignature

    def run(self, inputs: Tensors, outputs: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Return the named outputs; raise what the engine raises."""


def complete(
    config: Mapping[str, Any], written: Message, opened: ModelFile, trials: Path | None = None
) -> Completion:
    """Return what a file adds to a configuration without inputs or outputs.

    `written` is the configuration as its author wrote it, which may have a `max_batch_size` of 0;
    `trials` is a folder that keeps the results of tests.

    Raises ModelConfigError: the file contradicts `max_batch_size`.
    """
    stated = bool(written.all("max_batch_size")) or model_config.lists_all_dims(
        config, opened.signature
    )
    if not model_config.may_be_tried(config, opened.signature, stated=stated):
        return Completion(
            model_config.completion(config, opened.signature, stated=stated, independent=False)
        )
    most = model_config.max_batch_size(config) or model_config.DEFAULT_MAX_BATCH_SIZE
    against = (
        QUANTIZES
        if model_config.has_operator(opened.path, DYNAMIC_QUANTIZATION)
        else find_dependence(
            trials,
            model_config.files_of(opened.path) if trials else (),
            f"{opened.runtime}, {most} rows",
            lambda: row_dependence(opened.signature, opened.run, most),
        )
    )
    fields = model_config.completion(
        config, opened.signature, stated=stated, independent=not against
    )
    if not against:
        return Completion(fields, f"requests share runs: {TRIED}")
    return Completion(fields, warning=(f"requests are run one by one: {against}", HOW_TO_SAY))
