"""Mistakes in ensembles, policies and TorchScript, which Triton refuses."""

from __future__ import annotations

from tests.support.mistakes.mistake import (
    Mistake,
    torchscript,
)

ENSEMBLES = [
    Mistake(
        "torchscript_bare",
        torchscript(None),
        "torchscript_bare/1/model.pt",
        "is TorchScript, which holds no shapes, and no input is configured",
        "list every input",
    ),
    Mistake(
        "torchscript_unlisted",
        torchscript('backend: "pytorch"\nmax_batch_size: 8\n'),
        "torchscript_unlisted/1/model.pt",
        "is TorchScript, which holds no shapes, and no input is configured",
        "list every input",
    ),
]
