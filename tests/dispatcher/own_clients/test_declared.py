"""A class that declares its payload gets objects of it; callers get 400 where theirs do not fit."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from flask.testing import FlaskClient

from clients.annotations import json_schema
from clients.images.pictures import EXAMPLE
from tests.conftest import PROJECT
from tests.support.own_clients import ask, served
from tests.support.stand_ins import assert_error

# The same payload in each way to declare it; and a class that asks another.
DECLARING = """
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, TypedDict
import msgspec, pydantic

@dataclass
class Corner:
    x: float
    y: float = 0.5

@dataclass
class Question:
    corners: list[Corner]
    kind: Literal["a", "b"] = "a"
    top: Optional[int] = None
    names: dict[str, Corner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.top == 0:
            raise ValueError("top is 1 or more")

class Typed(TypedDict, total=False):
    corners: list[Corner]
    kind: str
    by_number: dict[int, float]
    pair: tuple[Corner, ...]

class Model(pydantic.BaseModel):
    corners: list[Corner]
    kind: Literal["a", "b"] = "a"

class Edge(msgspec.Struct):
    x: float
    y: float = 0.5

class Struct(msgspec.Struct):
    corners: list[Edge]
    kind: Literal["a", "b"] = "a"

class Data(Own):
    example = {"corners": [{"x": 1}]}

    def inference(self, payload: Question) -> Question:
        assert type(payload) is Question and type(payload.corners[0]) is Corner
        return payload

    def inference_batch(self, payloads: list[Question]) -> list[Question]:
        return [self.inference(one) for one in payloads]

class Dict(Own):
    def inference(self, payload: Typed) -> Any:
        numbers = payload.get("by_number", {})
        return {**payload, "corners": payload["corners"][0].x, "by_number": sum(numbers)}

class Pydantic(Own):
    def inference(self, payload: Model) -> dict[str, Model]:
        return {"it": payload}

class Msgspec(Own):
    def inference(self, payload: Struct) -> list[Struct]:
        return [payload]

class Steps(Own):
    def inference(self, payload: Question) -> Iterator[Corner]:
        yield from payload.corners

class Asks(Own):
    def inference(self, payload):
        return self.ask("data", payload)

@dataclass
class Photo:
    img: str

class Sees(Own):
    media = {"picture": "img"}

    def inference(self, payload: Photo) -> list[int]:
        return [*self.picture(payload).shape]
"""
RIGHT = {"corners": [{"x": 1}, {"x": 2, "y": 3}]}
CORNERS = [{"x": 1, "y": 0.5}, {"x": 2, "y": 3}]


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return served(tmp_path, DECLARING)


def test_a_payload_comes_as_its_class_and_a_result_goes_as_json(client: FlaskClient) -> None:
    whole = {"corners": CORNERS, "kind": "a", "top": None, "names": {}}
    assert ask(client, "data", RIGHT).json["result"] == whole
    assert ask(client, "dict", {**RIGHT, "kind": "c"}).json["result"] == {
        "corners": 1,
        "kind": "c",
        "by_number": 0,
    }
    numbered = {**RIGHT, "kind": "c", "by_number": {"2": 1, "3": 1}}
    assert ask(client, "dict", numbered).json["result"]["by_number"] == 5
    assert ask(client, "pydantic", RIGHT).json["result"] == {
        "it": {"corners": CORNERS, "kind": "a"}
    }
    assert ask(client, "msgspec", RIGHT).json["result"] == [{"corners": CORNERS, "kind": "a"}]
    assert ask(client, "steps", RIGHT).json["result"] == CORNERS
    assert ask(client, "asks", RIGHT).json["result"] == whole
    body = json.dumps({"modelname": "data", "payload": [RIGHT, RIGHT]})
    assert client.post("/invocations", data=body).json["result"] == [whole, whole]
    lines = client.post(
        "/infer/steps", json={"payload": RIGHT}, headers={"Accept": "application/jsonlines"}
    )
    assert [json.loads(one)["result"] for one in lines.text.splitlines()] == CORNERS


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("data", {"corners": [{"x": 1}, {"x": "2"}]}, ["`corners[1].x`", "`float`, got `str`"]),
        ("data", {"corners": [{"y": 1}]}, ["`corners[0]`", "missing required field `x`"]),
        ("data", {}, ["missing required field `corners`"]),
        ("data", {**RIGHT, "kind": "c"}, ["`kind`", "Invalid enum value 'c'"]),
        ("data", {**RIGHT, "top": 1.5}, ["`top`", "Expected `int | null`, got `float`"]),
        ("data", {**RIGHT, "top": 0}, ["top is 1 or more"]),
        ("data", {**RIGHT, "corner": 1}, ["unknown field 'corner'"]),
        ("data", {"corners": [{"x": 1, "z": 1}]}, ["unknown field 'corners[0].z'"]),
        ("data", {**RIGHT, "names": {"a": {"x": 1, "z": 1}}}, ["unknown field 'names.a.z'"]),
        ("dict", {**RIGHT, "other": 1}, ["unknown field 'other'"]),
        ("dict", {"pair": [{"x": 1, "z": 1}]}, ["unknown field 'pair[0].z'"]),
        ("dict", {"by_number": {"one": 1}}, ["`$.by_number`", "Expected `int`"]),
        ("pydantic", {"corners": [{"x": "one"}]}, ["`corners[0].x`", "should be a valid number"]),
        ("pydantic", {}, ["`corners`", "Field required"]),
        ("msgspec", {"corners": 3}, ["`corners`", "Expected `array`, got `int`"]),
        ("asks", {"corners": 3}, ["'data', which 'asks' asks", "`corners`"]),
        ("sees", {"img": 5}, ["`img`", "Expected `str`, got `int`"]),
    ],
)  # fmt: skip
def test_one_that_does_not_fit_is_refused_with_its_place(
    client: FlaskClient, name: str, payload: Any, words: list[str]
) -> None:
    error = assert_error(ask(client, name, payload), 400, "bad_payload")
    for word in words:
        assert word in f"{error['message']} {error['hint']}"
    assert error["hint"]


def test_one_of_a_list_is_named(client: FlaskClient) -> None:
    body = json.dumps({"modelname": "data", "payload": [RIGHT, {"corners": 3}]})
    error = assert_error(client.post("/invocations", data=body), 400, "bad_payload")
    assert error["message"].startswith("payload[1]: `corners`")


def test_of_a_payload_for_several_models_each_gets_its_fields(client: FlaskClient) -> None:
    payload = {**RIGHT, "img": EXAMPLE}
    results = ask(client, ["data", "sees"], payload).json["results"]
    assert results["data"]["result"]["corners"] == CORNERS
    assert len(results["sees"]["result"]) == 3


def test_a_picture_that_came_raw_is_base64_in_its_field(client: FlaskClient) -> None:
    sent = client.post("/infer/sees", data=base64.b64decode(EXAMPLE), content_type="image/jpeg")
    shape = ask(client, "sees", {"img": EXAMPLE}).json["result"]
    assert sent.json["result"] == shape
    assert len(shape) == 3


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("complex", "type <class 'complex'> is not supported"),
        ("list[int]", "type list[int] is none of a payload"),
        ("Nothing", "name 'Nothing' is not defined"),
        ("pydantic.dataclasses.dataclass(A)", "is a dataclass of pydantic; make it a BaseModel"),
        ("A | B", "may not contain more than one dataclass"),
    ],
)
def test_an_annotation_that_is_no_schema_disables_the_class(
    tmp_path: Path, declared: str, words: str
) -> None:
    classes = "".join(f"@dataclass\nclass {one}:\n    {one.lower()}: int\n\n" for one in "AB")
    method = f"def inference(self, payload: '{declared}'):\n        return 1"
    head = "import pydantic\nfrom dataclasses import dataclass\n"
    source = f"{head}{classes}\nclass Mine(Own):\n    {method}\n"
    error = assert_error(ask(served(tmp_path, source)), 503, "client_disabled")
    assert "an annotation of its inference cannot be used" in error["message"]
    assert words in error["message"]


@pytest.mark.parametrize(
    "declared",
    [
        *(
            "payload, *, more=1",
            "payload: 'Payload') -> (dict[str, object]",
            "payload: dict) -> (list",
        ),
        *("payload: Mapping[str, Any]) -> (Iterator", "payload: Any) -> (tuple[float, ...] | None"),
        "payload: object) -> (Sequence[Mapping[str, float]] | str",
        "payload: dict) -> (NoSchema",
        *("payload: dict) -> (complex", "payload: dict) -> ('Nothing'"),
    ],
)
def test_other_annotations_leave_a_payload_as_it_came(tmp_path: Path, declared: str) -> None:
    """Those of the contract's own module need no import."""
    source = f"class Mine(Own):\n    def inference(self, {declared}):\n        return [payload]\n"
    head = "from typing import Any, Iterator, Mapping, Sequence\nimport pydantic\n"
    head += (
        "class NoSchema(pydantic.BaseModel, arbitrary_types_allowed=True):\n    one: memoryview\n"
    )
    assert ask(served(tmp_path, head + source), payload={"a": [1]}).json["result"] == [{"a": [1]}]


def test_neither_library_is_imported_where_nothing_is_declared() -> None:
    script = """
import sys
from clients.base import Client, Environment, Payload
class Plain(Client):
    modelname = "plain"
    example = {}
    def inference(self, payload: Payload) -> object:
        return payload
from clients.testing import OnnxModels, answer
assert answer(Plain, {"a": 1}, OnnxModels(".")) == {"a": 1}
assert not {"msgspec", "pydantic"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], cwd=PROJECT, check=True)


class Part(TypedDict):
    """A part."""

    name: str
    size: NotRequired[Annotated[float, msgspec.Meta(gt=0)]]
    kind: Literal["a", "b"]


def test_a_schema_is_whole_and_has_named_classes() -> None:
    assert json_schema(list[Part] | None) == {
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Part"}}, {"type": "null"}],
        "$defs": {
            "Part": {
                "type": "object",
                "title": "Part",
                "description": "A part.",
                "properties": {
                    "name": {"type": "string"},
                    "size": {"type": "number", "exclusiveMinimum": 0},
                    "kind": {"enum": ["a", "b"]},
                },
                "required": ["kind", "name"],
            }
        },
    }
