"""Which class does the text, or the pair of texts, belong to? For models with a score per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy.typing as npt

from clients.base import FORMAT, Parameter, Payload
from clients.errors import BadPayload
from clients.families.base.dispatch_toml import FLAG, key, labels_key
from clients.families.base.family import ScoredClass
from clients.families.base.text_input import TextFamily, TextKeys
from clients.tensors.scores import best, likeliest, sigmoid

PairPayload = TypedDict("PairPayload", {"text": str, "text_pair": NotRequired[str]})

# Of the score of one class alone, by which texts are ranked: those that hardly fit differ in small
# numbers.
DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class TextClassificationKeys(TextKeys):
    """The keys of this family."""

    labels: str = labels_key()
    softmax: bool = key(FLAG, "whether scores become probabilities", default=True)
    multi_label: bool = key(
        FLAG, "whether several classes may apply: each has its own probability", default=False
    )


class TextClassification(TextFamily[TextClassificationKeys]):
    """Answers `{"label": the class, "index": its number, "score": …}`, best first.

    Without labels there is no `label`. A model with one class scores how well `text_pair` answers
    `text`. Probabilities are those of transformers' pipeline of this name: the softmax over the
    classes, and the sigmoid of one class alone or with `multi_label`.
    """

    keys_type = TextClassificationKeys
    payload_type: Any = PairPayload
    result_type = list[ScoredClass]
    answered_with = (1, "score per class")
    compared_as = "classes"
    pair_fields: ClassVar[tuple[str, str] | tuple[()]] = ("text", "text_pair")
    parameters = {
        "top_k": Parameter(5, 1, 1000, "how many classes to answer"),
        "format": FORMAT,  # both are the same here: the fields have names already
    }

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        scores = self.outputs(self.texts(payloads))
        self.count_labels(len(scores[0]), "the output")
        return [self.answer(row, self.labels, self.keys.multi_label) for row in scores]

    def answer(
        self, scores: npt.NDArray[Any], labels: Sequence[str], multi_label: bool
    ) -> list[Any]:
        """Return the best classes of one text; `scores` is [classes]."""
        top_k = self.request.parameters["top_k"]
        if multi_label:
            found = best(sigmoid(scores), top_k)
        else:
            found = (likeliest if self.keys.softmax else best)(scores, top_k)
        digits = DIGITS if scores.size == 1 else 6
        return [self.named(index, score, digits, labels=labels) for index, score in found]

    def ranks(self) -> bool:
        return super().ranks() and len(self.labels) <= 1

    def pair_score(self, result: Any) -> float:
        if max(len(self.labels), len(result)) > 1:
            raise BadPayload(
                f"the model {self.modelname} has several classes",
                hint="texts are ranked by a model with one score for a pair of texts",
            )
        return float(result[0]["score"])
