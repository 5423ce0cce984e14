"""A vector for each picture: the vectors of pictures that show the same are near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Payload
from clients.families.base.dispatch_toml import FLAG, key, one_of
from clients.families.base.picture_input import CutKeys, PicturePlan, ResizingFamily, cut_plan
from clients.families.base.vectors import as_vectors
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class PictureEmbeddingKeys(CutKeys):
    """The keys of this family."""

    pooling: str = key(
        one_of("none", "first", "mean"),
        "how the vectors of a picture's parts become one; none if the output is one",
        "none",
    )
    normalised: bool = key(FLAG, "whether vectors are scaled to length 1", default=True)


class PictureEmbedding(ResizingFamily[PictureEmbeddingKeys]):
    """Answers the picture's vector, as a list of numbers."""

    keys_type = PictureEmbeddingKeys
    result_type = list[float]
    compared_as = "vectors"

    def fit(self, signature: Signature) -> PicturePlan:
        plan, spec, sizes = cut_plan(self, signature)
        if not 1 <= len(sizes) <= 3:
            raise self.misfit(f"{spec} has no vector per picture or part of one")
        parts = sum(size != 1 for size in sizes) > 1
        if parts != (self.keys.pooling != "none"):
            raise self.mistake(
                "pooling",
                f'is "{self.keys.pooling}", but {spec} has one vector per '
                f"{'part of the picture' if parts else 'picture'}",
                'write "first" or "mean"' if parts else 'write "none"',
            )
        return plan

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        vectors = [self.pooled(row.astype(np.float64)) for row, _ in self.outputs(payloads)]
        return as_vectors(np.array(vectors), normalised=self.keys.normalised)

    def pooled(self, output: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return a picture's vector from its output: of one, of its tokens, or of its places.

        Those of tokens are [tokens, width], those of places [width, height, width].
        """
        if self.keys.pooling == "none":
            return output.ravel()
        parts = output.reshape(len(output), -1).T if output.ndim == 3 else output
        return np.asarray(parts[0] if self.keys.pooling == "first" else parts.mean(0))
