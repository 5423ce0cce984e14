"""What a family needs of a model, and what of it the model's file shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clients.tensors.signature import describe_tensors
from clients.triton.server import TensorSpec
from container.trouble import Trouble

CHECK = "# CHECK: "
"""Before what the file does not show: the author looks at these lines."""

SCORES = ("logit", "prob", "softmax", "score")  # in the name of an output


class AskAuthor(Trouble):
    """The family suits the model, but needs what only the author knows."""


class Misfit(Exception):
    """The family cannot serve the model; the text says why, and begins with a tensor."""


@dataclass(frozen=True)
class FamilyPlan:
    """How a family would serve the model."""

    family: str
    why: str  # what of the model's tensors shows it
    lines: tuple[str, ...] = ()  # of dispatch.toml, behind the family's own
    labels: tuple[str, ...] = ()  # the names of the classes
    proven: bool = False  # whether the files show the family; else only the author knows
    tokens: bool = False  # whether it needs a tokenizer
    labelled: str = ""  # the output whose classes the labels are, for config.pbtxt

    def and_lines(self, *lines: str) -> FamilyPlan:
        return replace(self, lines=(*self.lines, *lines))

    def and_known(self, known: Mapping[str, Any]) -> FamilyPlan:
        """Return it with what is known, by key, in the place of guesses, and of remarks on them."""
        kept: list[str] = []
        remarks: list[str] = []
        for line in self.lines:
            remarks.append(line)
            if not line.startswith("#"):
                kept += [] if line.partition(" = ")[0] in known else remarks
                remarks = []
        lines = (f"{name} = {json.dumps(value)}" for name, value in known.items())
        return replace(self, lines=(*kept, *lines)) if known else self

    def with_labels(self, names: tuple[str, ...], count: int = 0) -> FamilyPlan:
        """Return it with the labels that are known, or with `count` numbered ones."""
        if names:
            return replace(self, labels=names)
        made_up = tuple(f"class {number}" for number in range(count))
        note = f"{CHECK}the file has no names: write the model's own into labels.txt, in its order"
        return replace(self, labels=made_up).and_lines(note)


def is_named(spec: TensorSpec, words: Sequence[str]) -> bool:
    """Whether one of some words is in a tensor's name."""
    return any(word in spec.name.lower() for word in words)


def quote(name: str) -> str:
    """Return a name as Python, TOML and `config.pbtxt` write texts."""
    return json.dumps(name, ensure_ascii=False)


def several(specs: tuple[TensorSpec, ...]) -> str:
    return describe_tensors(specs) or "nothing"
