"""Loads, paths and configurations, as a fuzzer makes them up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from clients.model_files.config_text import NotProtobufText, read
from tests.conftest import PROJECT
from tests.support.fuzz import (
    came,
    fuzzed,
    json_values,
    sound,
    spoiled,
    texts,
)

# Pillow warns of damaged metadata, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore")

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
