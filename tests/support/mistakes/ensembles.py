"""Mistakes in ensembles, policies and TorchScript, which Triton refuses."""

from __future__ import annotations

from tests.support.mistakes.mistake import (
    STEP,
    Mistake,
    config,
    ensemble,
    torchscript,
)

ENSEMBLES = [
    Mistake(
        "strange_step",
        ensemble(STEP.replace("right", "gone")),
        "strange_step/config.pbtxt:6",
        '`ensemble_scheduling.step.model_name` is "gone", which is not there',
        "beside this one",
    ),
    Mistake(
        "no_specific_version",
        config("dynamic", "version_policy { specific { } }\ndynamic"),
        "no_specific_version/config.pbtxt:6",
        "`version_policy.specific.versions` is missing",
        "there are 1",
    ),
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
    Mistake(
        "step_of_itself",
        ensemble(STEP.replace("right", "step_of_itself")),
        "step_of_itself/config.pbtxt:6",
        "`ensemble_scheduling.step.model_name` is the ensemble itself",
        "another model",
    ),
]
