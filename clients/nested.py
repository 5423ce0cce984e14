"""Lists in lists, as JSON has them."""

from __future__ import annotations

from typing import Any


def flattened(data: list[Any]) -> list[Any]:
    """Return the elements of evenly or unevenly nested lists, in order.

    Each is looked at once, however deep the lists are: callers choose that.
    """
    if list not in set(map(type, data)):
        return data
    flat: list[Any] = []
    nested = [iter(data)]
    while nested:
        for element in nested[-1]:
            if isinstance(element, list):
                nested.append(iter(element))
                break
            flat.append(element)
        else:
            nested.pop()
    return flat
