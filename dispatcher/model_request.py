"""What a request asks for, whatever its content type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clients.base import Payload
from clients.request import Media, SentRows

if TYPE_CHECKING:
    from clients.errors import InferenceError
    from dispatcher.s3.reading import Stored
    from dispatcher.s3.step import Output


@dataclass(frozen=True)
class ModelRequest:
    """A request to one model."""

    modelname: str  # the name of the client, or an alias
    # One payload, or the payloads of a list; `Media` for a file that came as it is, and one
    # `SentRows` for all rows of a table.
    payloads: list[Payload | Media | SentRows | Stored]
    is_list: bool = False  # whether the payload came as a list, so that the result is one too
    # Those in the body; the client checks them.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    modelversion: str = ""  # the requested version; empty means the latest
    tensors: bool = False  # whether the payload is a V2 body or a NumPy file, for the model itself
    fields: bool = False  # whether these are the fields of Triton's `generate`
    shared: bool = False  # whether other models get the same payload
    # Where the answer is stored: the object of the body, until `Step` has made an `Output` of it;
    # `None` for nowhere.
    output: Mapping[str, Any] | Output | None = None
    # What one of a list is called in an error.
    place: Callable[[int], str] = "payload[{}]".format


@dataclass(frozen=True)
class SeveralModels:
    """One payload for several models: the response has their results by name."""

    model_requests: list[ModelRequest]


@dataclass(frozen=True)
class RequestList:
    """Several requests, with an error in the place of one that could not be read."""

    model_requests: Iterable[ModelRequest | InferenceError]


InferenceRequest = ModelRequest | SeveralModels | RequestList
