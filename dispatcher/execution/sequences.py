"""Which sequence of a model that keeps state a request belongs to."""

from __future__ import annotations

import time
from typing import Any

from clients.base import Client
from clients.errors import BadParameter
from clients.families.base.family import Family
from clients.request import SEQUENCE_NAMES, SequencePart
from clients.tensors.client import TensorClient
from dispatcher.codecs.metadata import Metadata, names_sequence, read_sequence
from dispatcher.execution.model_lookup import ModelLookup


def sequence_of(
    lookup: ModelLookup,
    client: Client,
    parameters: dict[str, Any],
    metadata: Metadata,
    deadline: float,
) -> SequencePart | None:
    """Return the sequence that a request belongs to; take its names out of the parameters."""
    if not client.parameters.keys().isdisjoint(SEQUENCE_NAMES):  # the author's own
        return None
    sequence = read_sequence(parameters, metadata)
    named = names_sequence(parameters, metadata)
    for name in SEQUENCE_NAMES:
        parameters.pop(name, None)
    if named and isinstance(client, TensorClient | Family):  # a class may ask other models
        left = max(0.001, deadline - time.monotonic())
        signature = lookup.environment.server.signature(client.served_by, timeout=left)
        if not signature.sequence:
            raise BadParameter(
                f"`sequence_id` came, but the model {client.served_by!r} keeps no state",
                hint="leave it out, or give the model `sequence_batching` in config.pbtxt",
            )
    return sequence
