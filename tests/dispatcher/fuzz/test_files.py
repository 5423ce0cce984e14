"""Pictures, forms, NumPy files and compressed bodies, as a fuzzer makes them up."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.conftest import PICTURES
from tests.support.asking import FORM, form_of, part
from tests.support.fuzz import DOCUMENTS, fuzzed, header, sound, spoiled

# Pillow warns of damaged metadata, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore")

GREY = Image.new("L", (3, 2), 7)


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def pictures() -> list[bytes]:
    small = Image.open(PICTURES / "coffee.png").convert("RGB").resize((40, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    return [
        saved(small, "JPEG", exif=exif),
        saved(small, "JPEG", progressive=True),
        saved(small.convert("CMYK"), "JPEG"),
        saved(small, "PNG"),
        saved(small.quantize(8), "PNG", transparency=0, interlace=1),
        saved(small.convert("I;16"), "PNG") if hasattr(Image, "I16") else saved(GREY, "PNG"),
        saved(small, "WEBP"),
        saved(small, "WEBP", lossless=True, exif=exif),
        saved(small, "BMP"),
        saved(small.quantize(4), "BMP"),
    ]


SOUND = pictures()


@fuzzed
@given(
    data=spoiled(SOUND),
    model=st.sampled_from(["resnet", "yolov5"]),
    accept=st.sampled_from(["application/json", "image/jpeg", "image/png"]),
)
def test_pictures(client: FlaskClient, data: bytes, model: str, accept: str) -> None:
    headers = {"Accept": accept, "Content-Type": "image/any"}
    sound(client.post(f"/infer/{model}", data=data, headers=headers))


FORMS = [
    part('name="modelname"', "", b"resnet") + form_of(SOUND[3], "image/png"),
    part('name="modelname"', "", b"bert_base")
    + part('name="parameters"', "", b'{"top_k": 1}')
    + part('name="modelversion"', "", b"1")
    + form_of(b"a [MASK] b", "text/plain"),
    b"--b--\r\n",
]


@fuzzed
@given(
    body=spoiled(FORMS),
    content_type=st.just(FORM) | header.map(lambda text: f"multipart/form-data; {text}"),
)
def test_forms(client: FlaskClient, body: bytes, content_type: str) -> None:
    sound(client.post("/invocations", data=body, content_type=content_type))


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


NPYS = [
    npy(np.ones((2, 3), np.float32)),
    npy(np.asfortranarray(np.ones((2, 3), np.float32))),
    npy(np.ones((2, 3), ">f8")),
    npy(np.array(["a", "b"])),
    npy(np.zeros((1,), [("a", "<i4")])),
    npy(np.array(["2020-01-01"], "datetime64[D]")),
]


@st.composite
def headed(draw: st.DrawFn) -> bytes:
    """A NumPy file with a header of its own making."""
    shape = draw(st.lists(st.integers(-3, 2**40) | st.integers(0, 3), max_size=4))
    descr = draw(st.sampled_from(["<f4", "|O", "<f2", "|S3", "<U2", "|V4", "<c8", "", "<M8", "x"]))
    text = repr({"descr": descr, "fortran_order": draw(st.booleans()), "shape": tuple(shape)})
    text = draw(st.sampled_from([text, text[:-1], text.replace("'", ""), text + "," * 20]))
    content = text.encode() + b"\n"
    return b"\x93NUMPY\1\0" + len(content).to_bytes(2, "little") + content + bytes(24)


@fuzzed
@given(data=spoiled(NPYS) | headed())
def test_numpy_files(client: FlaskClient, data: bytes) -> None:
    sound(client.post("/infer/add", data=data, content_type="application/x-npy"))


@fuzzed
@given(
    data=spoiled([gzip.compress(json.dumps(one).encode(), mtime=0) for one in DOCUMENTS])
    | st.binary(max_size=40),
    encoding=st.sampled_from(["gzip", "GZIP", " gzip ", "gzip, gzip", "deflate", "br", "identity"]),
)
def test_packed_bodies(client: FlaskClient, data: bytes, encoding: str) -> None:
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    sound(client.post("/invocations", data=data, headers=headers))
