"""The seam to the program that runs the models: a few calls, each with a deadline.

`clients/triton/client.py` is the real one; `tests/support/fake_triton.py` is the one without a
network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[np.generic]]

TOLERANCES = {"float16": 2e-2, "float32": 2e-4, "float64": 2e-4}
"""How far two answers may be apart that count as alike, as a part of the largest number: sums in
another order change some 1e-6 in single precision, another scale of a quantized model 1e-2."""

Rows = Mapping[str, Sequence[int]]
"""Numbers of rows by the name of an output, ascending, each once."""

Above = Mapping[str, tuple[int, float]]
"""By the name of an output a column of its last axis, and a number, 0 or more: rows with more there
are looked at, and no others."""


@dataclass(frozen=True)
class Padding:
    """How long rows may be made: as long as others, to share a run, or as short as they are.

    Only for a model that answers a row alike then, whatever stands beside it in a batch, as one of
    texts does where it is given an attention mask.

    Args:
        inputs: by the name of an input, the whole number that may stand behind its own along
            axis 1. All of these inputs have one length there. A row of several that ends in these
            numbers in all of these inputs may be run without them.
        outputs: those that are as long as these inputs, along the same axis. What comes back has
            the length that was sent, with anything, such as zeros, behind a row's own end. An
            output whose shape follows from this length otherwise must not be asked for.

    """

    inputs: Mapping[str, int]
    outputs: Sequence[str]


def is_picked(array: npt.NDArray[Any], rows: Sequence[int] | None) -> bool:
    """Whether the model server has picked the rows already, which the shape says."""
    return rows is not None and array.ndim == 2 and len(array) == len(rows)


def is_filtered(array: npt.NDArray[Any], above: tuple[int, float] | None) -> bool:
    """Whether the model server has left out the rows that are not above a number."""
    if above is None:
        return False
    column, least = above
    others = array[array.any(-1)][:, column] <= least  # rows of zeros are padding
    return not others.any()


def picked(array: npt.NDArray[Any], rows: Sequence[int]) -> npt.NDArray[Any]:
    """Return some rows of an output: [rows, size of the last axis].

    All axes but the last are counted as one, the batch included.
    """
    if is_picked(array, rows):
        return array
    return array.reshape(-1, array.shape[-1])[np.asarray(rows, np.intp)]


NOT_LOADED = (
    "it was not loaded; where that was tried, Triton's log has the reason, and `dispatcher check` "
    "may find it"
)


@dataclass(frozen=True)
class ModelState:
    """One version of one model in the repository, as the server sees it.

    `state` is Triton's word: READY, LOADING, UNLOADING, UNAVAILABLE, or nothing for a model that
    was never loaded.
    """

    name: str
    version: str
    state: str
    reason: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "READY"

    @property
    def why(self) -> str:
        """Why it is as it is: Triton keeps no word on a model whose configuration it refuses."""
        return self.reason if self.state else self.reason or NOT_LOADED


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a model takes or gives.

    Args:
        name: its name.
        datatype: as the V2 protocol spells it, such as FP32.
        shape: sizes, -1 where any will do; where the model batches, the batch stands first.
        optional: whether it may be left out.

    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives.

    Args:
        max_batch_size: 0 where it does not batch.
        inputs: that it takes.
        outputs: that it gives.
        decoupled: whether it gives any number of answers to a request, which is not served.
        ensemble: whether it is made of others.
        sequence: whether it keeps state from one request to the next, which is not served.
        backend: what runs it, as Triton calls it.
        shares_runs: whether each row of a batch is answered as if it were alone, so that requests
            may share runs: by its `dynamic_batching`, or that of all parts of an ensemble.

    """

    max_batch_size: int
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    decoupled: bool = False
    ensemble: bool = False
    sequence: bool = False
    backend: str = ""
    shares_runs: bool = False


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
        rows: Rows | None = None,
        above: Above | None = None,
        padding: Padding | None = None,
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
            rows: of which outputs no more than some rows are looked at; see `picked`. A server
                may leave out the others, or answer the whole output.
            above: likewise, for those that a number of their own tells apart. A server that leaves
                out the others answers [batch, most rows of an item, columns], in order, and rows
                of zeros where an item has fewer.
            padding: what a server that batches may do with the inputs.
            version: version of the model; the empty text means the latest.
            timeout: seconds that the call may take.

        Returns:
            an array per output: those of `outputs` and `classes` in the order in which they are
            named, else all in the order of the signature.

        Raises:
            TensorsRefused, UnknownModel, UnknownVersion, ModelUnavailable, ModelFailed,
            DeadlineExceeded.

        """

    @abstractmethod
    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        """Return when a model gave a sign of life, without a run where it can give one so.

        Args:
            model: its name.
            inputs: some that it takes, in case that it runs them.
            timeout: seconds until this gives up.

        Raises:
            InferenceError: as `infer` does, but for refused inputs, which are a sign of life.

        """

    @abstractmethod
    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        """Return what a model takes and gives.

        Raises:
            UnknownModel, UnknownVersion, ModelUnavailable.

        """

    @abstractmethod
    def instances(self, model: str, *, timeout: float) -> int:
        """Return how many instances a version of a model has by its configuration.

        Raises:
            UnknownModel, ModelUnavailable.

        """

    @abstractmethod
    def answered(self, model: str, *, timeout: float) -> int:
        """Return how many requests a model has answered since it was loaded, whoever sent them.

        Raises:
            UnknownModel, ModelUnavailable.

        """

    @abstractmethod
    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        """Let all that a model was asked here and has not answered fail: nobody will answer it.

        Args:
            model: its name.
            reason: what those who wait are told.
            within: so many seconds it has left for answers. What is asked meanwhile stays.

        """

    @abstractmethod
    def take_failing(self) -> set[str]:
        """Return the models whose last run here failed, each once after such a run."""

    @abstractmethod
    def is_ready(self, *, timeout: float) -> bool:
        """Whether the server answers requests. Never raises: no answer is `False`."""

    def tidy(self) -> None:  # noqa: B027  a server may have nothing of the kind
        """See to what is left of web workers that are gone; called now and then while it runs."""

    @abstractmethod
    def models(self, *, timeout: float) -> list[ModelState]:
        """Return all models in the repository, a state per version."""

    @abstractmethod
    def load(self, model: str, *, timeout: float) -> None:
        """Load a model that lies in the repository; wait until it is ready.

        Raises:
            ModelFailed: it cannot be loaded; the message says why.
            DeadlineExceeded: it takes longer; the server goes on with it.

        """

    @abstractmethod
    def reload(self, model: str, *, timeout: float) -> None:
        """Load a model that is loaded once more, with new processes; others go on meanwhile.

        Raises:
            ModelFailed, ModelUnavailable, DeadlineExceeded: it cannot be loaded, or not in time.

        """

    @abstractmethod
    def unload(self, model: str, *, timeout: float) -> None:
        """Unload a model; wait until its memory is given back.

        Raises:
            DeadlineExceeded: it takes longer; the server goes on with it.

        """
