"""Every parser, with what a property-based fuzzer makes up: no 5xx, no other shape of answer.

A few thousand inputs in the default run, always the same; `make fuzz` takes more than 100,000 that
nobody has seen before. Set FUZZ_INPUTS to choose how many each of the tests here takes.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from werkzeug.test import TestResponse

from clients.base import Client, Environment, Payload
from clients.images.pictures import EXAMPLE
from clients.plugins.registry import Registry, load_clients
from clients.repository.config_text import NotReadable, read
from clients.triton.server import Signature, TensorSpec
from dispatcher.errors import ANSWERS, NOT_READY, ROUTING
from dispatcher.settings import read_settings
from tests.conftest import PICTURES, PROJECT
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import bert, resnet, yolov5

INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
fuzzed = settings(
    max_examples=INPUTS or 300,
    derandomize=not INPUTS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# Pillow warns of damaged metadata, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore")

CODES = {code for _, code in ANSWERS.values()} | {code for code, _ in ROUTING.values()}
CODES |= {NOT_READY}
came: Counter[str] = Counter()


class Numbers(Client):
    """Takes what `Client` reads for its author."""

    modelname = "numbers"
    example = {"n": [1]}
    media = {"text": "text"}

    def inference(self, payload: Payload) -> Any:
        if "text" in payload:
            return self.text(payload)
        return self.numbers(payload, "n").tolist()


ADD = Signature(
    8,
    (TensorSpec("A", "FP32", (-1, 3)), TensorSpec("B", "FP32", (-1, 3), optional=True)),
    (TensorSpec("SUM", "FP32", (-1, 3)),),
)
WORDS = Signature(0, (TensorSpec("IN", "BYTES", (-1,)),), (TensorSpec("OUT", "BYTES", (-1,)),))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    """The application with the real clients; what is loaded comes from a folder of its own."""
    server = FakeTriton(
        {
            "resnet": resnet,
            "yolov5": yolov5,
            "bert_base": bert,
            "numbers": dict,
            "add": lambda inputs: {"SUM": sum(inputs.values())},  # type: ignore[dict-item]
            "words": lambda inputs: {"OUT": inputs["IN"]},  # type: ignore[dict-item]
        },
        signatures={"add": ADD, "words": WORDS},
        calls=deque(maxlen=1),  # of ten thousand pictures all would be 16 GB
    )
    registry = load_clients(Environment(server, PROJECT / "model_repository"))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "roots").mkdir()
    environment = Environment(server, folder, max_pixels=100_000)
    for one in registry.clients.values():
        one._environment = environment
    chosen = read_settings(
        {"MODEL_URL_ROOTS": str(folder / "roots"), "MODEL_SERVER_MAX_BODY_MB": "1"}
    )
    registry = Registry({**registry.clients, "numbers": Numbers(environment)})
    return make_app(chosen, registry, environment, quiet()).test_client()


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    yield
    print(f"\n{sum(came.values())} inputs: {dict(came)}")  # noqa: T201  `make fuzz` shows it


class Errors(logging.Handler):
    """Raises where something is logged as an error: nothing a caller sends may be one."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            raise AssertionError(record.getMessage()) from record.exc_info[1]  # type: ignore[misc]
        raise AssertionError(record.getMessage())


@pytest.fixture(autouse=True, scope="module")
def no_error_is_logged() -> Iterator[None]:
    handler = Errors(logging.ERROR)
    logging.getLogger("dispatcher").addHandler(handler)
    yield
    logging.getLogger("dispatcher").removeHandler(handler)


def sound(response: TestResponse) -> TestResponse:
    """See that an answer is one of the contract's."""
    came[str(response.status_code)] += 1
    response.get_data()
    response.close()
    assert response.status_code < 500, response.text
    assert response.headers["X-Request-Id"]
    if response.status_code >= 400:
        assert response.content_type == "application/json"
        assert_error(response.json)
        assert len(response.data) <= 2048
    elif response.mimetype == "application/json":
        document = json.loads(response.data, parse_constant=pytest.fail)
        for one in document.get("results", []) if isinstance(document, dict) else []:
            assert_part(one if isinstance(one, dict) else document["results"][one])
    return response


def assert_part(part: Any) -> None:
    """One of several answers: a result or an error, with its own status."""
    if part["status"] != 200:
        assert 400 <= part["status"] < 500, part
        assert_error({"error": part["error"]})


