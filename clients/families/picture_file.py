"""A picture's file in, tensors out: for models that decode by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clients.base import Payload
from clients.families.base.dispatch_toml import TENSOR, Keys, key
from clients.families.base.family import Family
from clients.families.base.picture_input import FileInput, picture_input
from clients.images.pictures import EXAMPLE
from clients.tensors.client import TensorResult
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class PictureFileKeys(Keys):
    """The keys of this family."""

    input: str = key(TENSOR, "the input, where there are several", "")


class PictureFileFamily(Family[PictureFileKeys, FileInput]):
    """Answers all outputs of the model for a picture, as a V2 body does."""

    keys_type = PictureFileKeys
    example = {"img": EXAMPLE}
    media = {"picture": "img"}

    def fit(self, signature: Signature) -> FileInput:
        taken = picture_input(self, signature)
        if not isinstance(taken, FileInput):
            raise self.misfit(f"`{taken.name}` takes pixels")
        return taken

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        taken = self.fitted()
        answer = self.infer(taken.tensor(self.each(payloads, self.picture_file)))
        rows = [slice(None)] if taken.single else [slice(i, i + 1) for i in range(len(payloads))]
        return [
            TensorResult(
                self.triton_model(),
                self.request.version,
                {name: array[row] for name, array in answer.items()},
            ).body()
            for row in rows
        ]
