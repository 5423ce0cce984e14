"""The interfaces to the server that runs the models, and the values they exchange.

    Inference     run a model, and know its tensors        what clients and their authors use
    ModelServer   list, load, unload and probe models too  what the routes and the prober use

`clients/triton/client.py` implements both for Triton, `tests/support/fake_triton.py` without a
network; `clients/testing.py` implements the first with ONNX Runtime. Every method raises
`ModelUnavailable` where the server cannot be reached, and `DeadlineExceeded` where it does not
answer within `timeout` seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.request import SequencePart

Tensors = Mapping[str, npt.NDArray[np.generic]]
Scalar = str | int | float | bool

TOLERANCES = {"float16": 2e-2, "float32": 2e-4, "float64": 2e-4}
"""The largest difference between two equal answers, as a share of the largest number. Summing in
another order changes some 1e-6 in single precision; another scale of a quantized model 1e-2."""


@dataclass(frozen=True)
class Padding:
    """How the rows of a request may be made longer or shorter.

    Only for a model that answers a row the same whatever else is in its batch, as a text model does
    that is given an attention mask.
    """

    # For each input, the whole number that fills up its rows along axis 1. All of these inputs have
    # the same length there. A row that ends in these numbers in all of them may be run without.
    inputs: Mapping[str, int]
    # The outputs that are as long as these inputs along axis 1. They come back in the length that
    # was sent; values behind the end of a row are undefined. Do not ask for an output whose shape
    # depends on this length in another way.
    outputs: Sequence[str]


@dataclass(frozen=True)
class Hints:
    """What a backend may skip or combine. Backends that do not know a hint ignore it."""

    # The rows wanted of some outputs, by number, ascending, each once. All axes but the last count
    # as one, the batch included: of [2, 9, 30522], row 9 is the first row of the second text.
    # `Client.infer` returns these alone, whatever the backend does: the container's own copy no
    # others, and with `padding` OpenVINO computes no others for most models with a vocabulary.
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # For some outputs a column of the last axis and a number, 0 or more: `{"output": (4, 0.5)}`.
    # The container's own backends return only rows with more there: [batch, most rows of an item,
    # columns], in order, filled up with rows of zeros. Others return all: check it again.
    above: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    # So that requests of unequal lengths share a run, and short rows of one run by themselves:
    # about thirty padded places cost as much as reading the weights once more.
    padding: Padding | None = None


NO_HINTS = Hints()


class Answer(dict[str, npt.NDArray[Any]]):
    """The outputs of a run by name, and the version of the model that gave them, if known."""

    version = ""
    parameters: Mapping[str, Scalar] = MappingProxyType({})
    """What the model gave besides."""


def is_filtered(array: npt.NDArray[Any], above: tuple[int, float] | None) -> bool:
    """Whether the server has left out the rows that are not above a number."""
    if above is None:
        return False
    column, least = above
    others = array[array.any(-1)][:, column] <= least  # rows of zeros are padding
    return not others.any()


def pick_rows(array: npt.NDArray[Any], rows: Sequence[int]) -> npt.NDArray[Any]:
    """Return some rows of an output: [rows, size of the last axis].

    All axes but the last count as one, the batch included. The shape shows whether the server has
    picked them already.
    """
    if array.ndim == 2 and len(array) == len(rows):
        return array
    return array.reshape(-1, array.shape[-1])[np.asarray(rows, np.intp)]


NOT_LOADED = (
    "it is not loaded; if loading it failed, Triton's log has the reason, and `dispatcher check` "
    "may name it"
)

DIED_LOADING = (
    "the process of the model died while it was loaded, had no processor time for a second, or had "
    "all the time of a load and was ended, which is not repeated by itself; the log says which"
)


@dataclass(frozen=True)
class ModelState:
    """The state of one version of a model in the repository."""

    name: str  # the model's
    version: str  # its number
    state: str  # READY, LOADING, UNLOADING or UNAVAILABLE; empty for a model that was never loaded
    reason: str = ""  # why it is in this state, if Triton says so

    @property
    def ready(self) -> bool:
        return self.state == "READY"

    @property
    def died(self) -> bool:
        """Whether its process died while it was loaded, or was merely slow."""
        return self.reason.endswith(DIED_LOADING)

    @property
    def why(self) -> str:
        """The reason for the state; Triton keeps none for a configuration that it refuses."""
        return self.reason if self.state else self.reason or NOT_LOADED


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str  # its name
    datatype: str  # as the V2 protocol spells it, such as FP32
    # Sizes, -1 where any size is accepted; where the model batches, the batch is first
    shape: tuple[int, ...]
    optional: bool = False  # whether it may be left out

    def __str__(self) -> str:
        return f"`{self.name}` {self.datatype} {list(self.shape)}"

    @property
    def is_file(self) -> bool:
        """Whether an item may be an encoded file: it is BYTES, or UINT8 of any length."""
        if self.datatype == "UINT8":
            return self.shape in {(-1,), (1, -1), (-1, -1), (1, 1, -1), (-1, 1, -1)}
        return self.datatype == "BYTES"


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, and how it is run."""

    max_batch_size: int  # 0 where it does not batch
    inputs: tuple[TensorSpec, ...] = ()  # in the order of the configuration
    outputs: tuple[TensorSpec, ...] = ()
    decoupled: bool = False  # whether it answers one request any number of times
    ensemble: bool = False  # whether it is a chain of other models
    sequence: bool = False  # whether it keeps state from one request of a sequence to the next
    backend: str = ""  # Triton's name of what runs it
    # Whether rows of different requests may share a run, because none changes the answer of
    # another: it has `dynamic_batching`, or all steps of the ensemble have.
    shares_runs: bool = False
    cached: bool = False  # whether Triton may answer from its response cache, or a step of it
    correlation: str = ""  # the type of a sequence's id, such as UINT64 or BYTES; empty for none
    idle_s: float = 0.0  # the seconds for which it keeps a sequence without a further request


