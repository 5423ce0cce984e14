"""Where a text lies among others: one vector for each, near for texts that mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Payload
from clients.dispatch_toml import FLAG, key, one_of
from clients.family import shown
from clients.model_server import TensorSpec
from clients.text_input import TextFamily, TextKeys

LEAST_LENGTH = 1e-12  # as PyTorch's `normalize`; a vector of zeros stays one


@dataclass(frozen=True, kw_only=True)
class EmbeddingKeys(TextKeys):
    """The keys of this family."""

    pooling: str = key(
        one_of("mean", "first", "none"),
        "which tokens make the text's vector: the mean of all, the first one's, or none where the "
        "model's output is the vector",
        "mean",
    )
    normalised: bool = key(FLAG, "whether vectors get the length 1", default=True)


class Embedding(TextFamily[EmbeddingKeys]):
    """Answers the text's vector, as a list of numbers."""

    keys_type = EmbeddingKeys

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        pooled = self.keys.pooling == "none"
        if len(sizes) not in (1, 2):
            raise self.misfit(f"{shown(spec)} has no vector per token or text")
        if pooled != (len(sizes) == 1):
            raise self.mistake(
                "pooling",
                f'is "{self.keys.pooling}", but {shown(spec)} has one vector per '
                f"{'token' if pooled else 'text'}",
                'write "mean"' if pooled else 'write "none"',
            )

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        encodings = self.texts(payloads)
        vectors = self.outputs(encodings).astype(np.float64)
        if self.keys.pooling == "first":
            vectors = vectors[np.arange(len(vectors)), self.first_places(encodings, vectors)]
        elif self.keys.pooling == "mean":
            masks = [one.attention_mask for one in encodings]
            vectors = mean_of_tokens(vectors, self.padded(masks, 0, vectors.shape[1]))
        if self.keys.normalised:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, LEAST_LENGTH)
        # Models compute in float32, which has seven digits.
        return [[round(number, 7) for number in vector] for vector in vectors.tolist()]

    def first_places(self, encodings: Sequence[Any], vectors: npt.NDArray[np.float64]) -> list[int]:
        """Return where each text begins in the model's output, [texts, tokens, width]."""
        if not self.tokenizer.from_left:
            return [0] * len(encodings)
        return [max(0, vectors.shape[1] - len(one.ids)) for one in encodings]


def mean_of_tokens(
    vectors: npt.NDArray[np.float64], attention: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return each text's mean vector, [texts, width].

    Args:
        vectors: [texts, tokens, width].
        attention: [texts, tokens], 0 where a text is only filled up.

    """
    weights = attention[..., None]
    return np.asarray((vectors * weights).sum(1) / weights.sum(1))
