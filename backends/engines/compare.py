"""Compare a client's answers from two engines, or from two versions of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clients.base import Client, Parameter
from clients.families.base.family import Family
from clients.tensors.agreement import Agreement, compare, tensors, worst_of

Answer = tuple[Any, Sequence[Mapping[str, Any]]]  # a result, and the outputs of the model's runs

RANKED = ("classification", "text-classification")
FIRST = (*RANKED, "fill-mask", "question-answering", "zero-shot-classification")
OF_PICTURES = ("detection", "picture-embedding", "segmentation", "picture-to-picture")
FAMILIES = (*FIRST, *OF_PICTURES, "ctc", "embedding", "token-classification")


def kind(client: Client) -> str:
    """Return how a client's answers are compared: its family, or "tensors"."""
    family = client.keys.family if isinstance(client, Family) else ""
    return family if family in FAMILIES else "tensors"


def parameters(client: Client) -> dict[str, Any]:
    """Return parameters of the comparison: all classes of a classifier."""
    top_k = client.parameters.get("top_k")
    if kind(client) in RANKED and isinstance(top_k, Parameter) and math.isfinite(top_k.high):
        return {"top_k": int(top_k.high)}
    return {}


def difference(client: Client, expected: Answer, got: Answer) -> Agreement:
    """Compare the answers to one sample: results, or the model's outputs."""
    if kind(client) == "tensors":
        if len(expected[1]) != len(got[1]):
            words = f"the client asks {len(got[1])} times, not {len(expected[1])} times"
            return Agreement(passes=False, worst=words, difference=math.inf)
        return worst_of([tensors(*pair) for pair in zip(expected[1], got[1], strict=True)])
    confidence = client.read_parameters({}).get("confidence", 0.0)
    return compare(kind(client), expected[0], got[0], confidence=confidence)
