"""Which of the caller's labels suits the text? For models of natural language inference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Payload
from clients.errors import BadPayload
from clients.families.base.dispatch_toml import FLAG, Kind, is_list, is_text, key, labels_key
from clients.families.base.family import show_spec
from clients.families.base.text_input import TextFamily, TextKeys
from clients.tensors.quoting import brief
from clients.tensors.scores import best, sigmoid, softmax
from clients.triton.server import TensorSpec

MOST_LABELS = 100

TEMPLATE = Kind(
    'a text with "{}" for the label', lambda value: is_text(value) and "{}" in str(value)
)
TEXTS = Kind("a list of texts", lambda value: is_list(value, is_text))


@dataclass(frozen=True, kw_only=True)
class ZeroShotKeys(TextKeys):
    """The keys of this family."""

    labels: str = labels_key()
    candidate_labels: tuple[str, ...] = key(TEXTS, "the labels, where the caller names none", ())
    hypothesis_template: str = key(
        TEMPLATE, "the sentence that may follow from the text", "This example is {}."
    )
    multi_label: bool = key(FLAG, "whether several labels may apply", default=False)


class ZeroShotClassification(TextFamily[ZeroShotKeys]):
    """Answers `{"label": one of the caller's, "index": its place, "score": …}`, best first.

    The model, whose own classes are those of natural language inference, reads a text and a
    sentence for each label; scores are those of `ZeroShotClassificationPipeline` of transformers.
    """

    keys_type = ZeroShotKeys
    example = {"text": "The world has many people.", "candidate_labels": ["geography", "cooking"]}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = self.read_labels()
        names = [name.lower() for name in self.labels]
        found = [place for place, name in enumerate(names) if name.startswith("entail")]
        if not found or len(names) < 2:
            there = ", ".join(self.labels[:5])
            raise self.mistake(
                "labels", f"names a file with {there}", 'one of at least two is "entailment"'
            )
        self.entailment = found[0]
        # Where no class has that name it is the last or the first, as transformers takes it.
        other = len(names) - 1 if self.entailment == 0 else 0
        contra = [place for place, name in enumerate(names) if name.startswith("contra")]
        self.contradiction = next(iter(contra), other)

    @property
    def fields(self) -> Collection[str]:
        return ("text", "candidate_labels", "hypothesis_template", "multi_label")

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        if len(sizes) != 1:
            raise self.misfit(f"{show_spec(spec)} has no score per class")
        if sizes[0] != -1:
            self.count_labels(self.labels, sizes[0], show_spec(spec))

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        longest = self.fitted().longest
        read = self.each(payloads, lambda payload: self.pairs(payload, longest))
        rows = iter(self.outputs([one for _, pairs in read for one in pairs]))
        return [
            self.answer(payload, labels, np.array([next(rows) for _ in labels]))
            for payload, (labels, _) in zip(payloads, read, strict=True)
        ]

    def pairs(self, payload: Payload, longest: int) -> tuple[Sequence[str], list[Any]]:
        """Return the labels, and the encodings of the text with the sentence of each."""
        text, labels = self.text(payload), self.candidates(payload)
        template = payload.get("hypothesis_template", self.keys.hypothesis_template)
        several = payload.get("multi_label", self.keys.multi_label)
        for name, value, kind in (
            ("hypothesis_template", template, TEMPLATE),
            ("multi_label", several, FLAG),
        ):
            if not kind.fits(value):
                raise BadPayload(f"`{name}` is {brief(value)}", hint=f"expected {kind.expected}")
        what = "`text` with the sentence of a label"
        sentences = (template.replace("{}", label) for label in labels)
        return labels, [self.encoded(text, longest, one, what) for one in sentences]

    def candidates(self, payload: Payload) -> Sequence[str]:
        """Return the labels of the caller, or of the file."""
        given = payload.get("candidate_labels", self.keys.candidate_labels)
        labels = given.split(",") if isinstance(given, str) else given
        if not TEXTS.fits(labels) or not 1 <= len(labels) <= MOST_LABELS:
            raise BadPayload(
                f"`candidate_labels` is {brief(given)}",
                hint=f"expected 1 to {MOST_LABELS} texts in a list, or with commas between them",
            )
        return [one.strip() for one in labels]

    def answer(
        self, payload: Payload, labels: Sequence[str], scores: npt.NDArray[np.float32]
    ) -> list[Any]:
        """Return a text's labels and their probabilities; `scores` is [labels, classes]."""
        follows = scores[:, self.entailment].astype(np.float64)
        if payload.get("multi_label", self.keys.multi_label) or len(labels) == 1:
            # Of the two classes alone, for each label.
            found = sigmoid(follows - scores[:, self.contradiction])
        else:
            found = softmax(follows)
        return [
            {"label": labels[place], "index": place, "score": round(score, 6)}
            for place, score in best(found, len(labels))
        ]
