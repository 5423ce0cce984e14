"""Which words of a text answer the question? For models with scores of an answer's two ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Parameter, Payload
from clients.errors import BadPayload
from clients.families.base.dispatch_toml import COUNT, FLAG, TENSOR, key
from clients.families.base.text_input import LONGEST_TOKEN, TextFamily, TextKeys, cut_words
from clients.tensors.scores import best, softmax
from clients.triton.server import TensorSpec

QuestionPayload = TypedDict("QuestionPayload", {"question": str, "context": str})
Words = TypedDict("Words", {"answer": str, "score": float, "start": int, "end": int})

MOST_WINDOWS = 64
MOST_CHARACTERS = 500_000  # of a context: their tokens take seconds and 100 MB, before a model runs
SEVERAL = "send it in several parts, and take the best answer"
SPARE = 10  # candidates besides twice the wanted ones, since some are in the same words


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringKeys(TextKeys):
    """The keys of this family."""

    start: str = key(TENSOR, "the output with the scores of the first token", "start_logits")
    end: str = key(TENSOR, "the output with the scores of the last token", "end_logits")
    stride: int = key(COUNT, "tokens that two windows of a long text share", 128)
    no_answer: bool = key(
        FLAG, "whether to answer an empty text where that is likelier, as of SQuAD 2", default=False
    )


class QuestionAnswering(TextFamily[QuestionAnsweringKeys]):
    """Answers `{"answer": words of the context, "score": …, "start": …, "end": …}`, best first.

    Places are in characters (code points) of the context. A context that is too long is read in
    windows. Scores are those of `QuestionAnsweringPipeline` of transformers; of the same answer in
    two windows the better one counts, where transformers adds both.
    """

    keys_type = QuestionAnsweringKeys
    payload_type = QuestionPayload
    result_type = list[Words]
    answered_with = (1, "score per token")
    compared_as = "words"
    example = {"question": "What has many people?", "context": "The world has many people."}
    media = {"text": "context"}
    parameters = {
        "top_k": Parameter(1, 1, 100, "how many answers"),
        "max_answer_tokens": Parameter(15, 1, 1000, "the longest answer"),
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if self.tokenizer.from_left:  # these models read the question behind the context
            raise self.not_loaded("which fills texts up on the left", "serve plain tensors")

    @property
    def row_fields(self) -> Sequence[str]:
        return [*self.fields]

    def wanted(self, outputs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        return [self.tensor(outputs, name) for name in ("start", "end")]

    def is_per_token(self, output: TensorSpec) -> bool:
        return output.shape[-1] == -1

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        longest = self.fitted().longest
        windows = self.each(payloads, lambda payload: self.windows(payload, longest))
        outputs = iter(self.outputs([one for several in windows for one in several]))
        return [
            self.answers(payload["context"], [(one, next(outputs)) for one in several])
            for payload, several in zip(payloads, windows, strict=True)
        ]

    def windows(self, payload: Payload, longest: int) -> list[Any]:
        """Return the encodings of the question with each part of the context."""
        question = self.encoded(self.text(payload, "question"), longest, what="`question`")
        context = self.text(payload, "context")
        if len(context) > min(MOST_CHARACTERS, MOST_WINDOWS * longest * LONGEST_TOKEN):
            raise BadPayload(f"`context` has {len(context)} characters", hint=SEVERAL)
        backend = self.tokenizer.backend
        # Not `encode`, for which all other threads wait: seconds, of a long context.
        both = [payload["question"], context]
        asked, read = backend.encode_batch(both, add_special_tokens=False)
        if not read.ids:
            raise BadPayload("`context` has no tokens", hint="send a text with words in it")
        room = longest - backend.num_special_tokens_to_add(is_pair=True) - len(asked.ids)
        stride = min(self.keys.stride, longest // 2)
        if room <= stride:
            raise BadPayload(
                f"`question` has {len(question.ids)} tokens",
                hint=f"of the model's {longest}, {stride + 1} at least are for the context",
            )
        read.truncate(room, stride=stride)
        if len(read.overflowing) >= MOST_WINDOWS:
            raise BadPayload(
                f"`context` has more than {MOST_WINDOWS} windows of {room} tokens", hint=SEVERAL
            )
        whole = backend.post_process(asked, read)
        return [whole, *whole.overflowing]

    def answers(
        self, context: str, windows: Sequence[tuple[Any, npt.NDArray[np.float32]]]
    ) -> list[Any]:
        """Return the best answers of all windows, each an encoding and an output: [tokens, 2]."""
        found: dict[str, dict[str, Any]] = {}
        least = math.inf  # the probability of no answer, in the window that has the best one
        for encoding, output in windows:
            answers, none = self.in_window(context, encoding, output)
            least = min(least, none)
            for name, one in answers.items():
                if name not in found or one["score"] > found[name]["score"]:
                    found[name] = one
        if self.keys.no_answer:
            found[""] = {"answer": "", "score": least, "start": 0, "end": 0}
        ranked = sorted(found.values(), key=lambda one: one["score"], reverse=True)
        return [
            {**one, "score": round(one["score"], 6)}
            for one in ranked[: self.request.parameters["top_k"]]
        ]

    def in_window(
        self, context: str, encoding: Any, output: npt.NDArray[np.float32]
    ) -> tuple[dict[str, dict[str, Any]], float]:
        """Return a window's answers by their text in lower case, and the probability of none."""
        top_k, longest = (self.request.parameters[one] for one in ("top_k", "max_answer_tokens"))
        inside = np.array(encoding.sequence_ids) == 1
        # A model may say by the score of the first token that there is no answer.
        counted = inside | (np.array(encoding.ids) == self.tokenizer.id(self.tokenizer.first))
        shares = softmax(np.where(counted, output[: len(inside)].T, -np.inf))
        none = float(shares[:, 0].prod())
        if math.isnan(none):  # a fault of the model, which the answer shows
            return {"": {"answer": "", "score": none, "start": 0, "end": 0}}, none
        # Of each first token, with those that may be the last: not with all, which are 67 million
        # of a model for 8192 tokens.
        starts, ends = np.where(inside, shares, 0)
        longest = min(longest, len(inside))
        behind = np.lib.stride_tricks.sliding_window_view(np.pad(ends, (0, longest - 1)), longest)
        pairs = starts[:, None] * behind
        answers: dict[str, dict[str, Any]] = {}
        for place, score in best(pairs.ravel(), 2 * top_k + SPARE):
            if score <= 0:
                break
            first, more = divmod(place, longest)
            begin, end = word_span(encoding, first)[0], word_span(encoding, first + more)[1]
            text, begin, end = cut_words(context, begin, end)
            one = {"answer": text, "score": 0.0, "start": begin, "end": end}
            answers.setdefault(text.lower(), one)["score"] += score
        return answers, none


def word_span(encoding: Any, token: int) -> tuple[int, int]:
    """Return the place of a token's word in the context, or of the token where none is known."""
    word = encoding.token_to_word(token)
    found: tuple[int, int] = (
        encoding.offsets[token] if word is None else encoding.word_to_chars(word, 1)
    )
    return found
