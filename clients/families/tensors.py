"""Tensors in, tensors out, as for a model without a `dispatch.toml`: for other names alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clients.base import Payload
from clients.plugins.dispatch_toml import Keys
from clients.plugins.family import Family
from clients.tensors.client import TensorClient
from clients.triton.server import Signature


class Tensors(TensorClient, Family[Keys, None]):
    """Answers the model's outputs to bodies of the Open Inference Protocol."""

    keys_type = Keys
    example = {}  # any would be another model's

    def fit(self, signature: Signature) -> None:  # any model fits
        pass

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        return self.each(payloads, self.inference)
