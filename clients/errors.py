"""What can go wrong between a payload and its result.

    InferenceError
    ├── BadRequest
    │   ├── BadPayload          the payload is not what the model's client takes
    │   ├── BadParameter        a parameter is unknown, of the wrong type or out of range
    │   ├── TensorsRefused      the tensors are not the model's: name, type or shape
    │   └── UnsupportedMedia    the client takes no picture, or no text, or draws none
    ├── UnknownModel            there is no such model
    ├── UnknownVersion          the model has no such version
    ├── ModelUnavailable        the model, or Triton, is not ready
    │   ├── ModelBusy           the model has no room for more requests just now
    │   └── ClientDisabled      the model's class or its dispatch.toml has a mistake
    ├── ModelFailed             the model ran and failed
    │   └── TooLargeAtOnce      the model has no room for so much in one run
    └── DeadlineExceeded        the time for this request is used up

A client raises these, or its own subclasses of them: the dispatcher answers a subclass as it
answers the class. Any other exception is a bug in the client, and answered so: the caller gets a
constant text, the log gets the traceback.
"""

from __future__ import annotations

from typing import Any, Self


class InferenceError(Exception):
    """The base of all errors that a caller is told about.

    Args:
        message: what was wrong, and what came.
        hint: what was expected, or how to mend it.
        position: which payload of a batch it was, counted from 0; `None` for all of them.

    """

    message: str
    hint: str = ""
    position: int | None = None
    model: str = ""
    """Which model was asked, where that is how it failed."""

    def __new__(cls, *arguments: Any, **_: Any) -> Self:
        """Make one that can be told, also where an author's `__init__` does not call this one's."""
        error = super().__new__(cls, *arguments)
        if not hasattr(cls, "message"):
            error.message = ": ".join([cls.__name__, *map(str, arguments)])
        return error

    def __init__(self, message: str, *, hint: str = "", position: int | None = None) -> None:
        super().__init__(message)
        # Authors pass the error that they caught, or nothing.
        self.message = str(message)
        self.hint = str(hint or "")
        self.position = position

    def __copy__(self) -> Self:
        """Copy what it holds: an author's `__init__` may want other arguments than `args`."""
        copied = super().__new__(type(self), *self.args)
        vars(copied).update(vars(self))
        return copied


class BadRequest(InferenceError):
    """The caller has to change the request."""


class BadPayload(BadRequest):
    """The payload is not what the model's client takes."""


class BadParameter(BadRequest):
    """A parameter is unknown, of the wrong type or out of its range."""


class TensorsRefused(BadRequest):
    """The tensors are not the model's: their names, types or shapes."""


class UnsupportedMedia(BadRequest):
    """The client takes no such thing as came, or gives none of what was asked for."""


class UnknownModel(InferenceError):
    """There is no model of this name."""


class UnknownVersion(InferenceError):
    """The model has no such version."""


class ModelUnavailable(InferenceError):
    """The model is not loaded or not ready, or Triton cannot be reached."""


class ModelBusy(ModelUnavailable):
    """The model is ready, but has no room for more requests just now, or let one wait too long."""


class ClientDisabled(ModelUnavailable):
    """The model's client class could not be loaded, or its dispatch.toml has a mistake."""


class ModelFailed(InferenceError):
    """The model was run and failed."""


class TooLargeAtOnce(ModelFailed):
    """The model has no room for so much in one run: half of it may succeed."""


class DeadlineExceeded(InferenceError):
    """The time for this request is used up."""
