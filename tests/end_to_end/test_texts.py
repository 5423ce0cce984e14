"""Models of texts as `new-model` lays them out, in the real container, with several callers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PROJECT, running
from tests.support.models.onnx_models import reader
from tool.__main__ import main

TOKENIZER = PROJECT / "model_repository" / "bert_base" / "tokenizer"
WORDS = (PROJECT / "README.md").read_text().replace("`", "").split()
TEXTS = [" ".join(WORDS[20 * place : 20 * place + 3 + 2 * place]) for place in range(10)]
LABELS = {
    "names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "pairs": ["LABEL_0"],
    "topics": ["contradiction", "neutral", "entailment"],
}
PAYLOADS: Mapping[str, Sequence[dict[str, Any]]] = {
    "names": [{"text": text} for text in TEXTS],
    "pairs": [{"text": "Who serves models?", "text_pair": text} for text in TEXTS],
    "topics": [{"text": text, "candidate_labels": "models, cooking, prose"} for text in TEXTS],
    "questions": [
        {"question": "Who serves models?", "context": text}
        for text in [*TEXTS, " ".join(WORDS[:900])]
    ],
}


@pytest.mark.slow
def test_every_caller_gets_what_a_lone_one_gets(tmp_path: Path) -> None:
    """Lists and lone payloads of eight callers at once, beside ONNX Runtime asked one by one."""
    for name in PAYLOADS:
        export = tmp_path / "export" / name
        if name == "questions":
            reader(export / "model.onnx", 2, ("start_logits", "end_logits"), per="ends")
        else:
            per = "token" if name == "names" else "text"
            reader(export / "model.onnx", len(LABELS[name]), per=per)
        config = {"id2label": dict(enumerate(LABELS.get(name, [])))}
        (export / "config.json").write_text(json.dumps(config))
        options = ["--from", str(export), "--tokenizer", str(TOKENIZER)]
        assert main(["new-model", name, *options, "--into", str(tmp_path / "mine")]) == 0
    expected = {}
    for name, payloads in PAYLOADS.items():
        (client,) = clients_in(tmp_path / "mine" / name / "dispatch.toml")
        models = OnnxModels(tmp_path / "mine")
        expected[name] = [answer(client, payload, models) for payload in payloads]
        assert all(expected[name])
    settings = {"MODEL_DIR": str(tmp_path / "mine"), "MODEL_DIR_USE": "instead"}
    with running(tmp_path, **settings) as container, ThreadPoolExecutor(8) as pool:

        def ask(name: str, place: int) -> None:
            payloads = PAYLOADS[name]
            alone = container.ask(modelname=name, payload=payloads[place])
            assert same(alone.json["result"], expected[name][place]), name
            whole = container.ask(modelname=name, payload=payloads)
            assert same(whole.json["result"], expected[name]), name

        asked = [(name, place) for place in range(len(TEXTS)) for name in PAYLOADS]
        assert list(pool.map(ask, *zip(*asked, strict=True))) == [None] * len(asked)


def same(found: Any, expected: Any) -> bool:
    """Whether answers are alike but for the rounding of a score."""
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, abs=5e-5))
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[name], one) for name, one in expected.items()
        )
    return bool(found == expected)
