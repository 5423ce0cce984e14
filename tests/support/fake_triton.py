"""A model server without a network: each model is a function of its input arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clients.errors import (
    DeadlineExceeded,
    ModelFailed,
    TensorsRefused,
    UnknownModel,
    UnknownVersion,
)
from clients.request import SequencePart
from clients.triton.server import (
    NO_HINTS,
    Hints,
    ModelServer,
    ModelState,
    Signature,
    Tensors,
    TensorSpec,
)

Arrays = dict[str, np.ndarray[Any, Any]]


# As the configurations in model_repository say; but for the batch, which tests go beyond.
BUILT_IN = {
    "resnet": Signature(
        4,
        (TensorSpec("input", "FP32", (-1, 3, 224, 224)),),
        (TensorSpec("output", "FP32", (-1, 1000)),),
        shares_runs=True,
    ),
    "yolov5": Signature(
        4,
        (TensorSpec("images", "FP32", (-1, 3, 640, 640)),),
        (TensorSpec("output", "FP32", (-1, 25200, 85)),),
    ),
    "bert_base": Signature(
        4,
        tuple(
            TensorSpec(name, "INT64", (-1, -1))
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ),
        (TensorSpec("output", "FP32", (-1, -1, 30522)),),
        shares_runs=True,
    ),
}


@dataclass
class FakeTriton(ModelServer):
    """Runs `models[name](inputs)`; a model that is an exception raises it.

    Further versions than 1 are there as `name:2`, and the latest is what no version names.

    `calls` notes the arguments of every run.
    """

    models_run: dict[str, Callable[[Tensors], Arrays] | Exception] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)
    unloaded: set[str] = field(default_factory=set)
    refuse_to_load: str = ""
    loading_s: float = 0.0
    loading: set[str] = field(default_factory=set)
    unloading: set[str] = field(default_factory=set)
    counts: dict[str, Iterator[int]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    counted: dict[str, int | Exception] = field(default_factory=dict)
    configurations: list[str] = field(default_factory=list)
    reloads: list[str] = field(default_factory=list)
    reloads_well: bool = False
    knocks: list[str] = field(default_factory=list)
    abandoned: dict[str, tuple[str, float]] = field(default_factory=dict)
    ready: bool = True
    states: list[ModelState] | Exception | None = None
    calls: MutableSequence[dict[str, Any]] = field(default_factory=list)

    def infer(
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        hints: Hints = NO_HINTS,
        version: str = "",
        sequence: SequencePart | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float,
    ) -> Arrays:
        version = version or self.pinned.get(model, "")
        self.calls.append(
            {"model": model, "inputs": inputs, "classes": classes, "hints": hints,
             "version": version, "parameters": parameters, "timeout": timeout}
        )  # fmt: skip
        if model not in self.models_run:
            raise UnknownModel(f"no {model}")
        further = [one for one in self.models_run if one.startswith(f"{model}:")]
        name = f"{model}:{version}" if version else max(further, default=model)
        if name not in further and version not in ("", "1"):
            raise UnknownVersion(f"no version {version}")
        run = self.models_run[name if name in further else model]
        if isinstance(run, Exception):
            raise run
        answer = run(inputs)
        for name, count in (classes or {}).items():
            answer[name] = best_classes(answer[name], count)
        return answer

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        return {**BUILT_IN, **self.signatures}.get(model, Signature(4))

    def load(self, model: str, *, timeout: float) -> None:
        if self.refuse_to_load:
            raise ModelFailed(self.refuse_to_load)
        if self.loading_s > timeout:
            self.models_run.setdefault(model, dict)
            self.loading.add(model)
            raise DeadlineExceeded("it takes longer")
        time.sleep(self.loading_s)
        self.models_run.setdefault(model, dict)
        self.unloaded.discard(model)

    def reload(self, model: str, *, timeout: float) -> None:
        self.reloads.append(model)
        if not self.reloads_well:
            raise ModelFailed("no room")

    def unload(self, model: str, *, timeout: float) -> None:
        if model in self.unloading:
            raise DeadlineExceeded("it is still in use")
        self.unloaded.add(model)

    def instances(self, model: str, *, timeout: float) -> int:
        self.configurations.append(model)
        count = self.counted.get(model, 1)
        if isinstance(count, Exception):
            raise count
        return count

    def answered(self, model: str, *, timeout: float) -> int:
        return next(self.counts.get(model, iter([0])), 0)

    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        self.knocks.append(model)
        run = self.models_run[model]
        if isinstance(run, Exception) and not isinstance(run, TensorsRefused):
            raise run

    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        self.abandoned[model] = (reason, within)

    def take_failing(self) -> set[str]:
        failing, self.failing = self.failing, set()
        return failing

    def is_ready(self, *, timeout: float) -> bool:
        return self.ready

    def models(self, *, timeout: float) -> list[ModelState]:
        if isinstance(self.states, Exception):
            raise self.states
        if self.states is not None:
            return self.states
        parts = [(name, *name.partition(":")) for name in self.models_run]
        return [ModelState(one, no or "1", self.state(name)) for name, one, _, no in parts]

    def state(self, model: str) -> str:
        if model in self.loading:
            return "LOADING"
        if model in self.unloading:
            return "UNLOADING"
        return "UNAVAILABLE" if model in self.unloaded else "READY"


def best_classes(logits: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Answer as Triton's classification extension does, with the index for a label."""
    rows = [
        [f"{row[i]:f}:{i}:label {i}".encode() for i in np.argsort(-row, kind="stable")[:count]]
        for row in logits
    ]
    return np.array(rows, object)
