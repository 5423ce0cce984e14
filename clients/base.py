"""The contract that the author of a client lives by: a class with one method.

The smallest whole client:

    from clients.base import Client

    class Double(Client):
        modelname = "double"
        example = {"numbers": [1, 2]}

        def inference(self, payload):
            numbers = self.numbers(payload, "numbers")
            return self.infer({"INPUT": numbers[None]})["OUTPUT"][0].tolist()
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from clients.errors import BadParameter, BadPayload, DeadlineExceeded, InferenceError
from clients.model_server import ModelServer, Tensors
from clients.pictures import Picture, decode_base64, decode_picture

Payload = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Parameter:
    """A setting that a caller may give with one request, with its default and its range.

    Args:
        default: used where the caller gives none; its type is the parameter's: `int` or `float`.
        low: the least value allowed.
        high: the greatest value allowed.
        meaning: what it does, for the documentation and the error message.

    """

    default: float
    low: float
    high: float
    meaning: str

    def read(self, name: str, value: object) -> float:
        """Return the caller's value, checked.

        Raises:
            BadParameter: it is of the wrong type or out of range.

        """
        whole = isinstance(self.default, int)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits and whole:
            fits = isinstance(value, int)
        # NaN fails both comparisons.
        if not fits or not self.low <= value <= self.high:  # type: ignore[operator]
            raise BadParameter(
                f"`parameters.{name}` is {brief(value)}",
                hint=f"expected {'a whole number' if whole else 'a number'} "
                f"from {self.low:g} to {self.high:g}: {self.meaning}",
            )
        return value if whole else float(value)  # type: ignore[return-value,arg-type]


@dataclass(frozen=True)
class Request:
    """What belongs to one request besides its payload. Clients read it as `self.request`.

    Args:
        parameters: a value for every parameter that the client declares, checked.
        version: the model's version that was asked for; the empty text means the latest.
        deadline: when the time for this request is used up, on the clock of `time.monotonic()`.

    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    deadline: float = math.inf

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the `self.request` of every client that is called inside the block."""
        token = _request.set(self)
        try:
            yield
        finally:
            _request.reset(token)

    def time_left(self) -> float:
        """Return the seconds until the deadline.

        Raises:
            DeadlineExceeded: there are none left.

        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                "the time for this request was used up before the model was asked",
                hint="send fewer or smaller items in one request",
            )
        return left


_request: ContextVar[Request] = ContextVar("request")


@dataclass(frozen=True)
class Environment:
    """What the container hands to every client it makes.

    Args:
        server: where the models run.
        model_repository: the folder with one folder per model.
        max_pixels: the largest picture that is decoded, in pixels.

    """

    server: ModelServer
    model_repository: Path
    max_pixels: int = 50_000_000