def assert_error(document: Any) -> None:
    error = document["error"]
    assert error["code"] in CODES
    assert {"code", "message", "hint"} <= set(error)


# What is sent: things made up, and right ones with something wrong.

texts = st.text(max_size=20) | st.sampled_from(
    ["resnet", "numbers", "bert_base", "[MASK] x", "\ud800"]
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts
    | st.sampled_from([10**30, 2**63, -(2**63), 10**4000, 1e308, float("nan"), float("-inf")])
)  # fmt: skip
KEYS = (
    "modelname payload parameters modelversion requests inputs img text n top_k format name shape "
    "datatype data outputs"
)
keys = st.sampled_from(KEYS.split()) | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
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


@st.composite
def spoiled(draw: st.DrawFn, sound: list[bytes]) -> bytes:
    """Bytes that were right, cut, changed and put together anew in a few places."""
    data = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["change", "insert", "cut", "repeat", "number"]))
        if kind == "change" and place < len(data):
            data[place] = draw(st.integers(0, 255))
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=8))
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, 400))]
        elif kind == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 400))]
        elif kind == "number":
            data[place : place + 4] = draw(
                st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\0\0\0\x80"])
            )
    return bytes(data)


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


IMG = {"img": EXAMPLE}
TENSOR = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [[1, 2, 3]]}
DOCUMENTS: list[Any] = [
    {"modelname": "resnet", "payload": IMG, "parameters": {"top_k": 2, "format": "objects"}},
    {"modelname": "yolov5", "payload": [IMG, IMG], "modelversion": 1},
    {"modelname": "bert_base", "payload": {"text": "a [MASK] b"}, "parameters": {"top_k": 1}},
    {"modelname": "numbers", "payload": {"n": [[1, 2], [3, 4.5]]}},
    {"modelname": ["resnet", "numbers"], "payload": {**IMG, "n": [1]}},
    {"requests": [{"modelname": "numbers", "payload": {"n": [1]}}, {"modelname": "x"}]},
    {"modelname": "add", "inputs": [TENSOR], "outputs": [{"name": "SUM"}], "id": "1"},
    {"modelname": "add", "payload": [{"inputs": [TENSOR, {**TENSOR, "name": "B"}]}]},
    {
        "modelname": "words",
        "inputs": [{"name": "IN", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}],
    },
]
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


header = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60)
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
    sound(
        client.post(
            "/invocations",
            data=json.dumps({"payload": {"n": [1]}}),
            content_type="application/json",
            headers=headers,
            query_string=query,
        )
    )


@fuzzed
@given(
    data=spoiled(SOUND),
    model=st.sampled_from(["resnet", "yolov5"]),
    accept=st.sampled_from(["application/json", "image/jpeg", "image/png"]),
)
def test_pictures(client: FlaskClient, data: bytes, model: str, accept: str) -> None:
    sound(
        client.post(
            f"/infer/{model}", data=data, content_type="image/any", headers={"Accept": accept}
        )
    )


def form(*parts: tuple[str, bytes]) -> bytes:
    return (
        b"".join(
            f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
            for head, content in parts
        )
        + b"--b--\r\n"
    )


FORMS = [
    form(
        ('name="f"; filename="a.png"\r\nContent-Type: image/png', SOUND[3]),
        ('name="modelname"', b"resnet"),
    ),
    form(
        ('name="f"; filename="a.txt"\r\nContent-Type: text/plain', b"a [MASK] b"),
        ('name="modelname"', b"bert_base"),
        ('name="parameters"', b'{"top_k": 1}'),
        ('name="modelversion"', b"1"),
    ),
    form(),
]


@fuzzed
@given(
    body=spoiled(FORMS),
    content_type=st.just("multipart/form-data; boundary=b")
    | header.map(lambda text: f"multipart/form-data; {text}"),
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
    sound(
        client.post(
            "/invocations",
            data=data,
            content_type="application/json",
            headers={"Content-Encoding": encoding},
        )
    )


names = texts | st.sampled_from(["..", ".", "%2e%2e", "a\0", "a" * 300, "add", "resnet", "-x"])
urls = st.text(max_size=40) | st.sampled_from(
    ["/", "//", "/..", "file:///", "/proc/self", "/" + "a" * 5000, "/\0", "\ud800", "{roots}", "."]
)


@fuzzed
@given(
    body=st.fixed_dictionaries({"model_name": names | json_values, "url": urls | json_values})
    | json_values,
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
    except NotReadable:
        pass
