"""Read the `parameters` of a model's configuration, which are strings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from backends.model_config import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""What `ParseBoolValue` of Triton's backend library accepts, in any case."""


def texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return every parameter's `string_value` by its key."""
    parameters = config.get("parameters") or {}
    return {key: str(value.get("string_value", "")) for key, value in parameters.items()}


def parse_bool(key: str, text: str) -> bool:
    """Return the boolean; raise ModelConfigError with the key for other texts."""
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ModelConfigError(
            f"parameter '{key}' is '{text}', but expected is 'true', 'false', '1' or '0'."
        )
    return value


def parse_int(key: str, text: str) -> int:
    """Return the integer; raise ModelConfigError with the key for other texts."""
    if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        raise ModelConfigError(f"parameter '{key}' is '{text}', but expected is a whole number.")
    return int(text)


def count_of(config: Mapping[str, Any], key: str) -> int:
    """Return the parameter as a number of threads; 0 where it is left out.

    0 and, as on the native backends, any negative number mean the default.

    Raises ModelConfigError: naming the key.
    """
    text = texts(config).get(key)
    return 0 if text is None else max(0, parse_int(key, text))
