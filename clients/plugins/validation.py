"""Finds mistakes in the declarations of a client class."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping

from clients.base import RAW, Client, Parameter
from clients.errors import BadParameter
from clients.tensors.agreement import KINDS
from clients.tensors.client import examples_of


def declaration_fault(client: type[Client]) -> str:
    """Return the first mistake in a class; empty if there is none."""
    return (
        naming_fault(client)
        or method_fault(client)
        or example_fault(client)
        or parameters_fault(client.parameters)
        or comparison_fault(client.compared_as)
    )


def object_fault(client: Client) -> str:
    """Return the first mistake in an object, whose `__init__` may set declarations.

    All clients are shown on one page, which no client may break.
    """
    return (
        annotation_fault(client)
        or example_fault(client)
        or parameters_fault(client.parameters)
        or media_fault(client.media)
        or pair_fault(client.pair_fields)
    )


def naming_fault(client: type[Client]) -> str:
    """Return the first mistake in the names that a class declares.

    A `modelname` is any text that is no path: callers write it in JSON. The name of a model's
    folder, and an alias in a `dispatch.toml`, follow `clients.model_files.model_folders.NAME`.
    """
    if not isinstance(getattr(client, "modelname", None), str) or not client.modelname:
        return 'it has no name; write `modelname = "…"` in the class'
    if not isinstance(client.model, str):
        return f"its model is {client.model!r}; write the name of one folder of the repository"
    if not isinstance(client.aliases, tuple | list) or not all(
        isinstance(name, str) and name for name in client.aliases
    ):
        return f'its aliases are {client.aliases!r}; write `aliases = ("…",)`'
    for name in (client.modelname, client.model, *client.aliases):
        if "/" in name or "\0" in name or name in {".", ".."}:
            return f"{name!r} may be a path; write a name of letters and digits"
    return ""


def method_fault(client: type[Client]) -> str:
    if missing := sorted(client.__abstractmethods__):
        return f"it lacks the method {missing[0]}(self, payload)"
    if inspect.iscoroutinefunction(client.inference):
        return "its inference is async; write `def inference(self, payload)`: threads wait for it"
    try:
        inspect.signature(client.inference).bind(None, {})
    except TypeError:
        return "its inference takes something else; write `def inference(self, payload)`"
    return ""


def annotation_fault(client: Client) -> str:
    try:
        client.declares  # noqa: B018  read now: each request asks for it
    except (NameError, TypeError) as error:
        reason = str(error).splitlines()[-1]
        return (
            f"an annotation of its inference cannot be used: {reason}; declare a dataclass, a "
            "TypedDict, or a class of pydantic or msgspec, whose names the file imports"
        )
    return ""


def media_fault(declared: object) -> str:
    if isinstance(declared, Mapping) and all(isinstance(name, str) for name in declared.values()):
        if other := [kind for kind in declared if kind not in RAW]:
            *most, last = (f'"{kind}"' for kind in RAW)
            return f"its media have {other[0]!r:.60}; there are {', '.join(most)} and {last}"
        return ""
    return f'its media are {declared!r:.60}; write `media = {{"picture": "img"}}`, or leave it out'


def pair_fault(declared: object) -> str:
    if isinstance(declared, tuple | list) and len(declared) in (0, 2):
        return ""
    return f'its pair_fields are {declared!r:.60}; write `pair_fields = ("query", "text")`'


def comparison_fault(declared: object) -> str:
    if declared in KINDS:
        return ""
    return f"its compared_as is {declared!r:.60}; it may be {', '.join(KINDS)}"


def example_fault(client: Client | type[Client]) -> str:
    several = client.examples
    if not isinstance(several, list | tuple):
        return f"its examples are {several!r:.60}; write `examples = [{{…}}, …]`"
    if vars(client).get("examples") and "example" in vars(client):
        return "it has both `example` and `examples`; write all of them into `examples`"
    name = "one of its examples" if several else "its example"
    found = examples_of(client)
    for example in found or [getattr(client, "example", None)]:
        if not isinstance(example, Mapping):
            has = "it has no example" if example is None else f"{name} is {example!r:.60}"
            return f"{has}; write `example = {{…}}`, a payload that works, in the class"
        try:
            json.dumps(dict(example))
        except (TypeError, ValueError) as error:
            return f"{name} is not JSON, as a caller would send it: {error}"
    return ""


def parameters_fault(declared: object) -> str:
    if not isinstance(declared, Mapping) or not all(
        isinstance(one, Parameter) for one in declared.values()
    ):
        return "its parameters are no dictionary of clients.base.Parameter"
    for name, parameter in declared.items():
        if not isinstance(name, str) or not isinstance(parameter.meaning, str):
            return f"the name or the meaning of its parameter {name!r:.60} is no text"
        try:
            parameter.read(name, parameter.default)
            parameter.expected  # noqa: B018  the documentation shows it
        except BadParameter as error:
            return f"the default of its parameter {name!r} is not allowed: {error.hint}"
        except (TypeError, ValueError):
            return f"the limits of its parameter {name!r} are no numbers, or its choices no texts"
    return ""
