"""What a fuzzer makes up is answered as the contract says, and no error is in the log."""

from __future__ import annotations

import gzip
import io
import json
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from clients.base import Environment
from clients.model_files.config_text import NotProtobufText, read
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.conftest import PICTURES, PROJECT
from tests.support.application import serve_built_in
from tests.support.asking import FORM, form_of, npy, part, stand_in
from tests.support.fuzz import (
    DOCUMENTS,
    Numbers,
    assert_part,
    came,
    fuzzed,
    header,
    json_values,
    sound,
    spoiled,
    texts,
)

# Pillow warns of damaged metadata, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def client(built_in: Registry, tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    """The application with the real clients; what is loaded comes from a folder of its own."""
    server = stand_in(calls=deque(maxlen=1))  # of ten thousand pictures all would be 16 GB
    server.models_run["numbers"] = dict
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "roots").mkdir()
    environment = Environment(server, folder, max_pixels=100_000)
    settings = {"MODEL_URL_ROOTS": str(folder / "roots"), "MODEL_SERVER_MAX_BODY_MB": "1"}
    return serve_built_in(built_in, environment, read_settings(settings), Numbers)


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    yield
    print(f"\n{sum(came.values())} inputs: {dict(came)}")  # noqa: T201  `make fuzz` shows it


class Errors(logging.Handler):
    """Raises where something is logged as an error: nothing a caller sends may be one."""

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        raise AssertionError(record.getMessage()) from cause


@pytest.fixture(autouse=True, scope="module")
def no_error_is_logged() -> Iterator[None]:
    handler = Errors(logging.ERROR)
    logging.getLogger("dispatcher").addHandler(handler)
    yield
    logging.getLogger("dispatcher").removeHandler(handler)


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


@st.composite
def changed(draw: st.DrawFn, documents: list[Any]) -> Any:
    """A right document with something else in a place or two."""
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(0, 2))):
        holder, keys = document, list(places(document))
        for step in (path := draw(st.sampled_from(keys)))[:-1] if keys else []:
            holder = holder[step]
        if keys:
            holder[path[-1]] = draw(json_values)
    return document


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


ROUTES = ["/invocations", "/infer/resnet", "/infer/numbers", "/models/add/invoke"]


@fuzzed
@given(document=changed(DOCUMENTS) | json_values, route=st.sampled_from(ROUTES))
def test_json(client: FlaskClient, document: Any, route: str) -> None:
    sound(client.post(route, data=json.dumps(document), content_type="application/json"))


@fuzzed
@given(
    body=spoiled([json.dumps(one).encode() for one in DOCUMENTS]) | st.binary(max_size=60),
    content_type=st.sampled_from(["application/json", None, "application/x-www-form-urlencoded"]),
)
@example(
    body=b'{"modelname": "numbers", "payload": {"n": [1' + b"0" * 5000 + b"]}}", content_type=None
)
@example(
    body=b'{"modelname": "numbers", "payload": {"n": ' + b"[" * 990 + b"]" * 990 + b"}}",
    content_type=None,
)
@example(body=b"[" * 100_000, content_type="application/json")
@example(body=b'{"a":' * 100_000, content_type="application/json")
def test_bytes_that_should_be_json(client: FlaskClient, body: bytes, content_type: Any) -> None:
    sound(client.post("/invocations", data=body, content_type=content_type))


@fuzzed
@given(
    asks=st.lists(changed(DOCUMENTS[:4]) | json_values, max_size=4),
    between=st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\x0b", b"{"]),
)
def test_lines(client: FlaskClient, asks: list[Any], between: bytes) -> None:
    body = between.join(json.dumps(ask).encode() for ask in asks)
    response = sound(client.post("/invocations", data=body, content_type="application/jsonlines"))
    for line in response.data.splitlines() if response.status_code == 200 else []:
        assert_part(json.loads(line, parse_constant=pytest.fail))


known = st.sampled_from(
    ["modelname=numbers", "top_k=3", "timeout_ms=100", "modelversion=1", "=", ";", "a=b=c", "\x7f"]
)


@fuzzed
@given(
    attributes=header | st.lists(known | header, max_size=5).map(";".join),
    target=header,
    accept=header | st.sampled_from(["application/json;q=0", "*/*;q=x", "a/b;" * 50, "image/png"]),
    query=st.dictionaries(
        st.sampled_from(["modelname", "modelversion", "top_k", "timeout_ms"])
        | st.text(max_size=20),
        st.text(max_size=20),
        max_size=3,
    ),
    other=st.dictionaries(
        st.sampled_from(
            ["X-Request-Id", "X-Amzn-SageMaker-Inference-Id", "Content-Encoding", "X-Request-Start"]
        ),
        header,
        max_size=3,
    ),
)
def test_headers_and_query(
    client: FlaskClient, attributes: str, target: str, accept: str, query: Any, other: Any
) -> None:
    headers = {
        "X-Amzn-SageMaker-Custom-Attributes": attributes,
        "X-Amzn-SageMaker-Target-Model": target,
        "Accept": accept,
        **other,
    }
    body = {"payload": {"n": [1]}}
    sound(client.post("/invocations", json=body, headers=headers, query_string=query))


names = texts | st.sampled_from(["..", ".", "%2e%2e", "a\0", "a" * 300, "add", "resnet", "-x"])


urls = st.text(max_size=40) | st.sampled_from(
    ["/", "//", "/..", "file:///", "/proc/self", "/" + "a" * 5000, "/\0", "\ud800", "{roots}", "."]
)


@fuzzed
@given(
    body=st.fixed_dictionaries({"model_name": names | json_values, "url": urls | json_values})
    | json_values
)
def test_bodies_that_load_models(client: FlaskClient, body: Any) -> None:
    sound(client.post("/models", data=json.dumps(body)))


@fuzzed
@given(
    name=st.text(st.characters(codec="utf-8"), max_size=30) | names,
    route=st.sampled_from(
        ["/models/{}", "/models/{}/invoke", "/load_model/{}", "/infer/{}", "/{}", "/models?x={}"]
    ),
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"]),
)
def test_paths(client: FlaskClient, name: str, route: str, method: str) -> None:
    if "\ud800" in name or (method == "DELETE" and name in {"add", "resnet"}):
        return
    # Two slashes would be a host to the test's client.
    path = route.format(name.lstrip("/").replace("?", "%3F").replace("#", "%23"))
    response = client.open(path, method=method, data=b"{}")
    if method != "HEAD":
        sound(response)
    assert response.status_code < 500


CONFIGS = [path.read_bytes() for path in sorted(PROJECT.glob("model_repository/*/config.pbtxt"))]


@fuzzed
@given(data=spoiled(CONFIGS) | st.binary(max_size=60))
def test_configurations(data: bytes) -> None:
    came["configurations"] += 1
    try:
        read(data.decode(errors="replace"))
    except NotProtobufText:
        pass
