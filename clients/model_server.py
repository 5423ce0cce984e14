"""The seam to the program that runs the models: four calls, each with a deadline.

`clients/triton.py` is the real one; `tests/fake_triton.py` is the one without a network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class ModelState:
    """One version of one model in the repository, as the server sees it."""

    name: str
    version: str
    ready: bool
    reason: str


class ModelServer(ABC):
    """Runs models.

    Every method raises `ModelUnavailable` where the server cannot be reached and
    `DeadlineExceeded` where it does not answer within `timeout` seconds.
    """

    @abstractmethod
    def infer(  # noqa: PLR0913  one call is all there is to know of a model server
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        version: str = "",
        timeout: float,
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Run a model once.

        Args:
            model: its name in the repository.
            inputs: an array per input tensor; where the model batches, axis 0 is the batch.
            outputs: the output tensors wanted; none named means all.
            classes: for an output tensor, how many of its best classes are wanted instead of the
                tensor itself: `bytes` of the form `score:index:label`, best first, shape
                [batch, classes].
            version: version of the model; the empty text means the latest.
            timeout: seconds that the call may take.

        Raises:
            TensorsRefused, UnknownModel, UnknownVersion, ModelUnavailable, ModelFailed,
            DeadlineExceeded.

        """

    @abstractmethod
    def max_batch_size(self, model: str, *, timeout: float) -> int:
        """Return the most items that one run of the model takes; 0 where it does not batch."""

    @abstractmethod
    def is_ready(self, *, timeout: float) -> bool:
        """Whether the server answers requests. Never raises: no answer is `False`."""

    @abstractmethod
    def models(self, *, timeout: float) -> list[ModelState]:
        """Return all models in the repository, a state per version."""
