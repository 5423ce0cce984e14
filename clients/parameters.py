"""Parameters of a request: declared by each client, with type and range."""

from __future__ import annotations

import math
import re
import sys
from contextlib import suppress
from dataclasses import dataclass

from clients.errors import BadParameter
from clients.tensors.quoting import brief

# Python's `int` and `float` accept more: `1_000`, blanks, digits of other scripts, `nan`.
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Parameter:
    """A parameter that callers may set in a request."""

    # Where the caller sets none; its type is the parameter's: `int`, `float`, or `str` with choices
    default: float | str
    low: float = -math.inf  # the least number allowed
    high: float = math.inf  # the greatest
    meaning: str = ""  # what it does, for the documentation and error messages
    choices: tuple[str, ...] = ()  # the texts allowed, for a parameter that is a text

    @property
    def expected(self) -> str:
        """The values allowed, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        low = f" from {self.low:.15g}" if self.low > -math.inf else ""
        high = f"{' to' if low else ' up to'} {self.high:.15g}" if self.high < math.inf else ""
        return f"{kind}{low}{high}"

    def read(self, name: str, value: object) -> float | str:
        """Return the caller's value, checked.

        Raises BadParameter: it is of the wrong type or out of range.
        """
        if self.choices:
            if isinstance(value, str) and value in self.choices:
                return value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole = isinstance(self.default, int)
            # NaN fails every comparison; 1e400 is read as infinity, which is not meant.
            finite = abs(value) <= sys.float_info.max or value == self.default
            # 3.0 is a whole number, as in JSON Schema.
            if self.low <= value <= self.high and finite and not (whole and value % 1):
                return int(value) if whole else float(value)
        raise BadParameter(
            f"`parameters.{name}` is {brief(value)}",
            hint=f"expected {self.expected}: {self.meaning}",
        )

    def read_text(self, name: str, text: str) -> float | str:
        """Return a value from a header or the query, checked as by `read`."""
        value: object = text
        whole = isinstance(self.default, int)
        # Anything else stays a text, which is refused and shown in the error.
        if not self.choices and (WHOLE if whole else NUMBER).fullmatch(text):
            with suppress(ValueError):  # too many digits for Python
                value = int(text) if whole else float(text)
        if value in (math.inf, -math.inf):  # 1e400
            value = text
        return self.read(name, value)


FORMAT = Parameter(
    "compact",
    meaning="compact lists, or objects with named fields",
    choices=("compact", "objects"),
)
