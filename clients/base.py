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

import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from clients.errors import (
    BadParameter,
    BadPayload,
    DeadlineExceeded,
    InferenceError,
    UnsupportedMedia,
)
from clients.model_server import ModelServer, Signature, Tensors
from clients.pictures import Picture, decode_base64, decode_picture

Payload = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Parameter:
    """A setting that a caller may give with one request, with its default and what is allowed.

    Args:
        default: used where the caller gives none; its type is the parameter's: `int`, `float`, or
            `str` where there are choices.
        low: the least number allowed.
        high: the greatest number allowed.
        meaning: what it does, for the documentation and the error message.
        choices: the texts allowed, for a parameter that is one of some words.

    """

    default: float | str
    low: float = -math.inf
    high: float = math.inf
    meaning: str = ""
    choices: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def read(self, name: str, value: object) -> float | str:
        """Return the caller's value, checked.

        Raises:
            BadParameter: it is of the wrong type or out of range.

        """
        if self.choices:
            fits = value in self.choices if isinstance(value, str) else False
        elif isinstance(value, bool) or not isinstance(value, int | float):
            fits = False
        else:
            whole = isinstance(self.default, int)
            # NaN fails both comparisons.
            fits = self.low <= value <= self.high and (not whole or isinstance(value, int))
        if not fits:
            raise BadParameter(
                f"`parameters.{name}` is {brief(value)}",
                hint=f"expected {self.expected}: {self.meaning}",
            )
        return float(value) if isinstance(self.default, float) else value  # type: ignore[arg-type,return-value]

    def read_text(self, name: str, text: str) -> float | str:
        """Return a value that came in a header or in the query, checked likewise."""
        value: object = text
        if not self.choices:
            try:
                value = int(text) if isinstance(self.default, int) else float(text)
            except ValueError:
                pass  # the text itself is shown in the error
        return self.read(name, value)


FORMAT = Parameter(
    "compact",
    meaning="compact lists, or objects with named fields",
    choices=("compact", "objects"),
)


@dataclass(frozen=True)
class Media:
    """A picture or a text that came as it is, not inside of JSON.

    Args:
        kind: "picture" or "text".
        content: the file's bytes, or the text.

    """

    kind: str
    content: bytes | str


@dataclass
class Timings:
    """Seconds that one request has spent in each phase."""

    decode: float = 0.0
    inference: float = 0.0
    postprocess: float = 0.0
    _since: float = 0.0
    _asked: bool = False

    def add(self, other: Timings) -> None:
        """Add what another one has counted, beside or after this one."""
        self.decode += other.decode
        self.inference += other.inference
        self.postprocess += other.postprocess

    def begin(self) -> None:
        """Begin to read payloads."""
        self._since, self._asked = time.monotonic(), False

    def lap(self, *, inference: bool = False) -> None:
        """Count the time since the last call: the model's, or the client's before or after it."""
        now = time.monotonic()
        took, self._since = now - self._since, now
        if inference:
            self.inference += took
            self._asked = True
        elif self._asked:
            self.postprocess += took
        else:
            self.decode += took


@dataclass
class Once:
    """What several clients make of one payload, made by the first of them.

    A key is the identity of a value in the payload, which lives as long as this does.
    """

    _made: dict[int, Any] = field(default_factory=dict)
    _locks: dict[int, threading.Lock] = field(default_factory=dict)

    def __call__(self, value: object, make: Callable[[], T]) -> T:
        """Return what `make` returned for this very object before, or returns now."""
        key = id(value)
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._made:
                self._made[key] = make()
            return cast("T", self._made[key])


