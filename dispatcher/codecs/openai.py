"""The bodies of OpenAI's embeddings, and of reranking in the forms of Cohere and of TEI."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from clients.base import Client, Payload
from clients.tensors.quoting import brief
from dispatcher.codecs.json_request import MAX_BATCH, check_length, parse_object
from dispatcher.errors import BadBody

OTHERS_HINT: Final = (
    "GET /v1/models says of each model which routes ask it; POST /invocations asks every model"
)


@dataclass(frozen=True)
class Task:
    """What a body asks of a model."""

    model: str  # its name; empty where the body has none
    parameters: Mapping[str, Any]
    # The payloads for the model's client; raises BadBody where it has no answer to such a body
    payloads: Callable[[Client], list[Payload]]
    place: Callable[[int], str]  # where a payload stands in the body
    answer: Callable[[Client, Sequence[Any]], Any]  # what is answered, from the results
    is_one: bool = False  # whether there is one payload alone


class Values(NamedTuple):
    """What a field of a body may have."""

    fits: Callable[[Any], bool]
    expected: str


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


NAME = Values(is_text, "the name of a model")
COUNT = Values(
    lambda value: type(value) in (int, float) and value > 0 and value % 1 == 0,
    "a whole number from 1",
)
FLAG = Values(lambda value: isinstance(value, bool), "true or false")
TEXTS = Values(lambda value: isinstance(value, list), 'a list of texts, or of {"text": …}')
IGNORED = Values(lambda _: True, "anything")

EMBEDDINGS: Final[Mapping[str, Values]] = {
    "model": NAME,
    "input": Values(
        lambda value: is_text(value) or isinstance(value, list),
        "a text, a list of texts, the token ids of a text, or a list of those",
    ),
    "dimensions": COUNT,
    "encoding_format": Values(lambda value: value in ("float", "base64"), '"float" or "base64"'),
    "user": IGNORED,
}
RANKING: Final[Mapping[str, Values]] = {
    "model": NAME,
    "query": Values(is_text, "a text"),
    "documents": TEXTS,
    "top_n": COUNT,
    "return_documents": FLAG,
    # Of TEI, the first in place of `documents`:
    "texts": TEXTS,
    "return_text": FLAG,
    "raw_scores": Values(lambda value: value is False, "false: scores are as the model's client"),
    "truncate": Values(lambda value: value is False, "false: what is too long is refused, not cut"),
    "truncation_direction": IGNORED,
}


def read_fields(
    body: bytes, deadline: float, known: Mapping[str, Values], *required: str
) -> dict[str, Any]:
    """Return the fields of a body in JSON that are not null.

    Raises BadBody: one is unknown or missing, or not what it may be.
    """
    may_have = f"the body may have {', '.join(known)}"
    document = parse_object(body, deadline, hint=may_have)
    fields = {name: value for name, value in document.items() if value is not None}
    for name, value in fields.items():
        if name not in known:
            raise BadBody(f"the body has an unknown field {brief(name)}", hint=may_have)
        if not known[name].fits(value):
            raise BadBody(f"`{name}` is {brief(value)}", hint=f"expected {known[name].expected}")
    for name in required:
        if name not in fields:
            raise BadBody(f"`{name}` is missing", hint=f"expected {known[name].expected}")
    return fields


def check_items(items: list[Any], name: str, fits: Callable[[Any], bool], expected: str) -> None:
    check_length(items, name, MAX_BATCH)
    for position, one in enumerate(items):
        if not fits(one):
            raise BadBody(f"`{name}[{position}]` is {brief(one)}", hint=f"expected {expected}")


def another_model(client: Client, what: str) -> BadBody:
    return BadBody(f"{client.modelname or client.triton_model()!r} {what}", hint=OTHERS_HINT)


def read_embeddings(body: bytes, deadline: float) -> Task:
    fields = read_fields(body, deadline, EMBEDDINGS, "input")
    came = fields["input"]
    is_list = isinstance(came, list) and not is_ids(came)
    inputs = came if is_list else [came]
    expected = "a text, or a list of token ids"
    check_items(inputs, "input", lambda one: is_text(one) or is_ids(one), expected)

    def payloads(client: Client) -> list[Payload]:
        if not client.embeds:
            raise another_model(client, "answers no vectors")
        return [{"text" if isinstance(one, str) else "token_ids": one} for one in inputs]

    def answer(_: Client, vectors: Sequence[Any]) -> Any:
        if fields.get("encoding_format") == "base64":
            vectors = list(map(pack, vectors))
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data}

    wanted = {name: fields[name] for name in ("dimensions",) if name in fields}
    place = "input[{}]".format if is_list else lambda _: "input"
    return Task(fields.get("model", ""), wanted, payloads, place, answer, len(inputs) == 1)


def pack(vector: Sequence[float]) -> str:
    """Return base64 of a vector's float32, the lowest byte first."""
    # What is too large for float32 becomes infinite. Triton runs on no machine of another order.
    return base64.b64encode(array("f", vector).tobytes()).decode()


def read_ranking(body: bytes, deadline: float) -> Task:
    """Read a body of reranking: Cohere's with `documents`, or TEI's with `texts`."""
    fields = read_fields(body, deadline, RANKING, "query")
    of_tei = "texts" in fields
    name, other = ("texts", "documents") if of_tei else ("documents", "texts")
    if (name in fields) == (other in fields):
        what = "is there beside `documents`" if of_tei else "is missing"
        raise BadBody(f"`{name}` {what}", hint=f"expected {TEXTS.expected}")
    documents = fields[name]
    check_items(documents, name, lambda one: is_text(text_of(one)), 'a text, or {"text": …}')
    returned = fields.get("return_text") or fields.get("return_documents")

    def payloads(client: Client) -> list[Payload]:
        if not client.ranks():
            raise another_model(client, "ranks no documents")
        return client.rank_payloads(fields["query"], list(map(text_of, documents)))

    def place(position: int) -> str:
        return f"{name}[{position}]" if position < len(documents) else "query"

    def answer(client: Client, results: Sequence[Any]) -> Any:
        scores = client.relevance(results)
        # What is no number comes last.
        order = sorted(range(len(scores)), key=lambda at: (math.isnan(scores[at]), -scores[at]))
        found = []
        for index in order[: int(fields.get("top_n", len(order)))]:
            text = {"text": text_of(documents[index])} if returned else {}
            if of_tei:
                found.append({"index": index, "score": scores[index], **text})
            else:
                document = {"document": text} if returned else {}
                found.append({"index": index, "relevance_score": scores[index], **document})
        return found if of_tei else {"results": found}

    return Task(fields.get("model", ""), {}, payloads, place, answer)


def text_of(document: Any) -> Any:
    """Return the text of a document that is sent as one, or in an object."""
    return document.get("text") if isinstance(document, dict) else document
