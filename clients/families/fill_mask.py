"""Which word fits the mask? For language models with a fill-mask head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.errors import BadPayload
from clients.families.base.text_input import TextFamily, TextKeys
from clients.tensors.scores import likeliest
from clients.triton.server import TensorSpec

FoundWord = TypedDict("FoundWord", {"token": str, "score": float})

# In characters: a text of 500 masks with 1000 words for each would be 1.5 GB.
LONGEST_ANSWER = 2**20


class FillMask(TextFamily[TextKeys]):
    """Answers `{"token": the sentence filled in, "score": probability}`, best first.

    For a text with several masks the result is one such list per mask; each fills in that mask.
    """

    keys_type = TextKeys
    result_type = list[FoundWord | list[FoundWord]]
    answered_with = (2, "score per token and word")
    compared_as = "words"
    parameters = {
        "top_k": Parameter(5, 1, 1000, "how many words to answer for each mask"),
        "format": FORMAT,  # both are the same here: the fields have names already
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if not self.tokenizer.mask:
            fix = "write its `mask_token` into its tokenizer_config.json"
            raise self.not_loaded("which names no mask token", fix)
        mask = self.tokenizer.mask
        if self.tokenizer.id(mask) not in self.tokenizer.backend.encode(mask).ids:
            raise self.not_loaded(
                f"which reads {mask} as a word",
                "leave `split_special_tokens` out of its tokenizer_config.json",
            )
        if self.keys.example is None and not self.keys.examples:
            self.example = {"text": f"The world has {self.tokenizer.mask} people."}

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        super().check_output(spec, sizes)
        if 0 < sizes[1] < self.tokenizer.backend.get_vocab_size():
            words = self.tokenizer.backend.get_vocab()
            word = max(words, key=words.__getitem__)
            raise self.not_loaded(
                f"whose token {words[word]} is `{word}`, but {spec} has {sizes[1]} words",
                "put the files of the model's own tokenizer there, or, where these are vectors, no "
                'scores of words, write `family = "embedding"`',
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
        """Return the payload's text, with at least one mask, and its encoding."""
        mask = self.tokenizer.mask
        text = self.text(payload, "text", f"a sentence with a {mask}")
        if mask not in text:
            raise BadPayload(
                f"`text` has no {mask}", hint=f"put {mask} where the word to be found belongs"
            )
        encoding = self.encoded(text, longest)
        read = encoding.ids.count(self.tokenizer.id(mask))
        if read != text.count(mask):
            raise BadPayload(
                f"`text` has {text.count(mask)} {mask}, but {read} masks among its tokens",
                hint="put a blank before and behind each of them",
            )
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
                    {"token": self.tokenizer.filled(before, token, after), "score": round(score, 6)}
                    for token, score in likeliest(row, self.request.parameters["top_k"])
                ]
            )
        return answers[0] if len(answers) == 1 else answers
