"""Which words are names, and of what? For language models with a score per token and class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Parameter, Payload
from clients.families.base.dispatch_toml import NAMES, key, labels_key
from clients.families.base.family import show_spec
from clients.families.base.text_input import TextFamily, TextKeys, cut_words
from clients.tensors.scores import softmax
from clients.triton.server import TensorSpec

# An entity's first part, or its only one, and its others, in the formats IOB2, IOBES and BILOU.
BEGIN, GO_ON = ("B-", "S-", "U-"), ("I-", "E-", "L-")

Span = tuple[int, int]  # of characters: the first, and the one behind the last


@dataclass(frozen=True, kw_only=True)
class TokenClassificationKeys(TextKeys):
    """The keys of this family."""

    labels: str = labels_key()
    ignored: tuple[str, ...] = key(NAMES, "labels that are not answered", ("O",))


@dataclass(frozen=True)
class Part:
    """A token, a word or an entity, and its class."""

    label: str
    score: float  # the probability of the class, or the mean of several
    span: Span

    @property
    def tag(self) -> str:
        """The label without what tells the place in an entity."""
        return self.label[2:] if self.label[:2] in (*BEGIN, *GO_ON) else self.label


class TokenClassification(TextFamily[TokenClassificationKeys]):
    """Answers `{"label": the class, "score": …, "word": …, "start": …, "end": …}` for each entity.

    Places are in characters (code points) of the text. Tokens become words and entities as in
    `TokenClassificationPipeline` of transformers.
    """

    keys_type = TokenClassificationKeys
    parameters = {
        "aggregation": Parameter(
            "simple",
            meaning="how tokens become entities: not at all; one by one; or first as words, each "
            "with the class of its first token, of the average, or of the surest token",
            choices=("none", "simple", "first", "average", "max"),
        )
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = self.read_labels()

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        if len(sizes) != 2:
            raise self.misfit(f"{show_spec(spec)} has no score per token and class")
        if sizes[1] != -1:
            self.count_labels(self.labels, sizes[1], show_spec(spec))

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        encodings = self.texts(payloads)
        answers = []
        for payload, encoding, output in zip(
            payloads, encodings, self.outputs(encodings), strict=True
        ):
            self.count_labels(self.labels, output.shape[-1], "the output")
            scores = output[self.begin(encoding, len(output)) :][: len(encoding.ids)]
            answers.append(self.entities(payload["text"], encoding, softmax(scores)))
        return answers

    def entities(self, text: str, encoding: Any, scores: npt.NDArray[np.float64]) -> list[Any]:
        """Return the answer for a text; `scores` is [tokens, classes]."""
        strategy = self.request.parameters["aggregation"]
        own = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        if strategy in ("none", "simple"):
            words = [[place] for place in own]
        else:
            words = self.words(text, encoding, own)
        parts = [
            self.part(scores[word], (encoding.offsets[word[0]][0], encoding.offsets[word[-1]][1]))
            for word in words
        ]
        if strategy != "none":
            parts = joined(parts)
        labelled = [(one, one.label if strategy == "none" else one.tag) for one in parts]
        return [
            describe(text, one, label)
            for one, label in labelled
            if label not in self.keys.ignored or math.isnan(one.score)  # a fault of the model
        ]

    def words(self, text: str, encoding: Any, own: Sequence[int]) -> list[list[int]]:
        """Return the tokens of each word."""
        prefix = getattr(self.tokenizer.backend.model, "continuing_subword_prefix", None)
        words: list[list[int]] = []
        for place in own:
            token, start = encoding.tokens[place], encoding.offsets[place][0]
            if prefix:
                goes_on = token.startswith(prefix)
            else:  # whether a blank belongs to its token depends on the tokenizer
                goes_on = start > 0 and " " not in text[start - 1 : start + 1]
            if words and goes_on and token != self.tokenizer.unknown:
                words[-1].append(place)
            else:
                words.append([place])
        return words

    def part(self, scores: npt.NDArray[np.float64], span: Span) -> Part:
        """Return the class of a word; `scores` is [its tokens, classes]."""
        strategy = self.request.parameters["aggregation"]
        if strategy == "average":
            row = scores.mean(axis=0)
        elif strategy == "max":
            row = scores[scores.max(axis=1).argmax()]
        else:
            row = scores[0]
        best = int(row.argmax())
        return Part(self.labels[best], float(row[best]), span)


def joined(parts: Sequence[Part]) -> list[Part]:
    """Return entities: parts of the same tag, of which none but the first begins one."""
    groups: list[list[Part]] = []
    for one in parts:
        if groups and one.tag == groups[-1][-1].tag and not one.label.startswith(BEGIN):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        Part(
            group[0].label,
            float(np.mean([one.score for one in group])),
            (group[0].span[0], group[-1].span[1]),
        )
        for group in groups
    ]


def describe(text: str, part: Part, label: str) -> dict[str, Any]:
    """Return a part for an answer in JSON."""
    word, start, end = cut_words(text, *part.span)
    score = round(part.score, 6)
    return {"label": label, "score": score, "word": word, "start": start, "end": end}
