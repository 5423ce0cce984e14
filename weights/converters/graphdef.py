"""Reads TensorFlow GraphDef nodes in the JSON that TensorFlow.js stores them in.

Integers are text and strings are base64, as in protobuf's JSON mapping.
"""

from __future__ import annotations

import base64
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from weights.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Mapping

Node = dict[str, Any]


def only(signature: dict[str, Any], side: str) -> tuple[str, list[int]]:
    """Return node name and shape of the model's only input or output."""
    tensors = list(signature.get(side, {}).values())
    if len(tensors) != 1:
        raise ConversionError(f"the model has {len(tensors)} {side}; one is mapped")
    shape = [int(dim["size"]) for dim in tensors[0]["tensorShape"]["dim"]]
    return tensors[0]["name"].removesuffix(":0"), shape


def in_order(nodes: Mapping[str, Node], result: str) -> list[str]:
    """Return the nodes that `result` needs, in topological order.

    Raises ConversionError if a node is not there, or reads what depends on it.
    """
    needed: dict[str, list[str]] = {}
    unread = [result]
    while unread:
        name = unread.pop()
        if name not in nodes:
            raise ConversionError(f"the graph has no node {name!r}")
        if name not in needed:
            needed[name] = nodes[name].get("input", [])
            unread.extend(needed[name])
    try:
        return list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        raise ConversionError(f"nodes read one another in a circle: {error.args[1]}") from error


def integers(node: Node, attribute: str) -> list[int]:
    return [int(number) for number in node["attr"][attribute]["list"]["i"]]


def texts(node: Node, attribute: str) -> list[str]:
    return [base64.b64decode(text).decode() for text in node["attr"][attribute]["list"]["s"]]


def padding(node: Node) -> str:
    """Return `VALID`, `SAME` or `EXPLICIT`."""
    return base64.b64decode(node["attr"]["padding"]["s"]).decode()


def spatial(node: Node, attribute: str) -> list[int]:
    """Return height and width of an attribute that is given for N, H, W, C.

    Raises ConversionError if those for the batch and the channels are not 1.
    """
    batch, height, width, channels = integers(node, attribute)
    if batch != 1 or channels != 1:
        raise ConversionError(f"{node['name']!r} has {attribute} over the batch or the channels")
    return [height, width]
