"""The application with a real S3 server, and a Triton that is a dictionary of functions."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flask.testing import FlaskClient
from PIL import Image

from clients.base import Client, Environment, Payload
from clients.plugins.registry import Registry
from clients.triton.server import Signature, TensorSpec
from dispatcher.settings import read_settings
from tests.conftest import PATIENCE_S
from tests.support.application import serve_built_in
from tests.support.fake_triton import FakeTriton
from tests.support.s3 import BUCKET, OTHER_BUCKET, S3Server
from tests.support.stand_ins import bert, resnet

MakeClient = Callable[..., FlaskClient]
ODD = "images/a b+c%20ä#?&.png"


def png(colour: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(out, "PNG")
    return out.getvalue()


class Colour(Client):
    """An author's class, which declares no fields and knows nothing of S3."""

    modelname = "colour"
    example = {"img": ""}

    def inference(self, payload: Payload) -> Any:
        pixel = self.picture(payload)[0, 0].tolist()
        return {"pixel": pixel, "others": sorted(set(payload) - {"img"})}


class Letters(Client):
    modelname = "letters"
    example = {"text": ""}

    def inference(self, payload: Payload) -> Any:
        return len(self.text(payload))


class Size(Client):
    modelname = "size"
    example = {"file": ""}
    media = {"file": "file"}

    def inference(self, payload: Payload) -> Any:
        return len(self.file(payload))


class Slow(Colour):
    modelname = "slow"
    may_end: ClassVar[threading.Event] = threading.Event()

    def inference(self, payload: Payload) -> Any:
        assert self.may_end.wait(PATIENCE_S)
        return super().inference(payload)


@pytest.fixture(scope="session")
def pictures(s3: S3Server) -> S3Server:
    """The server with a picture of one colour below each key."""
    for name in ("red", "lime", "blue"):
        s3.put(f"images/{name}.png", png(name))
    s3.put(ODD, png("blue"))
    s3.put("texts/note.txt", b"the cat has as [MASK] paws\n")
    s3.put("texts/umlauts.txt", "äöü".encode())
    s3.put("images/red.png", png("red"), OTHER_BUCKET)
    return s3


@pytest.fixture
def make(
    pictures: S3Server, built_in: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> MakeClient:
    """Return a maker of the application; its arguments are further settings."""

    Slow.may_end.set()

    def made(**settings: str) -> FlaskClient:
        given = pictures.environment(**settings)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        models = {"resnet": resnet, "bert_base": bert, "echo": lambda inputs: {"Y": inputs["X"]}}
        signature = Signature(0, *((TensorSpec(name, "FP32", (-1, 2)),) for name in "XY"))
        environment = Environment(FakeTriton(models, signatures={"echo": signature}), tmp_path)
        return serve_built_in(
            built_in, environment, read_settings(given), Colour, Letters, Size, Slow
        )

    return made


@pytest.fixture
def client(make: MakeClient) -> FlaskClient:
    return make(S3_ALLOWED_INPUTS=f"{BUCKET},{OTHER_BUCKET}/images/")
