"""Which of the caller's labels suits the text? For models of natural language inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np

from clients.base import Environment, Parameter, Payload
from clients.families.base.dispatch_toml import FLAG, Kind, is_list, is_text, key
from clients.families.text_classification import TextClassification, TextClassificationKeys
from clients.tensors.quoting import unexpected

MOST_LABELS = 100

# Once, as transformers takes it: a long label in many places would be any number of gigabytes.
TEMPLATE = Kind(
    'a text with "{}" once, for the label',
    lambda value: is_text(value) and str(value).count("{}") == 1,
)
TEXTS = Kind("a list of texts", lambda value: is_list(value, is_text))


@dataclass(frozen=True, kw_only=True)
class ZeroShotKeys(TextClassificationKeys):
    """The keys of this family."""

    candidate_labels: tuple[str, ...] = key(TEXTS, "the labels, where the caller names none", ())
    hypothesis_template: str = key(
        TEMPLATE, "the sentence that may follow from the text", "This example is {}."
    )


class LabelsPayload(TypedDict):
    """A text, and its labels in a list, or with commas between them."""

    text: str
    candidate_labels: NotRequired[list[str] | str]
    hypothesis_template: NotRequired[str]
    multi_label: NotRequired[bool]


class ZeroShotClassification(TextClassification):
    """Answers `{"label": one of the caller's, "index": its place, "score": …}`, best first.

    The model, whose own classes are those of natural language inference, reads a text and a
    sentence for each label; scores are those of `ZeroShotClassificationPipeline` of transformers.
    """

    keys_type = ZeroShotKeys
    payload_type = LabelsPayload
    keys: ZeroShotKeys
    example = {"text": "The world has many people.", "candidate_labels": ["geography", "cooking"]}
    pair_fields = ()
    parameters = {"top_k": Parameter(MOST_LABELS, 1, MOST_LABELS, "how many labels to answer")}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        names = [name.lower()[:6] for name in self.labels]
        if len(names) < 2 or "entail" not in names:
            there = ", ".join(self.labels[:5]) or "none"
            raise self.mistake("labels", f"are {there}", 'one of two or more is "entailment"')
        self.entailment = names.index("entail")
        # Where no class has that name it is the last or the first, as transformers takes it.
        other = len(names) - 1 if self.entailment == 0 else 0
        self.contradiction = names.index("contra") if "contra" in names else other

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        longest = self.fitted().longest
        read = self.each(payloads, lambda payload: self.pairs(payload, longest))
        rows = iter(self.outputs([one for _, pairs in read for one in pairs]))
        answers = []
        for payload, (labels, _) in zip(payloads, read, strict=True):
            scores = np.array([next(rows) for _ in labels])  # [labels, classes]
            self.count_labels(scores.shape[1], "the output")
            follows, multi_label = scores[:, self.entailment], self.setting(payload, "multi_label")
            if multi_label or len(labels) == 1:  # by a softmax of these two classes
                follows = follows - scores[:, self.contradiction]
            answers.append(self.answer(follows, labels, multi_label))
        return answers

    def pairs(self, payload: Payload, longest: int) -> tuple[Sequence[str], list[Any]]:
        """Return the labels, and the encodings of the text with the sentence of each."""
        text, labels = self.text(payload), self.candidates(payload)
        template = self.setting(payload, "hypothesis_template")
        for name, kind in (("hypothesis_template", TEMPLATE), ("multi_label", FLAG)):
            if not kind.fits(value := self.setting(payload, name)):
                raise unexpected(name, value, kind.expected)
        what = "`text` with the sentence of a label"
        sentences = (template.replace("{}", label) for label in labels)
        return labels, [self.encoded(text, longest, one, what) for one in sentences]

    def setting(self, payload: Payload, name: str) -> Any:
        """Return what the caller sets, or the file."""
        return payload.get(name, getattr(self.keys, name))

    def candidates(self, payload: Payload) -> Sequence[str]:
        """Return the labels of the caller, or of the file."""
        given = self.setting(payload, "candidate_labels")
        labels = given.split(",") if isinstance(given, str) else given
        if not TEXTS.fits(labels) or not 1 <= len(labels) <= MOST_LABELS:
            expected = f"1 to {MOST_LABELS} texts in a list, or with commas between them"
            raise unexpected("candidate_labels", given, expected)
        return [one.strip() for one in labels]
