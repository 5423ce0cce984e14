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
        # Its padding and truncation are state that all threads share, and that asking for the one
        # or the other changes: both stay off, and the batch is padded here.
        self.tokenizer.backend_tokenizer.no_padding()
        self.tokenizer.backend_tokenizer.no_truncation()

    def inference(self, payload: Payload) -> list[Any]:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Payload]) -> list[list[Any]]:
        read = self.each(payloads, self.masked_text)
        ids, attention = padded([ids for _, ids in read], self.tokenizer.pad_token_id)
        logits = self.infer(
            {"input_ids": ids, "attention_mask": attention, "token_type_ids": np.zeros_like(ids)}
        )["output"]
        return [
            self.filled(text, row[mask])
            for (text, _), row, mask in zip(
                read, logits, ids == self.tokenizer.mask_token_id, strict=True
            )
        ]

    def masked_text(self, payload: Payload) -> tuple[str, list[int]]:
        """Return the payload's text, which has a mask and fits the model, and its token ids.

        Raises:
            BadPayload: there is no text, no mask in it, or too much of it.

        """
        mask, longest = self.tokenizer.mask_token, self.tokenizer.model_max_length
        text = self.text(payload, "text", f"a sentence with a {mask}")
        if mask not in text:
            raise BadPayload(
                f"`text` has no {mask}", hint=f"put {mask} where the word to be found belongs"
            )
        hint = f"the model takes at most {longest} tokens: shorten it"
        if len(text) > longest * LONGEST_TOKEN:
            raise BadPayload(f"`text` has {len(text)} characters", hint=hint)
        ids = self.tokenizer.backend_tokenizer.encode(text).ids
        if len(ids) > longest:
            raise BadPayload(f"`text` has {len(ids)} tokens", hint=hint)
        return text, ids

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


# A text with more characters than this for each token has too many tokens in any language; it is
# refused before the time is spent on counting them.
LONGEST_TOKEN = 50


def padded(
    rows: Sequence[Sequence[int]], padding: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return token ids as one array, and where they are tokens: int64 [texts, longest] both."""
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), padding, np.int64)
    attention = np.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        attention[place, : len(row)] = 1
    return ids, attention


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
