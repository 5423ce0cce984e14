"""The routes of OpenAI's clients and of rerankers, with an embedding model on a fake Triton.

Words have vectors: "the" (3, 0), "cat" (0, 4), "sat" (3, 0). A text has the mean of its words', of
length 1: "the cat" (1.5, 2) / 2.5.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from tokenizers import Tokenizer, processors
from werkzeug.test import TestResponse

from clients.base import Client, Environment, Payload
from clients.plugins.registry import Registry, load_clients
from clients.triton.server import Tensors
from dispatcher.auth.api_keys import KeyFile
from dispatcher.execution.slots import Caller
from dispatcher.settings import read_settings
from dispatcher.wsgi import make_admission
from tests.clients.conftest import in_this_process
from tests.support.application import make_app, quiet
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.family_bench import TEXTS, signature, tokenizer_at

__all__ = ["in_this_process"]  # the fixture

KEYS = 'family = "embedding"\naliases = ["text-embedding-3-small"]\nmatryoshka = [1]\n'


def run(inputs: Tensors) -> Arrays:
    places = np.zeros((8, 8), np.float32)
    places[3, 0] = places[5, 0] = 3
    places[4, 1] = 4
    return {"y": places[inputs["input_ids"]]}


def score(inputs: Tensors) -> Arrays:
    """How many words are "cat", less one."""
    return {"y": (inputs["input_ids"] == 4).sum(1, keepdims=True) - np.float32(1)}


@pytest.fixture
def server() -> FakeTriton:
    pairs = signature({"input_ids": (-1,)}, {"y": (1,)}, datatype="INT64")
    models = {"words": run, "pairs": score, "plain": run}
    return FakeTriton(models, {"words": TEXTS, "pairs": pairs, "plain": TEXTS})


@pytest.fixture
def client(server: FakeTriton, tmp_path: Path, in_this_process: None) -> FlaskClient:
    return serve(server, tmp_path)


def serve(server: FakeTriton, folder: Path, **parts: Any) -> FlaskClient:
    for name, text in {"words": KEYS, "pairs": 'family = "text-classification"'}.items():
        tokenizer_at(folder / name / "tokenizer")
        (folder / name / "dispatch.toml").write_text(text)
    environment = Environment(server, folder)
    registry = load_clients(environment)
    settings = read_settings({})
    return make_app(settings, registry, environment, quiet(server), **parts).test_client()


def embed(client: FlaskClient, given: Any, **others: Any) -> TestResponse:
    return client.post("/v1/embeddings", json={"model": "words", "input": given, **others})


def assert_refused(response: TestResponse, status: int, code: str, words: str) -> None:
    assert response.status_code == status, response.text
    error = response.json["error"]
    assert words in error.pop("message")
    assert error == {"type": "invalid_request_error", "code": code, "param": None}


def test_vectors_of_texts_and_of_token_ids(client: FlaskClient) -> None:
    whole = embed(client, ["the cat", "cat"], user="me").json
    first, second = (one.pop("embedding") for one in whole["data"])
    assert whole == {
        "object": "list",
        "data": [{"object": "embedding", "index": at} for at in range(2)],
        "model": "words",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert first == pytest.approx([0.6, 0.8, 0, 0, 0, 0, 0, 0])
    assert second == pytest.approx([0, 1, 0, 0, 0, 0, 0, 0])
    for given in ("the cat", [3, 4], [[3, 4]]):
        assert embed(client, given).json["data"][0]["embedding"] == first
    packed = embed(client, "the cat", encoding_format="base64").json["data"][0]["embedding"]
    assert struct.unpack("<8f", base64.b64decode(packed)) == pytest.approx(first)
    alias = embed(client, "cat", model="text-embedding-3-small").json
    assert alias["model"] == "text-embedding-3-small"
    shorter = embed(client, "the cat", dimensions=1).json["data"][0]["embedding"]
    assert shorter == [1]  # cut, then of length 1
    assert embed(client, "the cat", dimensions=8.0).json["data"][0]["embedding"] == first


def test_many_texts_are_batches(client: FlaskClient, server: FakeTriton) -> None:
    """Of four, as the model says; in their order."""
    texts = ["the", "cat"] * 250
    answer = embed(client, texts).json
    assert [one["embedding"][:2] for one in answer["data"]] == [[1, 0], [0, 1]] * 250
    assert answer["usage"]["total_tokens"] == 500
    sizes = [len(call["inputs"]["input_ids"]) for call in server.calls]
    assert sum(size == 4 for size in sizes) == 125


def test_a_question_does_not_wait_for_those_who_send_many_texts(
    server: FakeTriton, tmp_path: Path, in_this_process: None
) -> None:
    admission = make_admission(read_settings({}))
    client = serve(server, tmp_path, admission=admission)
    for _ in range(admission.series.per_model):
        admission.series.enter("words", math.inf, Caller(None))
    assert embed(client, ["the cat"]).status_code == 200
    many = client.post("/v1/embeddings?timeout_ms=1", json={"model": "words", "input": ["a", "b"]})
    assert many.status_code == 504


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"input": []}, "bad_body", "`input` is a list of 0; expected 1 to 1000"),
        ({"input": ""}, "bad_body", "`input` is ''; expected a text, a list of texts"),
        ({"input": ["the", ""]}, "bad_body", "`input[1]` is ''"),
        ({"input": ["the", [3, 4.0]]}, "bad_body", "expected a text, or a list of token ids"),
        ({"input": ["the", "the cat " * 3]}, "bad_payload", "input[1]: `text` has 6 tokens; the"),
        ({"input": "the cat " * 3}, "bad_payload", "input: `text` has 6 tokens"),
        ({"input": [3] * 6}, "bad_payload", "input: `token_ids` is [3, 3, 3"),
        ({"input": [3, 7]}, "bad_payload", "makes: […], at most 5 numbers from 0 to 6"),
        ({}, "bad_body", "`input` is missing"),
        ({"input": "the", "model": 5}, "bad_body", "`model` is 5"),
        ({"input": "the", "model": None}, "bad_body", "`model` is missing"),
        ({"input": "the", "model": "plain"}, "bad_body", "answers no vectors; GET /v1/models says"),
        ({"input": "the", "dimensions": 3}, "bad_parameter", "the model allows 1, 8 (`matryoshka`"),
        ({"input": "the", "dimensions": 0}, "bad_body", "expected a whole number from 1"),
        ({"input": "the", "encoding_format": "int8"}, "bad_body", '"float" or "base64"'),
        ({"input": "the", "inputs": "the"}, "bad_body", "the body may have model, input, dim"),
    ],
)
def test_what_is_wrong_is_said_in_openai_s_form(
    client: FlaskClient, body: Any, code: str, words: str
) -> None:
    answer = client.post("/v1/embeddings", json={"model": "words", **body})
    assert_refused(answer, 400, code, words)


def test_token_ids_of_another_tokenizer_have_no_vector(
    client: FlaskClient, server: FakeTriton, tmp_path: Path
) -> None:
    """Such as OpenAI's, which LangChain sends: they lack this one's special tokens."""
    folder = tmp_path / "other"
    tokenizer_at(folder / "words" / "tokenizer", model_max_length=9)
    path = str(folder / "words" / "tokenizer" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    ends = [("<unk>", 1), ("<mask>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<unk> $A <mask> <mask>", None, ends)
    tokenizer.save(path)
    (folder / "words" / "dispatch.toml").write_text(KEYS)
    environment = Environment(server, folder)
    app = make_app(read_settings({}), load_clients(environment), environment, quiet(server))
    own = app.test_client()
    assert embed(own, [1, 3, 4, 2, 2]).json["data"] == embed(own, "the cat").json["data"]
    for ids in ([3, 4], [1, 3, 4, 2], [1], [2, 2]):
        hint = (
            "makes: [1, …, 2, 2], at most 9 numbers from 0 to 6; or send the text itself, as Lang"
        )
        assert_refused(embed(own, ids), 400, "bad_payload", hint)


def test_documents_are_ranked_by_the_cosine_of_their_vectors(client: FlaskClient) -> None:
    documents = ["cat", {"text": "the cat", "title": "b"}, "sat"]
    body = {"model": "words", "query": "the", "documents": documents}
    answer = client.post("/v1/rerank", json={**body, "return_documents": True}).json
    assert answer == {
        "model": "words",
        "results": [
            {"index": 2, "relevance_score": 1.0, "document": {"text": "sat"}},
            {"index": 1, "relevance_score": 0.6, "document": {"text": "the cat"}},
            {"index": 0, "relevance_score": 0.0, "document": {"text": "cat"}},
        ],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    best = client.post("/rerank", json={**body, "top_n": 1.0}).json["results"]
    assert best == [{"index": 2, "relevance_score": 1.0}]
    of_tei = {"query": "cat", "texts": ["the", "cat"], "raw_scores": False, "truncate": False}
    ranked = client.post("/rerank?modelname=words", json={**of_tei, "return_text": True}).json
    assert ranked == [
        {"index": 1, "score": 1.0, "text": "cat"},
        {"index": 0, "score": 0.0, "text": "the"},
    ]


def test_documents_are_ranked_by_a_model_of_pairs(client: FlaskClient) -> None:
    documents = ["sat", "cat", "cat cat"]
    body = {"model": "pairs", "query": "the", "documents": documents}
    answer = client.post("/v1/rerank", json=body).json
    assert [one["index"] for one in answer["results"]] == [2, 1, 0]
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == pytest.approx([1 / (1 + math.exp(-logit)) for logit in (1, 0, -1)])
    assert answer["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"query": "the"}, "`documents` is missing"),
        ({"documents": ["the"]}, "`query` is missing"),
        ({"query": "the", "documents": ["cat", {"body": "the"}]}, "`documents[1]` is an object"),
        ({"query": "the", "documents": ["the"] * 1001}, "`documents` is a list of 1001"),
        ({"query": "the", "documents": ["cat", "the " * 6]}, "documents[1]: `text` has 6 tokens"),
        ({"query": "the " * 6, "documents": ["cat"]}, "query: `text` has 6 tokens"),
        ({"query": "the", "texts": ["cat"], "truncate": True}, "expected false: what is too long"),
        ({"query": "the", "texts": ["cat"], "documents": ["cat"]}, "beside `documents`"),
        ({"query": "the", "documents": ["cat"], "model": "plain"}, "ranks no documents"),
    ],
)
def test_a_ranking_that_cannot_be_made(client: FlaskClient, body: Any, words: str) -> None:
    answer = client.post("/v1/rerank", json={"model": "words", **body})
    code = "bad_payload" if ": `text`" in words else "bad_body"
    assert_refused(answer, 400, code, words)


class Counts(Client):
    """A class of an author: the vector of a text is its length, the score of a pair their sum."""

    modelname = "counts"
    example = {"text": "a"}
    embeds = True
    pair_fields = ("text", "other")

    def inference(self, payload: Payload) -> Any:
        length = len(self.text(payload))
        return length + len(self.text(payload, "other")) if "other" in payload else [length]


def test_a_class_of_an_author_may_do_both(server: FakeTriton, tmp_path: Path) -> None:
    environment = Environment(server, tmp_path)
    registry = Registry({"counts": Counts(environment)})
    app = make_app(read_settings({}), registry, environment, quiet(server))
    client = app.test_client()
    answer = embed(client, ["the", "a"], model="counts").json
    assert [one["embedding"] for one in answer["data"]] == [[3], [1]]
    body = {"model": "counts", "query": "a", "documents": ["b", "of"]}
    ranked = client.post("/v1/rerank", json=body).json["results"]
    assert [(one["index"], one["relevance_score"]) for one in ranked] == [(1, 3), (0, 2)]
    listed = client.get("/v1/models/counts").json["routes"]  # though Triton has no such model
    assert listed == ["/v1/embeddings", "/v1/rerank"]


def test_models_are_listed_with_the_routes_that_ask_them(client: FlaskClient) -> None:
    listed = client.get("/v1/models").json
    assert listed["object"] == "list"
    routes = {one["id"]: one["routes"] for one in listed["data"]}
    both = ["/v1/embeddings", "/v1/rerank"]
    of_words = {"text-embedding-3-small": both, "words": both}
    assert routes == {"pairs": ["/v1/rerank"], "plain": [], **of_words}
    (words,) = [one for one in listed["data"] if one["id"] == "words"]
    assert client.get("/v1/models/words").json == words
    assert words["object"] == "model"
    assert words["created"] > 0
    gone = client.get("/v1/models/gpt")
    assert_refused(gone, 404, "unknown_model", "there is no model 'gpt'")
    body = {"model": "words", "input": "the"}
    version = client.post("/v1/embeddings?modelversion=x", json=body)
    assert_refused(version, 400, "bad_body", "expected a whole number from 1")
    asked = embed(client, "the", model="gpt")
    assert_refused(asked, 404, "unknown_model", "served models are: ")


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/chat/completions", "/v1/completions"])
def test_there_are_no_completions(client: FlaskClient, path: str) -> None:
    answer = client.post(path, json={"model": "words", "messages": []})
    assert_refused(answer, 404, "not_found", "no models that write")
    other = client.post("/v1/images")
    assert_refused(other, 404, "not_found", "there is no route '/v1/images'")


def test_keys_come_as_openai_s_clients_send_them(
    server: FakeTriton, tmp_path: Path, in_this_process: None
) -> None:
    keys = tmp_path / "keys"
    digests = [hashlib.sha256(key).hexdigest() for key in (b"sk-1", b"sk-2")]
    keys.write_text(f"inference shop {digests[0]}\nmanagement ops {digests[1]}\n")
    client = serve(server, tmp_path / "models", keys=KeyFile(keys))

    def ask(key: str) -> TestResponse:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": "words", "input": "the"}
        return client.post("/v1/embeddings", json=body, headers=headers)

    assert ask("sk-1").status_code == 200
    assert_refused(ask(""), 401, "unauthorized", "no API key")
    assert_refused(ask("sk-2"), 403, "forbidden", "for management")
    listed = client.get("/v1/models", headers={"Authorization": "Bearer sk-2"})
    assert listed.status_code == 200
