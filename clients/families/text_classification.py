"""Which class does the text belong to? For language models with a score per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.families.base.dispatch_toml import FLAG, key, labels_key
from clients.families.base.family import show_spec
from clients.families.base.text_input import TextFamily, TextKeys
from clients.tensors.scores import best, likeliest
from clients.triton.server import TensorSpec


@dataclass(frozen=True, kw_only=True)
class TextClassificationKeys(TextKeys):
    """The keys of this family."""

    labels: str = labels_key()
    softmax: bool = key(FLAG, "whether scores become probabilities", default=True)


class TextClassification(TextFamily[TextClassificationKeys]):
    """Answers `{"label": the class, "index": its number, "score": …}`, best first.

    Without labels there is no `label`.
    """

    keys_type = TextClassificationKeys
    parameters = {
        "top_k": Parameter(5, 1, 1000, "how many classes to answer"),
        "format": FORMAT,  # both are the same here: the fields have names already
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = self.read_labels(numbers=True)

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        if len(sizes) != 1:
            raise self.misfit(f"{show_spec(spec)} has no score per class")
        if sizes[0] != -1:
            self.count_labels(self.labels, sizes[0], show_spec(spec))

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        scores = self.outputs(self.texts(payloads))
        self.count_labels(self.labels, len(scores[0]), "the output")
        top_k = self.request.parameters["top_k"]
        ranked = likeliest if self.keys.softmax else best
        return [[self.named(index, score) for index, score in ranked(row, top_k)] for row in scores]
