"""What can go wrong between a payload and its result.

    InferenceError
    ├── BadRequest
    │   ├── BadPayload          the payload is not what the model's client expects
    │   ├── BadParameter        a parameter is unknown, of the wrong type or out of range
    │   ├── TensorsRefused      the tensors are not the model's: name, type or shape
    │   └── UnsupportedMedia    the client takes no pictures, or no texts, or draws none
    ├── UnknownModel            there is no such model
    ├── UnknownVersion          the model has no such version
    ├── UnknownSequence         the model keeps no such sequence: it ended, or never began
    ├── ModelUnavailable        the model, or Triton, is not ready
    │   ├── ModelBusy           the model cannot take more requests at present
    │   └── ClientDisabled      the model's class or its dispatch.toml has a mistake
    ├── ModelFailed             the model ran and failed
    │   └── TooLargeAtOnce      one run has no memory for so many items
    ├── AskFailed               a class asked another model in vain, by a mistake in a class
    ├── TooManyRequests         there is no room now for what was sent
    └── DeadlineExceeded        the time for this request is used up

A client raises these, or its own subclasses of them; a subclass is answered as its base. Any other
exception is a bug in the client: the caller gets a constant text, the log gets the traceback.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self


class InferenceError(Exception):
    """The base of all errors whose message is sent to the caller."""

    message: str  # what was wrong, with the value that was sent
    hint: str = ""  # what was expected, or how to mend it
    position: int | None = None  # the payload of a batch, counted from 0; `None` for all of them
    model: str = ""  # the model whose run failed, if one did

    def __new__(cls, *arguments: Any, **_: Any) -> Self:
        """Set `message` even if a subclass's `__init__` does not call this class's."""
        error = super().__new__(cls, *arguments)
        if not hasattr(cls, "message"):
            error.message = ": ".join([cls.__name__, *map(str, arguments)])
        return error

    def __init__(self, message: str, *, hint: str = "", position: int | None = None) -> None:
        super().__init__(message)
        # Some authors pass the exception that they caught, or `None`.
        self.message = str(message)
        self.hint = str(hint or "")
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __copy__(self) -> Self:
        """Copy without `__init__`: a subclass's may need other arguments than `args`."""
        copied = super().__new__(type(self), *self.args)
        vars(copied).update(vars(self))
        return copied


class BadRequest(InferenceError):
    """The caller has to change the request."""


class BadPayload(BadRequest):
    """The payload is not what the model's client expects."""


class BadParameter(BadRequest):
    """A parameter is unknown, of the wrong type or out of its range."""


class TensorsRefused(BadRequest):
    """The tensors are not the model's: their names, types or shapes."""


class UnsupportedMedia(BadRequest):
    """The client does not take what was sent, or cannot answer in the form asked for."""


class UnknownModel(InferenceError):
    """There is no model of this name."""


class UnknownVersion(InferenceError):
    """The model has no such version."""


class UnknownSequence(InferenceError):
    """The model keeps no such sequence: it has ended, or never began."""


class ModelUnavailable(InferenceError):
    """The model is not loaded or not ready, or Triton cannot be reached."""


class ModelBusy(ModelUnavailable):
    """The model is ready, but cannot take more requests, or kept one waiting too long."""


class ClientDisabled(ModelUnavailable):
    """The model's client could not be loaded, or its dispatch.toml has a mistake."""


class ModelFailed(InferenceError):
    """The model was run and failed."""


class TooLargeAtOnce(ModelFailed):
    """One run has no memory for so many items; half of them may succeed."""


class AskFailed(InferenceError):
    """A class's call to another model failed because of a bug in one of the two classes.

    The message names both, and quotes nothing of the payload; the hint may.
    """


class TooManyRequests(InferenceError):
    """There is no room now for what was sent: a queue, the memory or a disk is full."""


class DeadlineExceeded(InferenceError):
    """The time for this request is used up."""


def place_error(error: InferenceError, position: int | None) -> InferenceError:
    """Return a copy with a position: the client may raise the same object again."""
    copied = copy(error)
    copied.position = position
    return copied
