"""Triton's response cache: for which models it tells one request from another.

It compares the bytes of inputs, not their shapes: of [1, 4] and [2, 2] with equal bytes the second
would be answered as the first was. So a model for which bytes do not say the shape has no cache.
"""

from __future__ import annotations

from pathlib import Path

from clients.model_files.config_text import Message, read_folder, read_if_right

CACHE = "response_cache", "enable"
WHY = "Triton's cache compares bytes, not shapes"
FIX = (
    "write `input` with `dims` and `max_batch_size`, of which one size varies at most (a batch of "
    "1 does not), or leave it out"
)


def mixes_shapes(message: Message) -> bool:
    """Whether equal bytes of an input may be of two shapes, as far as a configuration says."""
    inputs, most = message.messages("input"), message.readable_number("max_batch_size")
    varies = most > 1 or not message.all("max_batch_size")  # which Triton may complete
    return not inputs or any(one.texts("dims").count("-1") + varies > 1 for one in inputs)


def without_mixing_cache(text: str) -> str:
    """Return a configuration without a cache that would mix up shapes."""
    message = read_if_right(text)
    if message.switches(*CACHE) and mixes_shapes(message):
        for field in reversed(message.all("response_cache")):
            text = text[: field.start] + text[field.end :]
    return text


def cache_warning(folder: Path) -> str:
    """Return why a model has no cache though it asks for one; else an empty text."""
    message = read_folder(folder)
    if message.switches(*CACHE) and mixes_shapes(message):
        return f"its `response_cache` is off, in a copy of config.pbtxt: {WHY}; {FIX}"
    return ""
