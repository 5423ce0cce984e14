"""Tensors in, tensors out: for a `dispatch.toml` that has only aliases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clients.base import Payload
from clients.families.base.dispatch_toml import Keys
from clients.families.base.family import Family
from clients.tensors.client import TensorClient
from clients.triton.server import Signature


class Tensors(TensorClient, Family[Keys, None]):
    """Answers the model's outputs to bodies of the Open Inference Protocol."""

    keys_type = Keys
    example = {}  # no payload suits every model

    def fit(self, signature: Signature) -> None:  # every model suits
        pass

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        return self.each(payloads, self.inference)
