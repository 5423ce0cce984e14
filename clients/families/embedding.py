"""A vector for each text: the vectors of texts with the same meaning are near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from clients.base import Parameter, Payload
from clients.errors import BadParameter, BadPayload
from clients.families.base.dispatch_toml import COUNTS, FLAG, key, one_of
from clients.families.base.text_input import TextFamily, TextKeys
from clients.families.base.vectors import as_vectors, normalise
from clients.tensors.quoting import unexpected
from clients.triton.server import TensorSpec

IDS = "token_ids"  # in a payload, in the place of its text
IdsPayload = TypedDict("IdsPayload", {"text": str, "token_ids": list[int]}, total=False)


@dataclass(frozen=True, kw_only=True)
class EmbeddingKeys(TextKeys):
    """The keys of this family."""

    pooling: str = key(
        one_of("mean", "first", "none"),
        "how tokens' vectors become one; none if the output is one",
        "mean",
    )
    normalised: bool = key(FLAG, "whether vectors are scaled to length 1", default=True)
    matryoshka: tuple[int, ...] = key(
        COUNTS, "the shorter lengths to which callers may have vectors cut, by `dimensions`", ()
    )


class GivenTokens(NamedTuple):
    """The tokens of a text that a caller has made, as the tokenizer's encoding has them."""

    ids: list[int]
    attention_mask: list[int]
    type_ids: list[int]


class Embedding(TextFamily[EmbeddingKeys]):
    """Answers the text's vector, as a list of numbers.

    In place of `text` a payload may have `token_ids`, of the model's own tokenizer.
    """

    keys_type = EmbeddingKeys
    payload_type = IdsPayload
    result_type = list[float]
    compared_as = "vectors"
    embeds = True
    parameters = {
        "dimensions": Parameter(
            0, 0, 100_000, "the length of the vector, where the model allows another; 0 for its own"
        )
    }

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        pooled = self.keys.pooling == "none"
        if len(sizes) not in (1, 2):
            raise self.misfit(f"{spec} has no vector per token or text")
        if pooled != (len(sizes) == 1):
            raise self.mistake(
                "pooling",
                f'is "{self.keys.pooling}", but {spec} has one vector per '
                f"{'token' if pooled else 'text'}",
                'write "mean"' if pooled else 'write "none"',
            )
        if (longest := max(self.keys.matryoshka, default=0)) > sizes[-1] > 0:
            fix = "write lengths below that"
            raise self.mistake("matryoshka", f"has {longest}, but {spec} is shorter", fix)

    def texts(self, payloads: Sequence[Payload]) -> list[Any]:
        longest = self.fitted().longest

        def read(payload: Payload) -> Any:
            if IDS not in payload:
                return self.encoded(self.text(payload), longest)
            if "text" in payload:
                raise BadPayload(f"there are both `text` and `{IDS}`", hint="send one of the two")
            self.refuse_unknown(payload)
            return self.given(payload[IDS], longest)

        return self.each(payloads, read)

    def given(self, ids: Any, longest: int) -> GivenTokens:
        """Return the tokens that a caller has made.

        Those of another tokenizer, such as OpenAI's, would have a vector without a meaning: they
        lack the special tokens of this one, where it has some.
        """
        before, after = self.tokenizer.edges
        most = self.tokenizer.backend.get_vocab_size() - 1
        if not (
            isinstance(ids, list)
            and all(type(one) is int and 0 <= one <= most for one in ids)
            and max(1, len(before) + len(after)) <= len(ids) <= longest
            and [*ids[: len(before)], *ids[len(ids) - len(after) :]] == [*before, *after]
        ):
            form = ", ".join(map(str, (*before, "…", *after)))
            raise unexpected(
                IDS,
                ids,
                f"what the model's own tokenizer makes: [{form}], at most {longest} numbers from 0 "
                f"to {most}; or send the text itself, as LangChain does with "
                "check_embedding_ctx_length=False",
            )
        return GivenTokens(ids, [1] * len(ids), [0] * len(ids))

    def wanted_length(self) -> int | None:
        """Return the length that the caller wants; nothing for the model's own.

        Raises BadParameter: the model's vectors cannot be cut so.
        """
        wanted: int = self.request.parameters.get("dimensions", 0)
        width = self.tensor(self.signature().outputs, "output").shape[-1] if wanted else 0
        if wanted not in (0, width, *self.keys.matryoshka):
            allowed = ", ".join(str(one) for one in (*self.keys.matryoshka, width) if one > 0)
            raise BadParameter(
                f"`parameters.dimensions` is {wanted}",
                hint=f"the model allows {allowed or 'none'} (`matryoshka` in dispatch.toml)",
            )
        return wanted or None

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        wanted = self.wanted_length()
        encodings = self.texts(payloads)
        vectors = np.array(
            [
                self.pooled(output, encoding)
                for output, encoding in zip(self.outputs(encodings), encodings, strict=True)
            ]
        )[:, :wanted]
        return as_vectors(vectors, normalised=self.keys.normalised)

    def pooled(self, output: npt.NDArray[np.float32], encoding: Any) -> npt.NDArray[np.float64]:
        """Return a text's vector from its output: [width], or [tokens, width]."""
        vectors: npt.NDArray[np.float64] = output.astype(np.float64)
        if self.keys.pooling == "none":
            return vectors
        own = vectors[self.begin(encoding, len(vectors)) :][: len(encoding.ids)]
        if self.keys.pooling == "first":
            return np.asarray(own[0])
        return np.asarray(np.average(own, axis=0, weights=encoding.attention_mask))

    def ranks(self) -> bool:
        return True

    def rank_payloads(self, query: str, documents: Sequence[str]) -> list[Payload]:
        return [{"text": text} for text in (*documents, query)]

    def relevance(self, results: Sequence[Any]) -> list[float]:
        """Return the cosine of each document's vector and the query's: -1 to 1."""
        vectors = normalise(np.array(results, np.float64))
        cosines: list[float] = (vectors[:-1] @ vectors[-1]).round(7).tolist()
        return cosines
