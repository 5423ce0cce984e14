"""Serves a class from before this contract: `inference(self, img)`, or `inference(self, text)`.

from clients.older_class import OlderClass
from .inference import Resnet

class OldResnet(OlderClass):
    modelname = "old_resnet"
    older = Resnet
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import numpy as np

from clients.base import Client, Environment, Payload
from clients.images.pictures import EXAMPLE


class OlderClass(Client):
    """Passes pictures, or texts, to a class that knows nothing of payloads.

    The class is made without arguments, once for every payload, so that no two threads share an
    object. It gets uint8 [height, width, 3], BGR as from `cv2.imdecode`, writable and upright; or
    the `str`, if its argument is called `text`, or the adapter has `media = {"text": "text"}`.
    Arrays and NumPy numbers in its result become lists and numbers.
    """

    modelname = ""
    example = {"img": EXAMPLE}
    media = {"picture": "img"}

    older: ClassVar[type[Any]]
    """The class, with a method `inference(self, img)` or `inference(self, text)`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        method = getattr(getattr(cls, "older", None), "inference", None)
        takes = inspect.signature(method).parameters if callable(method) else {}
        if "text" in takes and "media" not in vars(cls):
            cls.media = {"text": "text"}
        if "text" in cls.media and "example" not in vars(cls):
            cls.example = {cls.media["text"]: "A text."}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if not callable(getattr(getattr(self, "older", None), "inference", None)):
            raise TypeError("`older` is no class with inference(self, img), or (self, text)")

    def inference(self, payload: Payload) -> Any:
        if "text" in self.media:
            return as_json(self.older().inference(self.text(payload, self.media["text"])))
        bgr = np.ascontiguousarray(self.picture(payload)[:, :, ::-1])
        return as_json(self.older().inference(bgr))


def as_json(value: Any) -> Any:
    """Return a value with lists for arrays, and Python's numbers for NumPy's."""
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.tolist())
    if isinstance(value, dict):
        return {
            key.item() if isinstance(key, np.generic) else key: as_json(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value
