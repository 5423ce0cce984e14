"""Which word belongs in the blank? For language models with a fill-mask head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.errors import BadPayload
from clients.family import shown
from clients.model_server import TensorSpec
from clients.scores import likeliest
from clients.text_input import TextFamily, TextKeys

# Characters: a text of 500 masks filled in with 1000 words for each would be 1.5 GB.
LONGEST_ANSWER = 2**20


class FillMask(TextFamily[TextKeys]):
    """Answers `{"token": the sentence filled in, "score": probability}`, best first.

    Where the text has several masks the result is one such list per mask, each filled in by
    itself.
    """

    keys_type = TextKeys
    parameters = {
        "top_k": Parameter(5, 1, 1000, "how many words to answer for each mask"),
        "format": FORMAT,  # both are the same here: the fields have names already
    }

    needed = (*TextFamily.needed, "mask_token")

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if not self.tokenizer.mask:
            raise self.mistake(
                "tokenizer", "names one without a mask token", "write the folder of the model's own"
            )
        if self.keys.example is None:
            self.example = {"text": f"The world has {self.tokenizer.mask} people."}

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        if len(sizes) != 2:
            raise self.misfit(f"{shown(spec)} has no score per token and word")
        if 0 < sizes[1] < self.tokenizer.size:
            raise self.mistake(
                "tokenizer",
                f"names one with {self.tokenizer.size} words, but it is {shown(spec)}",
                "write the folder of the model's own, or, where these are no scores of words but "
                'vectors, `family = "embedding"`',
            )

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        longest = self.fitted().longest
        read = self.each(payloads, lambda payload: self.masked(payload, longest))
        logits = self.logits([encoding for _, encoding in read])
        return [self.filled(text, rows) for (text, _), rows in zip(read, logits, strict=True)]

    def logits(self, encodings: Sequence[Any]) -> list[npt.NDArray[np.float32]]:
        """Return the model's output at the masks of each text: [masks, vocabulary]."""
        mask = self.tokenizer.id(self.tokenizer.mask)
        places = [
            [place for place, token in enumerate(encoding.ids) if token == mask]
            for encoding in encodings
        ]
        return self.outputs(encodings, places)

    def masked(self, payload: Payload, longest: int) -> tuple[str, Any]:
        """Return the payload's text, which has a mask and fits the model, and its encoding.

        Raises:
            BadPayload: there is no text, no mask in it, or too much of it.

        """
        mask = self.tokenizer.mask
        text = self.text(payload, "text", f"a sentence with a {mask}")
        if mask not in text:
            raise BadPayload(
                f"`text` has no {mask}", hint=f"put {mask} where the word to be found belongs"
            )
        encoding = self.encoded(text, longest)
        answers = text.count(mask) * self.request.parameters["top_k"]
        if answers * len(text) > LONGEST_ANSWER:
            raise BadPayload(
                f"the answer would be the text of {len(text)} characters {answers} times",
                hint=f"masks times `top_k` may be {LONGEST_ANSWER // len(text)} for such a text",
            )
        return text, encoding

    def filled(self, text: str, logits: npt.NDArray[np.float32]) -> list[Any]:
        """Return the answer for one text; `logits` is [masks, vocabulary]."""
        mask = self.tokenizer.mask
        parts = text.split(mask)
        answers = []
        for place, row in enumerate(logits, start=1):
            before, after = mask.join(parts[:place]), mask.join(parts[place:])
            answers.append(
                [
                    {"token": joined(before, self.tokenizer.decode(token), after), "score": score}
                    for token, score in most_likely(row, self.request.parameters["top_k"])
                ]
            )
        return answers[0] if len(answers) == 1 else answers


def joined(before: str, word: str, after: str) -> str:
    """Return a text with a word in its blank.

    Tokenizers mark where a word begins or goes on: by a space before it, which the text may have
    too, or by "##".
    """
    if word.startswith("##"):
        word = word[2:]
    elif word[:1] == " " and (not before or before[-1].isspace()):
        word = word[1:]
    return before + word + after


def most_likely(logits: npt.NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely tokens and their probabilities, most likely first.

    The probability is the softmax over the whole vocabulary.

    Args:
        logits: [vocabulary].
        count: how many are wanted.

    """
    return [(token, round(score, 6)) for token, score in likeliest(logits, count)]