class Inference(ABC):
    """Runs models."""

    @abstractmethod
    def infer(
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        hints: Hints = NO_HINTS,
        version: str = "",
        sequence: SequencePart | None = None,
        parameters: Mapping[str, Scalar] | None = None,
        timeout: float,
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Run a model once; `clients.base.Client.infer` says what most arguments are.

        A model without state ignores `sequence`, and a server may ignore `hints`. The empty version
        is the one `ModelServer.pinned`, else the latest. `timeout` is in seconds. The arrays come
        as they are named in `outputs` and `classes`, else all in the order of the signature.

        Raises:
            TensorsRefused, UnknownModel, UnknownVersion, ModelFailed: as they are named.
            BadParameter: the model keeps state, and no sequence is named.
            UnknownSequence: the model does not keep this sequence.

        """

    def stream(
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        version: str = "",
        sequence: SequencePart | None = None,
        parameters: Mapping[str, Scalar] | None = None,
        timeout: float,
    ) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
        """Yield the answers of a model that gives any number of them; arguments as for `infer`.

        A generator or a `Stream`: its `close` cancels the run.

        Raises InferenceError: as `infer`, at any answer.
        """
        yield self.infer(
            model,
            inputs,
            outputs=outputs,
            version=version,
            sequence=sequence,
            parameters=parameters,
            timeout=timeout,
        )

    @abstractmethod
    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        """Return the inputs and outputs of a model.

        Raises UnknownModel, UnknownVersion, ModelUnavailable.
        """


class ModelServer(Inference):
    """Runs models, controls them, and tells whether they still answer."""

    pinned: Mapping[str, str] = MappingProxyType({})
    """By model, the version that is meant where none is named; of others it is the latest."""

    @abstractmethod
    def models(self, *, timeout: float) -> list[ModelState]:
        """Return all models in the repository, one state per version."""

    @abstractmethod
    def load(self, model: str, *, timeout: float) -> None:
        """Load a model of the repository, and wait until it is ready; ModelFailed says why not.

        After DeadlineExceeded the server goes on, here and below.
        """

    @abstractmethod
    def reload(self, model: str, *, timeout: float) -> None:
        """Load a loaded model once more, with new processes; other models go on meanwhile."""

    @abstractmethod
    def unload(self, model: str, *, timeout: float) -> None:
        """Unload a model, and wait until its memory is free."""

    @abstractmethod
    def is_ready(self, *, timeout: float) -> bool:
        """Whether the server answers requests. Never raises: no answer is `False`."""

    def tidy(self) -> None:
        """Free what ended web workers have left behind; called now and then."""

    @abstractmethod
    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        """Return as soon as a model has shown that it answers, if possible without a run.

        It may run `inputs`. Raises as `infer` does, except TensorsRefused, which is an answer too.
        """

    @abstractmethod
    def instances(self, model: str, *, timeout: float) -> int:
        """Return how many instances a version of a model has by its configuration."""

    @abstractmethod
    def answered(self, model: str, *, timeout: float) -> int:
        """Return how many requests a model has answered since it was loaded."""

    @abstractmethod
    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        """Fail all requests of this process that wait for a model which will not answer.

        They fail in `within` seconds; those that begin meanwhile do not.
        """

    @abstractmethod
    def take_failing(self) -> set[str]:
        """Return the models whose last run here failed, each once after such a run."""