@dataclass(frozen=True)
class Request:
    """What belongs to one request besides its payload. Clients read it as `self.request`.

    Args:
        parameters: a value for every parameter that the client declares, checked.
        version: the model's version that was asked for; the empty text means the latest.
        deadline: when the time for this request is used up, on the clock of `time.monotonic()`.
        request_id: what the log and the answer call it.
        attributes: the caller's custom attributes, as they came.
        response_attributes: a client may put its own custom attributes here; they go back in the
            header `X-Amzn-SageMaker-Custom-Attributes`.
        timings: where the time went.
        once: set where several clients are asked about the same payload.

    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    deadline: float = math.inf
    request_id: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    response_attributes: dict[str, str] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    once: Once | None = None

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
                "the time for this request was used up by decoding, before the model was asked",
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

    media: ClassVar[Mapping[str, str]] = {}
    """Where a picture or a text belongs in the payload, when it comes as it is and not as JSON:
    `{"picture": "img"}`, `{"text": "text"}`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.folder = environment.model_repository / self.triton_model()
        """The model's folder in the repository: labels and tokenizers lie there."""

    def triton_model(self) -> str:
        """Return the model's name in the repository."""
        return self.model or self.modelname

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

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:  # noqa: ARG002  for those who override it
        """Return the payload's picture with the result drawn on it, as a file of a media type.

        Only for clients that find things in pictures: they override it. `media_type` is image/jpeg
        or image/png.
        """
        raise UnsupportedMedia(f"{self.modelname} draws no pictures")

    @classmethod
    def draws(cls) -> bool:
        """Whether `draw` does anything."""
        return cls.draw is not Client.draw

    def payload_of(self, media: Media) -> Payload:
        """Return the payload for a picture or a text that came as it is.

        Raises:
            UnsupportedMedia: the client takes no such thing.

        """
        if media.kind not in self.media:
            takes = " or ".join(f"a {kind}" for kind in self.media)
            raise UnsupportedMedia(
                f"a {media.kind} came", hint=f"{self.modelname} takes {takes or 'JSON alone'}"
            )
        return {self.media[media.kind]: media.content}

    def signature(self) -> Signature:
        """Return what the model takes and gives, in the version of the request."""
        return self._environment.server.signature(
            self.triton_model(), self.request.version, timeout=self.request.time_left()
        )

    @property
    def max_batch_size(self) -> int:
        """The most payloads that `inference_batch` is given at once, at least 1."""
        return max(1, self.signature().max_batch_size)

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
        timings = self.request.timings
        timings.lap()
        try:
            return self._environment.server.infer(
                model or self.triton_model(),
                inputs,
                outputs=outputs,
                classes=classes,
                version="" if model else self.request.version,
                timeout=self.request.time_left(),
            )
        finally:
            timings.lap(inference=True)

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
        """Decode a picture, sent as base64 of a JPEG, PNG, WebP or BMP, or as such a file itself.

        Returns:
            uint8 of shape [height, width, 3], RGB, upright (the EXIF orientation is applied). Not
            to be written to: another client may look at the same one.

        Raises:
            BadPayload: the field is missing or is no such picture.

        """
        value = payload.get(name)

        def decode() -> Picture:
            data = (
                value
                if isinstance(value, bytes)
                else decode_base64(self.text(payload, name, "base64 of a picture"), name)
            )
            return decode_picture(data, name, self._environment.max_pixels)

        once = self.request.once
        return once(value, decode) if once else decode()

    def text(self, payload: Payload, name: str = "text", expected: str = "a text") -> str:
        """Return a text field.

        Raises:
            BadPayload: the field is missing, is not a text or is empty.

        """
        value = self._field(payload, name, expected)
        if not isinstance(value, str) or not value or not encodable(value):
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
            array = np.array(value)
        except (ValueError, OverflowError):  # unevenly nested, or beyond any type
            array = np.array(0)
        if array.ndim and array.dtype.kind in "iuf":
            with np.errstate(over="ignore"):  # what overflows is infinite, and refused
                array = array.astype(np.float32)
        if array.ndim == 0 or array.dtype != np.float32 or not np.isfinite(array).all():
            raise BadPayload(
                f"`{name}` is {brief(value)}",
                hint=f"expected a list of numbers in `payload.{name}`, nested evenly",
            )
        return array

    def _field(self, payload: Payload, name: str, expected: str) -> Any:
        if name not in payload:
            came = ", ".join(brief(key) for key in itertools.islice(payload, 5)) or "nothing"
            raise BadPayload(
                f"`{name}` is missing; the payload has {came}",
                hint=f'expected {{"{name}": {expected}}}',
            )
        return payload[name]

    @classmethod
    def read_parameters(
        cls, given: Mapping[str, Any], texts: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return a value for every parameter the client declares: the caller's, or the default.

        Args:
            given: from the body, where each must be one that the client declares.
            texts: from headers and the query, which may hold other things as well; where both
                have one, that of the body counts.

        Raises:
            BadParameter: one is not declared, of the wrong type or out of range.

        """
        texts = texts or {}
        for name in given:
            if name not in cls.parameters:
                known = ", ".join(cls.parameters) or "no parameters"
                raise BadParameter(
                    f"the parameter {brief(name)} is not known",
                    hint=f"{cls.modelname} takes {known}",
                )
        values: dict[str, Any] = {}
        for name, parameter in cls.parameters.items():
            if name in given:
                values[name] = parameter.read(name, given[name])
            elif name in texts:
                values[name] = parameter.read_text(name, texts[name])
            else:
                values[name] = parameter.default
        return values


def brief(value: object, longest: int = 60) -> str:
    """Return how a value is shown to the caller: its beginning where it is long."""
    if isinstance(value, dict):
        return f"an object with {len(value)} fields"
    if isinstance(value, list) and any(isinstance(one, list | dict) for one in value[:longest]):
        return f"a list of {len(value)} lists or objects"  # however deep they are
    shown = ascii_if_broken(repr(value[: longest + 1] if isinstance(value, str | list) else value))
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def encodable(text: str) -> bool:
    """Whether a text is one: JSON can hold half of a surrogate pair, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def ascii_if_broken(text: str) -> str:
    return text if encodable(text) else ascii(text)
