"""The document at /openapi.json, as generators of clients read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest

from clients.base import Client, Environment, Parameter
from clients.plugins.registry import Registry
from dispatcher.routes.openapi import document
from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.support.application import serve_built_in
from tests.support.fake_triton import FakeTriton


@dataclass
class Point:
    """A place on a map."""

    x: float
    y: float = 0.0
    tags: list[Any] = field(default_factory=list)


class Near(Client):
    modelname = "near"
    example = {"x": 1, "y": 2}
    parameters = {"most": Parameter(3, 1, 9, "how many"), "top_k": Parameter(0.5, 0, 1, "a share")}

    def inference(self, payload: Point) -> list[tuple[Point, float]]:
        return [(payload, 1.0)]


def named(name: str) -> type[Client]:
    return type("Near", (Near,), {"modelname": name, "__module__": __name__})


ODD = ("a-b", "a_b", "A b", "ab", "modèle été", "模型", "{x}", "v2", "near_request", "<b>&", "100%")


def parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object of a document."""
    if isinstance(node, Mapping):
        yield node
        node = [*node.values()]
    for one in node if isinstance(node, list) else ():
        yield from parts(one)


@pytest.fixture(scope="module")
def found(built_in: Registry) -> Any:
    own = [named(name) for name in ("near", *ODD)]
    site = serve_built_in(built_in, Environment(FakeTriton(), PROJECT), read_settings({}), *own)
    return site.get("/openapi.json").json


def test_all_has_names_and_types(found: Any) -> None:
    routes = [one for methods in found["paths"].values() for one in methods.values()]
    names = [one["operationId"] for one in routes]
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert len({name.replace("_", "") for name in names}) == len(names)
    components = found["components"]
    for kind, several in components.items():
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in several), kind
    for one in parts({**found, "components": {**components, "examples": {}}}):
        if isinstance(target := one.get("$ref"), str):
            _, kind, name = target.removeprefix("#/").split("/")
            assert name in components[kind], target
        if "array" in (one.get("type") or ()):
            assert isinstance(one.get("items"), Mapping), one
        assert "description" in one or not {"in", "name"} <= one.keys(), one


def test_each_model_has_a_route_whatever_its_name(found: Any) -> None:
    paths = {unquote(path).removeprefix("/infer/"): one for path, one in found["paths"].items()}
    ids = {name: paths[name]["post"]["operationId"] for name in ("near", "resnet", *ODD)}
    assert {name for name in ids if ids[name] == f"infer_{name}"} == {
        *("near", "resnet", "a_b", "v2", "near_request")  # and `ab` is too much like `a_b`
    }


def test_what_a_class_declares_are_the_types_of_its_route(found: Any) -> None:
    schemas = found["components"]["schemas"]

    def fits(name: str, value: Any) -> bool:
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))

    good = {"payload": {"x": 1}, "parameters": {"most": 3}}
    assert fits("InferNearRequest", good)
    for wrong in ({"payload": {"y": 1}}, {**good, "parameters": {"most": 10}}, {"x": 1}):
        assert not fits("InferNearRequest", wrong)
    assert fits("InferNearResponse", {"modelname": "near", "result": [[{"x": 1, "y": 2}, 1.0]]})
    assert not fits("InferNearResponse", {"modelname": "near", "result": [[{"x": "1"}, 1.0]]})
    own, general = (
        {one["name"]: one["schema"] for one in route["post"]["parameters"] if "name" in one}
        for route in (found["paths"]["/infer/near"], found["paths"]["/infer/{model}"])
    )
    assert own["most"] == general["most"] == {"type": "integer", "minimum": 1, "maximum": 9}
    assert own["top_k"]["type"] == "number"
    assert "type" not in general["top_k"]  # of resnet it is an integer


def test_a_model_that_is_unloaded_is_left_out(built_in: Registry) -> None:
    server = FakeTriton({"resnet": dict, "yolov5": dict}, unloaded={"resnet"})
    site = serve_built_in(built_in, Environment(server, PROJECT), read_settings({}))
    site.get("/ping")  # by which the models are listed here
    paths = site.get("/openapi.json").json["paths"]
    assert [one in paths for one in ("/infer/resnet", "/infer/yolov5")] == [False, True]


def test_three_hundred_models_are_described_in_three_megabytes() -> None:
    environment = Environment(FakeTriton(), PROJECT)
    clients = [named(f"model {number}")(environment) for number in range(300)]
    text = json.dumps(document(read_settings({}), clients))
    assert len(text) < 3_000_000
