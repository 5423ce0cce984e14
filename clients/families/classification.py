"""What is in the picture? For models that give a score per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from clients.base import FORMAT, Parameter, Payload
from clients.families.base.dispatch_toml import FLAG, key, labels_key
from clients.families.base.family import ScoredClass
from clients.families.base.picture_input import CutKeys, PicturePlan, ResizingFamily, cut_plan
from clients.tensors.scores import best, class_text, likeliest
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class ClassificationKeys(CutKeys):
    """The keys of this family."""

    labels: str = labels_key()
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)


class Classification(ResizingFamily[ClassificationKeys]):
    """Answers the best classes as Triton writes them: "score:index:label", best first.

    Without labels it is "score:index".
    """

    keys_type = ClassificationKeys
    result_type = list[ScoredClass | str]
    compared_as = "classes"
    parameters = {
        "top_k": Parameter(3, 1, 1000, "how many classes to answer"),
        "format": FORMAT,
    }

    def fit(self, signature: Signature) -> PicturePlan:
        plan, output, sizes = cut_plan(self, signature)
        if sum(size not in (1, -1) for size in sizes) > 1:
            raise self.misfit(f"{output} has no score per class")
        self.count_labels(max(sizes, default=-1), str(output))
        return plan

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        rows = [output.ravel() for output, _ in self.outputs(payloads)]
        self.count_labels(len(rows[0]), f"`{self.fitted().output}`")
        return [self.answer(row) for row in rows]

    def answer(self, scores: npt.NDArray[Any]) -> list[Any]:
        """Return the best classes of one picture; `scores` is [classes]."""
        ranked = likeliest if self.keys.softmax else best
        found = ranked(scores, self.request.parameters["top_k"])
        # Six digits, as Triton's own classification extension writes them.
        if self.request.parameters["format"] == "objects":
            return [self.named(index, score) for index, score in found]
        labels = [
            f"{index}:{self.labels[index]}" if self.labels else f"{index}" for index, _ in found
        ]
        return [class_text(score, label) for (_, score), label in zip(found, labels, strict=True)]
