"""The contract for the author of a client: a class with one method; see docs/adding-a-model.md."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from clients.annotations import Declared, as_json, convert, declared
from clients.asking import ask
from clients.errors import (
    BadParameter,
    BadPayload,
    InferenceError,
    UnknownModel,
    UnsupportedMedia,
    place_error,
)
from clients.images.pictures import (
    EXPECTED,
    EXPECTED_BYTES,
    Picture,
    decode_base64,
    decode_picture,
    room,
)
from clients.parameters import FORMAT, Parameter
from clients.request import Media, Request, SentRows, current
from clients.sound.decoding import Samples, decode_sound, read_samples
from clients.tensors.nested import as_numbers
from clients.tensors.quoting import brief, encodable, unexpected
from clients.triton.server import (
    NO_HINTS,
    Hints,
    Inference,
    Padding,
    Scalar,
    Signature,
    Tensors,
    pick_rows,
)

# What the author of a client imports from here.
__all__ = ["FORMAT", "Client", "Environment", "Hints", "Padding", "Parameter", "Payload"]

Payload = Mapping[str, Any]
P = TypeVar("P")
T = TypeVar("T")

RAW = {"picture": "a picture", "text": "a text", "audio": "a sound", "file": "a file"}
"""What may be sent raw, by its kind in `Client.media`."""


@dataclass
class Others:
    """The clients of other models, which a class asks by `Client.ask`.

    `find` returns the client of a model or alias, and loads the model until a deadline by
    `time.monotonic()`; it raises UnknownModel, ModelUnavailable and so on. It is set when all
    clients were made, since they are made with this.
    """

    find: Callable[[str, float], Client] = field(init=False)


@dataclass(frozen=True)
class Environment:
    """What every client is made with."""

    server: Inference  # runs the models
    model_repository: Path  # with one folder per model
    max_pixels: int = 50_000_000  # of the largest picture that is decoded
    others: Others = field(default_factory=Others, kw_only=True)


class Client(ABC):
    """Turns payloads into tensors and tensors into results, for one model.

    Lifetime: one object per web worker, made once when the worker has started; load what is costly
    (a tokenizer, labels) in `__init__`. Threads: many call `inference` of the same object at the
    same time, so keep nothing of a request on `self`. Time: wait for nothing longer than
    `self.request.time_left()` seconds; the caller of one that does not return gets 504, and the web
    worker is replaced when half of its slots hang. Errors: raise those of `clients.errors` for what
    the caller should know; any other exception is logged, and answered with a constant text.
    """

    modelname: ClassVar[str]
    """The name that callers use: any text that is no path."""

    example: Payload
    """A payload that works: it is shown in the documentation, and the model is probed with it."""

    examples: Sequence[Payload] = ()
    """Several such payloads, in place of `example`."""

    needs_example: ClassVar[bool] = True
    """Whether `{}` is an example, too; else it says that no payload suits every model."""

    model: ClassVar[str] = ""
    """The model's name in the repository, if it is not `modelname`."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that callers may use."""

    parameters: ClassVar[Mapping[str, Parameter]] = {}
    """What callers may set in `parameters`; anything else is refused before `inference`."""

    media: Mapping[str, str] = {}
    """The payload's field for what is sent raw, not in JSON: `{"picture": "img"}`,
    `{"text": "text"}`, `{"audio": "audio"}`, or `{"file": "file"}` for a file of any type."""

    pair_fields: ClassVar[tuple[str, str] | tuple[()]] = ()
    """The payload's fields for two texts, of a model that takes pairs: `("text", "text_pair")`.

    One that answers a number for a pair ranks texts: `pair_score`.
    """

    embeds: ClassVar[bool] = False
    """Whether the result for `{"text": …}`, and for `{"token_ids": […]}` if it takes that, is a
    vector as a list of numbers: `/v1/embeddings` asks such clients."""

    compared_as: ClassVar[str] = "values"
    """How two answers to one payload are compared, as those of two versions: `classes`, `words`,
    `objects`, `vectors`, `names`, `pictures` and `texts` are the families' results, as
    `clients.tensors.agreement` reads them; `values` are any in JSON."""

    drawn_as: ClassVar[Sequence[str]] = ("image/jpeg", "image/png")
    """The types that `draw` can return; the first is what `Accept: image/*` gets."""

    _without: ClassVar[str] = "JSON alone"  # what a client without `media` takes, in words

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.folder = environment.model_repository / self.triton_model()
        """The model's folder in the repository, with its labels or tokenizer."""

    def triton_model(self) -> str:
        """Return the model's name in the repository."""
        return self.model or self.modelname

    @cached_property
    def served_by(self) -> str:
        """What `triton_model` returned when the client was registered.

        Code that goes through all clients reads this, because `triton_model` of one may raise.
        """
        return self.triton_model()

    @cached_property
    def declares(self) -> Declared:
        """What the annotations of `inference` say."""
        return declared(type(self).inference, globals())

    @cached_property
    def payload_type(self) -> Any:
        """The type of a payload, for the documentation; `Any` where there is none."""
        return self.declares.payload

    @cached_property
    def result_type(self) -> Any:
        """The type of the result for one payload, as `payload_type`."""
        return self.declares.result

    def read_payload(self, payload: Payload) -> Any:
        """Return a payload as `inference` takes it: an object, if the annotation is a class.

        Raises BadPayload: it does not fit.
        """
        return convert(self.declares.payload, payload) if self.declares.reads else payload

    def run_inference(self, payload: Payload) -> Any:
        """Return what `inference` answers to a payload of JSON, as JSON."""
        result = self.inference(self.read_payload(payload))
        return as_json(result) if self.declares.writes else result

    def run_inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        """Return what `inference_batch` answers, as `run_inference`."""
        if self.declares.reads:
            payloads = self.each(payloads, self.read_payload)
        results = self.inference_batch(payloads)
        return as_json(results) if self.declares.writes else results

    @abstractmethod
    def inference(self, payload: Any) -> Any:
        """Return the result for one payload, as JSON: no arrays, no NumPy numbers.

        A payload is a dictionary, or what its annotation says: an object of a dataclass, of a model
        of pydantic or msgspec, or a TypedDict, checked before. A result may be one, too.

        An iterator, as of a method with `yield`, gives any number of results, sent one by one to
        callers who accept lines or events.

        Raises InferenceError: one of its subclasses, for what the caller should know.
        """

    def inference_batch(self, payloads: Sequence[Any]) -> list[Any]:
        """Return the results for at most `max_batch_size` payloads, in their order.

        This one runs them one by one; override it if the model can run them together.
        """
        return self.each(payloads, self.inference)

    @property
    def is_authors(self) -> bool:
        """Whether the class is an author's own, and none of this project."""
        return not type(self).__module__.startswith(Client.__module__.removesuffix("base"))

    @property
    def request(self) -> Request:
        """The request that this thread answers.

        Raises LookupError: there is none, as in `__init__`.
        """
        try:
            return current.get()
        except LookupError:
            raise LookupError(
                "there is no request here: `__init__` runs before any request, and a thread of "
                "your own needs a copy of the context: `contextvars.copy_context().run`"
            ) from None

    def draw(self, payload: Any, result: Any, media_type: str) -> bytes:  # noqa: ARG002  for overriding
        """Return the payload's picture with the result drawn on it, as an image file.

        Override it in clients that find things in pictures. `result` is what `inference` returned,
        `media_type` image/jpeg or image/png. The file may be any object with the buffer protocol,
        such as cv2.imencode's.

        """
        raise UnsupportedMedia(f"{self.modelname} draws no pictures")

    @classmethod
    def draws(cls) -> bool:
        """Whether the class overrides `draw`."""
        return cls.draw is not Client.draw

    def payload_of(self, media: Media) -> Payload:
        """Return the payload for a picture, a sound, a text or another file that was sent raw.

        Raises UnsupportedMedia: the client takes none.
        """
        if media.kind not in self.media:
            raise self._not_taken(RAW[media.kind])
        return {self.media[media.kind]: media.content}

    def _not_taken(self, what: str) -> UnsupportedMedia:
        """Return the error for what was sent raw, but is none of `media`."""
        takes = " or ".join(RAW[kind] for kind in self.media)
        return UnsupportedMedia(f"{what} came", hint=f"the model takes {takes or self._without}")

    def pair_score(self, result: Any) -> float:
        """Return how well a pair's second text answers its first; higher is better.

        `result` is what `inference` returned for the pair.

        Raises InferenceError: the model does not answer one number for a pair.
        """
        return float(result)

    @property
    def row_fields(self) -> Sequence[str]:
        """The fields of a payload that the cells of a row are, in their order; none: no rows."""
        return self.pair_fields or ([self.media["text"]] if "text" in self.media else [])

    def payloads_of_rows(self, table: SentRows) -> list[Payload]:
        """Return the payload of each row of a table, as of CSV.

        Raises:
            UnsupportedMedia: the client takes none.
            BadPayload: the header or a row does not suit.

        """
        if "file" in self.media and table.file:
            return [{self.media["file"]: table.file}]
        if not self.row_fields:
            raise self._not_taken("rows of a table")
        names, rows = table.by_name(self.row_fields)
        return self.each(rows, lambda row: dict(zip(names, as_wide(row, names), strict=True)))

    def ranks(self) -> bool:
        """Whether `/v1/rerank` may ask the client, by the two methods below."""
        return bool(self.pair_fields)

    def rank_payloads(self, query: str, documents: Sequence[str]) -> list[Payload]:
        """Return the payloads that are asked to rank documents: these first, in their order."""
        first, second = self.pair_fields or ("text", "text_pair")
        return [{first: query, second: document} for document in documents]

    def relevance(self, results: Sequence[Any]) -> list[float]:
        """Return how well each document answers the query, from the results of the payloads.

        Raises InferenceError: as `pair_score`.
        """
        return [self.pair_score(result) for result in results]

    def check_tensors(self, inputs: Tensors) -> None:  # noqa: B027  most models need no check
        """Check tensors that a caller sends instead of a payload, before the model runs.

        Their names, types and shapes are the model's already. Override it to refuse tensors that
        the model would accept but should not run, such as a text of a million tokens.

        Raises TensorsRefused: the model must not be run with these.
        """

    def signature(self, model: str = "", version: str = "") -> Signature:
        """Return the inputs and outputs of a model; the arguments are as for `infer`."""
        asked = model or self.triton_model()
        version = version or ("" if model else self.request.version)
        with about(asked):
            left = self.request.time_left()
            return self._environment.server.signature(asked, version, timeout=left)

    @property
    def max_batch_size(self) -> int:
        """The most payloads `inference_batch` gets at once; a class without a model may set it."""
        try:
            return max(1, self.signature().max_batch_size)
        except UnknownModel:
            return 1

    def infer(
        self,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        model: str = "",
        version: str = "",
        hints: Hints = NO_HINTS,
        parameters: Mapping[str, Scalar] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Run a model on Triton, within the time of the request.

        Args:
            inputs: an array per input tensor; where the model batches, axis 0 is the batch.
            outputs: the output tensors wanted; none named means all.
            classes: how many best classes are wanted instead of an output's numbers: `bytes` of
                the form `score:index:label`, shape [batch, classes].
            model: another model than the client's own, by its name in the repository.
            version: of the model; nothing means the request's own, or of another model the latest.
            hints: what the backend may skip or combine.
            parameters: what else the model gets, as by `request.parameters()` of a model in Python.

        Returns:
            an array per output tensor, in the order named here or in the model's configuration;
            mostly read-only: write `scores - 1` instead of `scores -= 1`. Texts are `bytes`.

        Raises:
            InferenceError: one of its subclasses, as `clients.triton.server` says.

        """
        timings = self.request.timings
        asked = model or self.triton_model()
        timings.call(asked)
        try:
            with about(asked):
                answer = self._environment.server.infer(
                    asked,
                    inputs,
                    outputs=outputs,
                    classes=classes,
                    hints=hints,
                    version=version or ("" if model else self.request.version),
                    sequence=self.request.sequence,
                    parameters=parameters,
                    timeout=self.request.time_left(),
                )
        finally:
            timings.lap("inference")
        answer.update((name, pick_rows(answer[name], rows)) for name, rows in hints.rows.items())
        return answer

    def ask(
        self,
        name: str,
        payload: Payload | Sequence[Payload],
        parameters: Mapping[str, Any] | None = None,
        *,
        version: str = "",
    ) -> Any:
        """Return the `result` that another model's client answers; see docs/classes.md.

        Args:
            name: of the model, or an alias.
            payload: one, or a list; a picture in it may be an array as of `picture`.
            parameters: those that its callers may set.
            version: of that model; nothing means the latest.

        Raises:
            AskFailed: a class has a mistake, as in what it asks, or models ask in a circle.
            InferenceError: another of its subclasses, as callers of that model get it.

        """
        others = self._environment.others
        return ask(self, others, name, payload, parameters or {}, version=version)

    def stream(
        self,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        model: str = "",
        version: str = "",
        parameters: Mapping[str, Scalar] | None = None,
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the answers of a decoupled model; arguments and errors as for `infer`."""
        asked, request = model or self.triton_model(), self.request
        request.timings.call(asked)
        with about(asked):
            answers = self._environment.server.stream(
                asked,
                inputs,
                outputs=outputs,
                version=version or ("" if model else request.version),
                sequence=request.sequence,
                parameters=parameters,
                timeout=request.time_left(),
            )
            with request.cancelling(answers):
                for answer in answers:
                    request.timings.lap("inference")
                    yield answer

    def each(self, payloads: Sequence[P], read: Callable[[P], T]) -> list[T]:
        """Apply `read` to every payload; an error gets the position of its payload."""
        done: list[T] = []
        for position, payload in enumerate(payloads):
            try:
                with room.kept():  # until its pixels are resized
                    done.append(read(payload))
            except InferenceError as error:
                raise place_error(error, position) from error
        return done

    def picture(self, payload: object, name: str = "img") -> Picture:
        """Decode a picture of the payload: base64 of a file, the raw file, or an array.

        Returns:
            uint8 of shape [height, width, 3], RGB, upright (the EXIF orientation is applied).
            Do not write to it: another client may use the same array.

        Raises:
            BadPayload: the field is missing, or no JPEG, PNG, WebP, BMP or GIF picture.

        """
        value, once, most = value_of(payload, name), self.request.once, self._environment.max_pixels

        def decode() -> Picture:
            if isinstance(value, bytes | np.ndarray):  # an array comes from a class that asks
                return decode_picture(value, name, most, EXPECTED_BYTES)
            text = self.text(payload, name, "base64 of a picture")
            return decode_picture(decode_base64(text, name), name, most, EXPECTED)

        with self.request.timings.decoding():
            return once(value, decode) if once else decode()

    def text(self, payload: object, name: str = "text", expected: str = "a text") -> str:
        """Return a text field.

        Raises BadPayload: the field is missing, is not a text or is empty.
        """
        value = self._field(payload, name, expected)
        # `encodable` copies the text, which base64 of a large picture is spared.
        if not isinstance(value, str) or not value or not (value.isascii() or encodable(value)):
            raise unexpected(name, value, f"{expected} in `payload.{name}`")
        return value

    def file(self, payload: object, name: str = "file") -> bytes:
        """Return the bytes of a file of any type, which came raw, or as base64 in JSON.

        Raises BadPayload: the field is missing or empty, or not base64.
        """
        value = value_of(payload, name)
        if isinstance(value, bytes) and value:
            return value
        expected = "base64 of a file"
        return decode_base64(self.text(payload, name, expected), name, f"expected {expected}")

    def audio(
        self,
        payload: object,
        name: str = "audio",
        *,
        rate: int = 16_000,
        longest: float = 600.0,
    ) -> Samples:
        """Return the samples of a sound: a WAV, FLAC, OGG or MP3 file, or numbers from -1 to 1.

        The file comes raw, or as base64 in JSON; it is resampled, and its channels are averaged.
        Numbers are samples of one channel, `rate` a second.

        Args:
            payload: the payload.
            name: its field.
            rate: the samples of a second.
            longest: the most seconds; a longer one is refused before it is decoded.

        Returns:
            float32 of shape [samples], from -1 to 1.

        Raises:
            BadPayload: the field is missing, or no sound, damaged or too long.

        """
        value = value_of(payload, name)
        if isinstance(value, list | np.ndarray):
            numbers = value if isinstance(value, np.ndarray) else self.numbers(payload, name)
            return read_samples(numbers, name, rate, longest)
        with self.request.timings.decoding():
            data = self.file(payload, name)
            return decode_sound(data, name, rate, longest, self.request.time_left)

    def numbers(self, payload: object, name: str) -> npt.NDArray[np.float32]:
        """Return a field with numbers in a list, or in nested lists, as a float32 array.

        Raises BadPayload: the field is missing or empty, or its inner lists differ in length.
        """
        value = self._field(payload, name, "a list of numbers")
        if (array := as_numbers(value)) is None:
            expected = f"a list of numbers in `payload.{name}`, nested evenly"
            raise unexpected(name, value, expected)
        return array

    def _field(self, payload: object, name: str, expected: str) -> Any:
        if isinstance(payload, Mapping) and name not in payload:
            came = ", ".join(brief(key) for key in itertools.islice(payload, 5)) or "nothing"
            raise BadPayload(
                f"`{name}` is missing; the payload has {came}",
                hint=f'expected {{"{name}": {expected}}}',
            )
        return value_of(payload, name)

    @classmethod
    def read_parameters(
        cls, given: Mapping[str, Any], texts: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the value of every declared parameter: the caller's, or the default.

        Of `given`, in the body, each must be declared; of `texts`, headers and the query, others
        are ignored. The body has priority.

        Raises BadParameter: a parameter is not declared, of the wrong type or out of range.
        """
        if unknown := [name for name in given if name not in cls.parameters]:
            known = ", ".join(cls.parameters) or "no parameters"
            raise BadParameter(
                f"the parameter {brief(unknown[0])} is not known", hint=f"the model takes {known}"
            )
        values = {name: one.default for name, one in cls.parameters.items()}
        for name, one in cls.parameters.items():
            if name in given:
                values[name] = one.read(name, given[name])
            elif texts and name in texts:
                values[name] = one.read_text(name, texts[name])
        return values


def value_of(payload: object, name: str) -> Any:
    """Return a field of a payload, or of an object of its declared type; `None` without it."""
    return payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)


def as_wide(row: Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    """Return a row; raise BadPayload unless it has a cell for each name."""
    if len(row) != len(names):
        raise BadPayload(
            f"the row has {len(row)} cells, not {len(names)}: {brief(list(row))}",
            hint=f"expected {', '.join(names)}, separated by commas; a cell with a comma, a quote "
            "or a line break in it stands in double quotes",
        )
    return row


@contextmanager
def about(model: str) -> Iterator[None]:
    """Note in an error of the contract which model was asked."""
    try:
        yield
    except InferenceError as error:
        error.model = model
        raise
