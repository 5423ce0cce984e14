"""The document at /openapi.json, as generators of clients read it, and its names for models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
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


class Answer(Point):
    """Where the name is taken by others as well."""


class Near(Client):
    modelname = "near"
    example = {"x": 1, "y": 2}
    parameters = {"most": Parameter(3, 1, 9, "how many"), "top_k": Parameter(0.5, 0, 1, "a share")}

    def inference(self, payload: Point) -> list[tuple[Answer, float]]:
        return [(Answer(payload.x, payload.y), 1.0)]


def named(name: str) -> type[Client]:
    return type("Near", (Near,), {"modelname": name, "__module__": __name__})


ODD = ("a-b", "a_b", "A b", "ab", "modèle été", "模型", "{x}", "v2", "near_request", "<b>&", "100%")


def parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object of a document."""
    if isinstance(node, Mapping):
        yield node
    for one in (
        node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    ):
        yield from parts(one)


def operations(found: Any) -> dict[str, Any]:
    """Return the operations by their ids, which all have, each its own."""
    routes = [one for methods in found["paths"].values() for one in methods.values()]
    by_id = {one["operationId"]: one for one in routes}
    assert len(by_id) == len(routes)
    return by_id


@pytest.fixture(scope="module")
def found(built_in: Registry) -> Any:
    own = [named(name) for name in ("near", *ODD)]
    site = serve_built_in(built_in, Environment(FakeTriton(), PROJECT), read_settings({}), *own)
    return site.get("/openapi.json").json


def test_generators_find_names_and_types_for_all(found: Any) -> None:
    for name in operations(found):
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
    for one in parts({**found, "components": {**found["components"], "examples": {}}}):
        if isinstance(target := one.get("$ref"), str):
            _, kind, name = target.removeprefix("#/").split("/")
            assert name in found["components"][kind], target
        if one.get("type") == "array" or "array" in (one.get("type") or ()):
            assert isinstance(one.get("items"), Mapping), one
        if "in" in one and "name" in one:
            assert one["description"], one["name"]
    for kind, named_ones in found["components"].items():
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in named_ones), kind


def test_each_model_has_a_route_whatever_its_name(found: Any) -> None:
    paths = {unquote(path).removeprefix("/infer/"): one for path, one in found["paths"].items()}
    ids = {name: paths[name]["post"]["operationId"] for name in ("near", "resnet", *ODD)}
    # Of names that are alike to a generator, identifiers come first.
    assert [ids[name] for name in ("near", "resnet", "a_b", "ab", "v2")] == [
        *("infer_near", "infer_resnet", "infer_a_b", "infer_ab_2", "infer_v2"),
    ]
    spelled = [one.replace("_", "") for one in operations(found)]
    assert len({*spelled}) == len(spelled)


def test_what_a_class_declares_are_the_types_of_its_route(found: Any) -> None:
    route = operations(found)["infer_near"]
    schemas = found["components"]["schemas"]

    def check(name: str, value: Any) -> bool:
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))

    good = {"payload": {"x": 1}, "parameters": {"most": 3}}
    assert check("InferNearRequest", good)
    for wrong in ({"payload": {"y": 1}}, {**good, "parameters": {"most": 10}}, {"x": 1}):
        assert not check("InferNearRequest", wrong)
    answer = {"modelname": "near", "result": [[{"x": 1, "y": 2}, 1.0]]}
    assert check("InferNearResponse", answer)
    assert not check("InferNearResponse", {**answer, "result": [[{"x": "1"}, 1.0]]})
    assert schemas["InferNearPoint"]["description"] == "A place on a map."
    assert {one["name"]: one["schema"] for one in route["parameters"] if "name" in one} == {
        "most": {"type": "integer", "minimum": 1, "maximum": 9},
        "top_k": {"type": "number", "minimum": 0, "maximum": 1},
    }
    # On the route of any model: an integer for resnet, a share here.
    (shared,) = (
        one for one in operations(found)["infer"]["parameters"] if one.get("name") == "top_k"
    )
    assert "type" not in shared["schema"]


def test_a_model_that_is_unloaded_is_left_out(built_in: Registry) -> None:
    server = FakeTriton({"resnet": dict, "yolov5": dict})
    site = serve_built_in(built_in, Environment(server, PROJECT), read_settings({}))
    assert site.get("/ping").status_code in (200, 503)  # the prober lists the models
    assert "/infer/resnet" in site.get("/openapi.json").json["paths"]
    server.unloaded.add("resnet")
    site.get("/ping")
    paths = site.get("/openapi.json").json["paths"]
    assert "/infer/resnet" not in paths
    assert "/infer/yolov5" in paths


def test_three_hundred_models_are_described_quickly(built_in: Registry) -> None:
    environment = Environment(FakeTriton(), PROJECT)
    clients = [named(f"model {number}")(environment) for number in range(300)]
    begin = perf_counter()
    text = json.dumps(document(read_settings({}), clients))
    assert perf_counter() - begin < 2  # 0.1 s on two idle cores
    assert len(text) < 3_000_000
