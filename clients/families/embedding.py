"""A vector for each text: the vectors of texts with the same meaning are near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Payload
from clients.families.base.dispatch_toml import FLAG, key, one_of
from clients.families.base.family import show_spec
from clients.families.base.text_input import TextFamily, TextKeys
from clients.triton.server import TensorSpec

LEAST_LENGTH = 1e-12  # as in PyTorch's `normalize`; a vector of zeros stays zero


@dataclass(frozen=True, kw_only=True)
class EmbeddingKeys(TextKeys):
    """The keys of this family."""

    pooling: str = key(
        one_of("mean", "first", "none"),
        "how tokens' vectors become one; none if the output is one",
        "mean",
    )
    normalised: bool = key(FLAG, "whether vectors are scaled to length 1", default=True)


class Embedding(TextFamily[EmbeddingKeys]):
    """Answers the text's vector, as a list of numbers."""

    keys_type = EmbeddingKeys

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        pooled = self.keys.pooling == "none"
        if len(sizes) not in (1, 2):
            raise self.misfit(f"{show_spec(spec)} has no vector per token or text")
        if pooled != (len(sizes) == 1):
            raise self.mistake(
                "pooling",
                f'is "{self.keys.pooling}", but {show_spec(spec)} has one vector per '
                f"{'token' if pooled else 'text'}",
                'write "mean"' if pooled else 'write "none"',
            )

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        encodings = self.texts(payloads)
        vectors = np.array(
            [
                self.pooled(output, encoding)
                for output, encoding in zip(self.outputs(encodings), encodings, strict=True)
            ]
        )
        if self.keys.normalised:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            with np.errstate(invalid="ignore"):  # infinity by infinity is not a number
                vectors = vectors / np.maximum(lengths, LEAST_LENGTH)
        # Models compute in float32, which has seven digits.
        return [[round(number, 7) for number in vector] for vector in vectors.tolist()]

    def pooled(self, output: npt.NDArray[np.float32], encoding: Any) -> npt.NDArray[np.float64]:
        """Return a text's vector from its output: [width], or [tokens, width]."""
        vectors: npt.NDArray[np.float64] = output.astype(np.float64)
        if self.keys.pooling == "none":
            return vectors
        own = vectors[self.begin(encoding, len(vectors)) :][: len(encoding.ids)]
        if self.keys.pooling == "first":
            return np.asarray(own[0])
        return np.asarray(np.average(own, axis=0, weights=encoding.attention_mask))
