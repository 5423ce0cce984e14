"""JSON, lines, headers, queries, loads, paths and configurations, as a fuzzer makes them up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st

from clients.model_files.config_text import NotProtobufText, read
from tests.conftest import PROJECT
from tests.support.fuzz import (
    DOCUMENTS,
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
    except NotProtobufText:
        pass
