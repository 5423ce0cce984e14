"""Types that a class declares for its payload and result: their JSON Schema, and values of them.

They are the annotations of `inference`: `def inference(self, payload: Question) -> Answer`. msgspec
reads and describes them, and asks pydantic about models of its own, which their author imports.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args, get_origin

import pybase64

from clients.errors import BadPayload
from clients.tensors.quoting import brief

PLACE = " - at `$"  # as msgspec's messages end: "Expected `int`, got `str` - at `$.boxes[0].x`"


class Declared(NamedTuple):
    """What the annotations of a class's `inference` say."""

    payload: Any = Any
    result: Any = Any
    reads: bool = False  # whether payloads are made objects of the type
    writes: bool = False  # whether results may have objects, of which JSON is made
    fields: Collection[str] = ()  # those of a payload, where the type is a class


def declared(method: Callable[..., Any], names: Mapping[str, Any]) -> Declared:
    """Return what a method's annotations say, which may have `names` of another module.

    A result of a type without a JSON Schema, or of an unknown name, is any: nothing depends on it.

    Raises:
        TypeError: the payload's type has no JSON Schema, or is none of a payload.
        NameError: its annotation has an unknown name.

    """
    if not (annotations := getattr(method, "__annotations__", None)):
        return Declared()
    known = {**names, **getattr(inspect.unwrap(method), "__globals__", {})}

    def read(name: str) -> Any:
        one = SimpleNamespace(__annotations__={name: annotations.get(name, Any)})
        return typing.get_type_hints(one, known, include_extras=True)[name]

    payload = read([*inspect.signature(method).parameters][1])
    taken = json_schema(payload)
    try:
        result = read("return")
        answered = json_schema(result)
    except (AttributeError, NameError, RuntimeError, TypeError):  # pydantic's are of all kinds
        result, answered = Any, {}
    if taken.get("type", "object") != "object":
        raise TypeError(f"type {payload!r:.100} is none of a payload, which has fields")
    if is_dataclass(payload) and hasattr(payload, "__pydantic_validator__"):  # which msgspec skips
        raise TypeError(f"type {payload!r:.100} is a dataclass of pydantic; make it a BaseModel")
    classes = taken.get("$defs", {})
    whole = classes.get(taken.get("$ref", "").rpartition("/")[2], {})
    return Declared(
        payload, result, bool(classes), "$defs" in answered, whole.get("properties", ())
    )


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a type; its classes are named ones in `$defs`.

    Raises TypeError: a type in it has none; NameError: as `declared`.
    """
    if annotation in (Any, object, Mapping[str, Any]):
        return {}
    import msgspec

    named: dict[str, Any] = {}

    def of_pydantic(kind: Any) -> dict[str, Any]:
        if kind is object:
            return {"description": "any JSON"}
        if not hasattr(kind, "model_json_schema"):
            raise NotImplementedError
        found = kind.model_json_schema(ref_template="#/$defs/{model}")
        named.update(found.pop("$defs", {}))
        named.setdefault(kind.__name__, found)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    if (get_origin(annotation) or annotation) in (Generator, Iterable, Iterator):
        annotation = list[(*get_args(annotation), Any)[0]]  # type: ignore[misc]
    (schema,), found = msgspec.json.schema_components(
        [annotation], schema_hook=of_pydantic, ref_template="#/$defs/{name}"
    )
    named |= found
    return {**schema, "$defs": named} if named else schema


def read_by_pydantic(kind: Any, value: Any) -> Any:
    """Return an object of a model of pydantic, or any; raise ValueError as msgspec does."""
    try:
        return value if kind is object else kind.model_validate(value)
    except sys.modules["pydantic"].ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
        raise ValueError(f"{first['msg']}{PLACE}{place}`") from error


def convert(kind: Any, payload: Mapping[str, Any]) -> Any:
    """Return a payload as an object of its declared type; a file that came raw is base64 in it.

    Raises BadPayload: it does not fit.
    """
    import msgspec

    raw = {name: one for name, one in payload.items() if isinstance(one, bytes)}
    given = {**payload, **{name: pybase64.b64encode_as_string(one) for name, one in raw.items()}}
    try:
        taken = msgspec.convert(given, kind, str_keys=True, dec_hook=read_by_pydantic)
        refuse_unknown(given, taken, "")
    except msgspec.ValidationError as error:
        what, *places = str(error).split(PLACE)
        place = "".join(one.rstrip("`") for one in reversed(places)).removeprefix(".")
        raise BadPayload(f"`{place or 'payload'}` does not fit", hint=what) from error
    except RecursionError as error:
        raise BadPayload("the payload is nested too deeply", hint="send a flatter one") from error
    return taken


def refuse_unknown(given: Any, taken: Any, place: str) -> None:
    """Raise BadPayload for a field that a dataclass or a TypedDict does not have.

    msgspec leaves the default of a field that did not come to its class: the object gets it too.
    """
    if isinstance(given, list) and isinstance(taken, list | tuple):
        for at, (one, other) in enumerate(zip(given, taken, strict=False)):
            refuse_unknown(one, other, f"{place}[{at}]")
        return
    known: Mapping[str, Any] | None = taken if isinstance(taken, dict) else None
    # Of a dictionary that is no TypedDict all are taken, with names of other types.
    is_whole = known is not None and len(given) == len(known)
    if is_dataclass(taken):
        known = {one.name: getattr(taken, one.name) for one in fields(taken) if one.init}
        for name, default in known.items():
            object.__setattr__(taken, name, default)
    if isinstance(given, dict) and known is not None:  # msgspec and pydantic decide for theirs
        for name, one in given.items():
            inner = f"{place}.{name}".removeprefix(".")
            if name in known:
                refuse_unknown(one, known[name], inner)
            elif not is_whole:
                what = f"the payload has an unknown field {brief(inner)}"
                raise BadPayload(what, hint="leave it out, or write it as the model's class does")


def as_json(result: Any) -> Any:
    """Return a result with its objects, in lists and dictionaries too, as JSON has them."""
    import msgspec

    def by_pydantic(one: Any) -> Any:
        if hasattr(one, "model_dump"):
            return one.model_dump(mode="json")
        raise TypeError(f"{type(one).__name__} is not JSON")

    if isinstance(result, Iterator):
        return (as_json(one) for one in result)
    return msgspec.to_builtins(result, enc_hook=by_pydantic)
