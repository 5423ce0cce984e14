"""Which words are names, and of what? For language models with a score per token and class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from clients.base import Parameter, Payload
from clients.families.base.dispatch_toml import NAMES, key, labels_key
from clients.families.base.text_input import TextFamily, TextKeys, cut_words
from clients.tensors.scores import softmax

# An entity's first part, or its only one, and its others, in the formats IOB2, IOBES and BILOU.
BEGIN, GO_ON = ("B-", "S-", "U-"), ("I-", "E-", "L-")

Entity = TypedDict("Entity", {"label": str, "score": float, "word": str, "start": int, "end": int})
Part = tuple[str, float, list[int]]  # a class, its probability, and the tokens


@dataclass(frozen=True, kw_only=True)
class TokenClassificationKeys(TextKeys):
    """The keys of this family."""

    labels: str = labels_key()
    ignored: tuple[str, ...] = key(NAMES, "labels that are not answered", ("O",))


class TokenClassification(TextFamily[TokenClassificationKeys]):
    """Answers `{"label": the class, "score": …, "word": …, "start": …, "end": …}` for each entity.

    Places are in characters (code points) of the text. Tokens become words and entities as in
    `TokenClassificationPipeline` of transformers.
    """

    keys_type = TokenClassificationKeys
    result_type = list[Entity]
    answered_with = (2, "score per token and class")
    compared_as = "names"
    needs_labels = True
    parameters = {
        "aggregation": Parameter(
            "simple",
            meaning="how tokens become entities: not at all; one by one; or first as words, each "
            "with the class of its first token, of the average, or of the surest token",
            choices=("none", "simple", "first", "average", "max"),
        )
    }

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        encodings = self.texts(payloads)
        answers = []
        for payload, encoding, output in zip(
            payloads, encodings, self.outputs(encodings), strict=True
        ):
            self.count_labels(output.shape[-1], "the output")
            scores = output[self.begin(encoding, len(output)) :][: len(encoding.ids)]
            answers.append(self.entities(payload["text"], encoding, softmax(scores)))
        return answers

    def entities(self, text: str, encoding: Any, scores: npt.NDArray[np.float64]) -> list[Any]:
        """Return the answer for a text; `scores` is [tokens, classes]."""
        strategy = self.request.parameters["aggregation"]
        own = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        words = [[place] for place in own]
        if strategy not in ("none", "simple"):
            words = self.words(text, encoding, own)
        parts = [(*self.best_class(scores[word]), [*word]) for word in words]
        answer = []
        for label, score, tokens in parts if strategy == "none" else joined(parts):
            if label not in self.keys.ignored or math.isnan(score):  # a fault of the model
                begin, behind = encoding.offsets[tokens[0]][0], encoding.offsets[tokens[-1]][1]
                word, begin, behind = cut_words(text, begin, behind)
                where = {"word": word, "start": begin, "end": behind}
                answer.append({"label": label, "score": round(score, 6), **where})
        return answer

    def words(self, text: str, encoding: Any, own: Sequence[int]) -> list[list[int]]:
        """Return the tokens of each word."""
        prefix = getattr(self.tokenizer.backend.model, "continuing_subword_prefix", None)
        unknown = self.tokenizer.id(self.tokenizer.unknown)
        words: list[list[int]] = []
        for place in own:
            token, start = encoding.tokens[place], encoding.offsets[place][0]
            if prefix:
                goes_on = token.startswith(prefix)
            else:  # whether a blank belongs to its token depends on the tokenizer
                goes_on = start > 0 and " " not in text[start - 1 : start + 1]
            if words and goes_on and encoding.ids[place] != unknown:
                words[-1].append(place)
            else:
                words.append([place])
        return words

    def best_class(self, scores: npt.NDArray[np.float64]) -> tuple[str, float]:
        """Return the class of a word and its probability; `scores` is [its tokens, classes]."""
        strategy = self.request.parameters["aggregation"]
        if strategy == "average":
            row = scores.mean(axis=0)
        elif strategy == "max":
            row = scores[scores.max(axis=1).argmax()]
        else:
            row = scores[0]
        best = int(row.argmax())
        return self.labels[best], float(row[best])


def joined(parts: Sequence[Part]) -> list[Part]:
    """Return entities: parts of the same tag, of which none but the first begins one."""
    groups: list[tuple[str, list[float], list[int]]] = []
    for label, score, tokens in parts:
        tag = label[2:] if label[:2] in (*BEGIN, *GO_ON) else label
        if groups and tag == groups[-1][0] and not label.startswith(BEGIN):
            groups[-1][1].append(score)
            groups[-1][2].extend(tokens)
        else:
            groups.append((tag, [score], tokens))
    return [(tag, float(np.mean(scores)), tokens) for tag, scores, tokens in groups]
