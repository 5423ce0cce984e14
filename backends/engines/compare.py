"""Compare a client's answers from two engines, or from two versions of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clients.base import Client
from clients.tensors.agreement import Agreement, compare, tensors, worst_of

Answer = tuple[Any, Sequence[Mapping[str, Any]]]  # a result, and the outputs of the model's runs


def parameters(client: Client) -> dict[str, Any]:
    """Return parameters of the comparison: all classes of a classifier."""
    top_k = client.parameters.get("top_k")
    if client.compared_as == "classes" and top_k is not None and math.isfinite(top_k.high):
        return {"top_k": int(top_k.high)}
    return {}


def difference(client: Client, expected: Answer, got: Answer) -> Agreement:
    """Compare the answers to one sample: results, or the model's outputs."""
    if client.compared_as == "values":
        if len(expected[1]) != len(got[1]):
            words = f"the client asks {len(got[1])} times, not {len(expected[1])} times"
            return Agreement(passes=False, worst=words, difference=math.inf)
        return worst_of([tensors(*pair) for pair in zip(expected[1], got[1], strict=True)])
    confidence = client.read_parameters({}).get("confidence", 0.0)
    return compare(client.compared_as, expected[0], got[0], confidence=confidence)
