"""BERT with a fill-mask head: which word belongs in the blank?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer

from clients.base import FORMAT, Client, Environment, Parameter, Payload
from clients.errors import BadPayload


class BertBase(Client):
    """Answers `{"token": the sentence filled in, "score": probability}`, best first.

    Where the text has several masks the result is one such list per mask, each filled in by
    itself.
    """

    modelname = "bert_base"
    example = {"text": "The world has [MASK] people."}
    parameters = {
        "top_k": Parameter(5, 1, 1000, "how many words to answer for each mask"),
        "format": FORMAT,  # both are the same here: the fields have names already
    }
    media = {"text": "text"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tokenizer = AutoTokenizer.from_pretrained(
            self.folder / "tokenizer", local_files_only=True
        )

    def inference(self, payload: Payload) -> list[Any]:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Payload]) -> list[list[Any]]:
        texts = self.each(payloads, self.masked_text)
        # Padding is always "longest" and truncation always off: the tokenizer is shared by all
        # threads, and asking it for another of either would change it under the others.
        tokens = self.tokenizer(
            texts, padding="longest", return_token_type_ids=True, return_tensors="np"
        )
        ids = tokens["input_ids"]
        logits = self.infer({name: tokens[name].astype(np.int64) for name in INPUTS})["output"]
        return [
            self.filled(text, row[mask])
            for text, row, mask in zip(
                texts, logits, ids == self.tokenizer.mask_token_id, strict=True
            )
        ]

    def masked_text(self, payload: Payload) -> str:
        """Return the payload's text, which has a mask and fits the model.

        Raises:
            BadPayload: there is no text, no mask in it, or too much of it.

        """
        mask, longest = self.tokenizer.mask_token, self.tokenizer.model_max_length
        text = self.text(payload, "text", f"a sentence with a {mask}")
        if mask not in text:
            raise BadPayload(
                f"`text` has no {mask}", hint=f"put {mask} where the word to be found belongs"
            )
        length = len(self.tokenizer(text)["input_ids"])
        if length > longest:
            raise BadPayload(
                f"`text` has {length} tokens", hint=f"the model takes at most {longest}: shorten it"
            )
        return text

    def filled(self, text: str, logits: npt.NDArray[np.float32]) -> list[Any]:
        """Return the answer for one text; `logits` is [masks, vocabulary]."""
        mask = self.tokenizer.mask_token
        parts = text.split(mask)
        answers = []
        for place, row in enumerate(logits, start=1):
            before, after = mask.join(parts[:place]), mask.join(parts[place:])
            answers.append(
                [
                    {"token": before + self.tokenizer.decode([token]) + after, "score": score}
                    for token, score in most_likely(row, self.request.parameters["top_k"])
                ]
            )
        return answers[0] if len(answers) == 1 else answers


INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def most_likely(logits: npt.NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely tokens and their probabilities, most likely first.

    The probability is the softmax over the whole vocabulary.

    Args:
        logits: [vocabulary].
        count: how many are wanted.

    """
    exact = logits.astype(np.float64)
    weights = np.exp(exact - exact.max())
    best = np.argsort(-exact, kind="stable")[:count]
    return [(int(token), round(float(weights[token] / weights.sum()), 6)) for token in best]