class Client(ABC):
    """Turns payloads into tensors and tensors into results, for one model.

    Lifetime: one object per web worker, made once when the worker has started; what is costly
    (a tokenizer, labels) is made in `__init__`. Threads: many call `inference` at the same time
    on the same object, so nothing about a request is kept on `self`. Errors: raise those of
    `clients.errors` for what the caller should know; everything else is answered with a constant
    text and logged.
    """

    modelname: ClassVar[str]
    """The name that callers use."""

    example: ClassVar[Payload]
    """A payload that works: shown to people and used to try the model."""

    model: ClassVar[str] = ""
    """The model's name in the repository, where it is not `modelname`."""

    parameters: ClassVar[Mapping[str, Parameter]] = {}
    """What a caller may set in `parameters`. Anything else is refused before `inference`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.folder = environment.model_repository / self.triton_model()
        """The model's folder in the repository: labels and tokenizers lie there."""

    @classmethod
    def triton_model(cls) -> str:
        """Return the model's name in the repository."""
        return cls.model or cls.modelname

    @abstractmethod
    def inference(self, payload: Payload) -> Any:
        """Return the result for one payload, as JSON can hold it: no arrays, no numpy numbers.

        Raises:
            InferenceError: or a subclass, where the caller should know what was wrong.

        """

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        """Return the results for some payloads, in their order; at most `max_batch_size` of them.

        Override it where the model can run them at once; this one runs them one by one.
        """
        return self.each(payloads, self.inference)

    @property
    def request(self) -> Request:
        """The request that is being answered in this thread."""
        return _request.get()

    @property
    def max_batch_size(self) -> int:
        """The most payloads that `inference_batch` is given at once, at least 1."""
        size = self._environment.server.max_batch_size(
            self.triton_model(), timeout=self.request.time_left()
        )
        return max(1, size)

    def infer(
        self,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        model: str = "",
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model on Triton, in the version and within the time of the request.

        Args:
            inputs: an array per input tensor; where the model batches, axis 0 is the batch.
            outputs: the output tensors wanted; none named means all.
            classes: for an output with labels, how many of its best classes are wanted instead of
                the numbers: `bytes` of the form `score:index:label`, shape [batch, classes].
            model: another model than the client's own; always in its latest version.

        Returns:
            an array per output tensor.

        Raises:
            InferenceError: one of its subclasses, as `clients.model_server` says.

        """
        return self._environment.server.infer(
            model or self.triton_model(),
            inputs,
            outputs=outputs,
            classes=classes,
            version="" if model else self.request.version,
            timeout=self.request.time_left(),
        )

    def each(self, payloads: Sequence[Payload], read: Callable[[Payload], T]) -> list[T]:
        """Apply `read` to every payload; an error says which of them it was."""
        done: list[T] = []
        for position, payload in enumerate(payloads):
            try:
                done.append(read(payload))
            except InferenceError as error:
                error.position = position
                raise
        return done

    def picture(self, payload: Payload, name: str = "img") -> Picture:
        """Decode a picture, sent as base64 of a JPEG, PNG, WebP or BMP.

        Returns:
            uint8 of shape [height, width, 3], RGB, upright (the EXIF orientation is applied).

        Raises:
            BadPayload: the field is missing or is no such picture.

        """
        return decode_picture(
            decode_base64(self.text(payload, name, "base64 of a picture"), name),
            name,
            self._environment.max_pixels,
        )

    def text(self, payload: Payload, name: str = "text", expected: str = "a text") -> str:
        """Return a text field.

        Raises:
            BadPayload: the field is missing, is not a text or is empty.

        """
        value = self._field(payload, name, expected)
        if not isinstance(value, str) or not value:
            raise BadPayload(
                f"`{name}` is {brief(value)}", hint=f"expected {expected} in `payload.{name}`"
            )
        return value

    def numbers(self, payload: Payload, name: str) -> npt.NDArray[np.float32]:
        """Return a field that holds a list of numbers, or lists of them, as a float32 array.

        Raises:
            BadPayload: the field is missing, or is not a list of numbers of even shape.

        """
        value = self._field(payload, name, "a list of numbers")
        try:
            array = np.array(value, np.float32)
        except (TypeError, ValueError, OverflowError):
            array = np.array(0, np.float32)
        if array.ndim == 0:
            raise BadPayload(
                f"`{name}` is {brief(value)}",
                hint=f"expected a list of numbers in `payload.{name}`, nested evenly",
            )
        return array

    def _field(self, payload: Payload, name: str, expected: str) -> Any:
        if name not in payload:
            came = ", ".join(f"`{key}`" for key in payload) or "nothing"
            raise BadPayload(
                f"`{name}` is missing; the payload has {came}",
                hint=f'expected {{"{name}": {expected}}}',
            )
        return payload[name]

    @classmethod
    def read_parameters(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for every parameter the client declares: the caller's, or the default.

        Raises:
            BadParameter: one is not declared, of the wrong type or out of range.

        """
        for name in given:
            if name not in cls.parameters:
                known = ", ".join(cls.parameters) or "no parameters"
                raise BadParameter(
                    f"`parameters.{name}` is not known", hint=f"{cls.modelname} takes {known}"
                )
        return {
            name: parameter.read(name, given[name]) if name in given else parameter.default
            for name, parameter in cls.parameters.items()
        }


def brief(value: object, longest: int = 60) -> str:
    """Return how a value is shown in an error: its beginning where it is long."""
    shown = repr(value[: longest + 1] if isinstance(value, str | list) else value)
    return shown if len(shown) <= longest else f"{shown[:longest]}…"
