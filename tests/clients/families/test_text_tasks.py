"""Names in texts, answers to questions and labels of the caller, beside transformers' own code."""

from __future__ import annotations

import json
import math
import re
import subprocess
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from clients.errors import BadPayload, ClientDisabled
from clients.request import Request
from clients.triton.server import Padding, Signature, Tensors
from tests.clients.conftest import auto_tokenizer
from tests.clients.text.test_tokenizer import bert, roberta, xlm_roberta
from tests.conftest import PROJECT
from tests.support.fake_triton import Arrays
from tests.support.family_bench import Bench, bench, signature, tokenizer_at
from tests.support.packages import python_with

__all__ = ["bench"]  # the fixture

BERT = PROJECT / "model_repository" / "bert_base" / "tokenizer"
INPUTS = {"input_ids": (-1,), "attention_mask": (-1,)}
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SENTENCE = "Ångström's grandmother unpacked hydrothermal samples, in San Francisco (U.S.A.)."


def logits_of(inputs: Tensors, width: int) -> np.ndarray:
    """Made-up scores of tokens, [texts, tokens, width], which a reference in Python makes too."""
    ids = inputs["input_ids"].astype(np.float64)
    places = np.arange(ids.shape[1])[None, :, None]
    angle = ids[..., None] * 12.9898 + places * 78.233 * np.arange(1, width + 1)
    return (4 * np.sin(angle)).astype("f")


def tensors(outputs: dict[str, tuple[int, ...]], batch: int = 4) -> Signature:
    return signature(INPUTS, outputs, batch, "INT64")


def set_up(
    bench: Bench, family: str, outputs: dict[str, tuple[int, ...]], labels: str = ""
) -> None:
    bench.set_up(f'family = "{family}"', tensors(outputs), labels)
    if not (bench.folder / "tokenizer").exists():
        (bench.folder / "tokenizer").symlink_to(BERT)


# Names


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
@pytest.mark.parametrize("words", [bert, roberta, xlm_roberta])
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_entities_are_those_of_transformers_pipeline(
    bench: Bench, words: Callable[[Path], None], strategy: str
) -> None:
    if words is not bert:
        (bench.folder / "tokenizer").mkdir(parents=True)
        words(bench.folder / "tokenizer")
    set_up(bench, "token-classification", {"y": (-1, len(TAGS))}, "\n".join(TAGS) + "\n")
    bench.answers(lambda inputs: {"y": logits_of(inputs, len(TAGS))})
    pipeline = import_module("transformers.pipelines.token_classification")
    theirs = object.__new__(pipeline.TokenClassificationPipeline)
    theirs.tokenizer = auto_tokenizer().from_pretrained(bench.folder / "tokenizer")
    theirs.model = Mock()
    theirs.model.config.id2label = dict(enumerate(TAGS))
    text = SENTENCE if words is bert else "My name is Jennifer, walking  now; the sunflower sat🙂."
    encoding = theirs.tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    scores = np.exp(logits_of({"input_ids": np.array([encoding["input_ids"]])}, len(TAGS))[0])
    chosen = pipeline.AggregationStrategy(strategy)
    entities = theirs.aggregate(
        theirs.gather_pre_entities(
            text,
            encoding["input_ids"],
            scores / scores.sum(axis=1, keepdims=True),
            encoding["offset_mapping"],
            encoding["special_tokens_mask"],
            chosen,
        ),
        chosen,
    )
    expected = [
        {
            "label": name,
            "score": pytest.approx(one["score"], abs=1e-5),
            "word": word,
            "start": one["end"] - len(word),  # without the blanks that RoBERTa's tokens have
            "end": one["end"],
        }
        for one in entities
        for word in [text[one["start"] : one["end"]].lstrip()]
        if (name := one.get("entity") or one["entity_group"]) != "O"
    ]
    found = bench.ask({"text": text}, aggregation=strategy)
    assert len(found) > 3
    assert found == expected


def test_entities_of_several_texts_share_a_run(bench: Bench) -> None:
    """The tokens are 3 to 6, and the class of each is its number less 3; by hand."""
    labels = ["O", "B-X", "I-X", "S-X"]
    bench.set_up(
        'family = "token-classification"', tensors({"y": (-1, 4)}), "\n".join(labels) + "\n"
    )
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(lambda inputs: {"y": 99 * np.eye(8, dtype="f")[inputs["input_ids"]][..., 3:7]})
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        both = client.inference_batch([{"text": "the  cat sat"}, {"text": "sat here cat the"}])
    one = {"label": "X", "score": 1.0}
    assert both == [
        [{**one, "word": "cat sat", "start": 5, "end": 12}],
        [
            {**one, "word": "sat", "start": 0, "end": 3},
            {**one, "word": "here", "start": 4, "end": 8},
            {**one, "word": "cat", "start": 9, "end": 12},
        ],
    ]
    (last,) = bench.server.calls[-1:]
    assert last["inputs"]["input_ids"].tolist() == [[3, 4, 5, 0], [5, 6, 4, 3]]
    assert last["hints"].padding == Padding({"input_ids": 0, "attention_mask": 0}, ["y"])
    bench.answers(lambda inputs: {"y": np.full((*inputs["input_ids"].shape, 4), np.nan, "f")})
    assert math.isnan(bench.ask({"text": "the"})[0]["score"])
    bench.set_up('family = "token-classification"', tensors({"y": (-1, 4)}), "O\nB-X\n")
    with pytest.raises(ClientDisabled, match="has 4 classes"):
        bench.ask({"text": "the"})


# Answers to questions

REFERENCE = """
import json, sys
import numpy as np
from transformers import AutoTokenizer
from transformers.pipelines import question_answering as module

class Tensor(np.ndarray):
    def unsqueeze(self, axis):
        return self[None]

    def numpy(self):
        return np.asarray(self)

class Torch:
    int32, bfloat16 = np.dtype("int32"), None
    tensor = staticmethod(lambda numbers: np.array(numbers).view(Tensor))

module.torch = Torch
pipeline = object.__new__(module.QuestionAnsweringPipeline)
pipeline.framework = "pt"
pipeline.tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for line in sys.stdin:
    case = json.loads(line)
    windows = []
    for one in pipeline.preprocess(case["payload"], **case["windows"]):
        ids = one["input_ids"].astype(float)
        places = np.arange(ids.shape[1])[None, :, None]
        angle = ids[..., None] * 12.9898 + places * 78.233 * np.array([1, 2])
        logits = (4 * np.sin(angle)).astype("f")
        one.update(start=logits[..., 0], end=logits[..., 1])
        found = pipeline.postprocess([one], **case["parameters"])
        windows.append([found] if isinstance(found, dict) else found)
    print(json.dumps(windows))
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [bert, roberta])
def test_answers_are_those_of_transformers_pipeline(
    bench: Bench, words: Callable[[Path], None]
) -> None:
    """Of each window; of the same answer in several windows the best one counts."""
    folder = bench.folder / "tokenizer"
    if words is not bert:
        folder.mkdir(parents=True)
        words(folder)
    context = " ".join(
        re.sub(r"[#`|\n]+", " ", (PROJECT / "README.md").read_text()).split()[
            : 400 if words is bert else 120
        ]
    )
    cases = [
        {"payload": {"question": question, "context": part},
         "windows": {"max_seq_len": 64, "doc_stride": 16},
         "parameters": {"top_k": top_k, "max_answer_len": most, "handle_impossible_answer": none}}
        for question in ("Who serves it?", "Where?")
        for part in (SENTENCE, context)
        for top_k, most, none in ((1, 15, False), (5, 3, False), (3, 15, True))
    ]  # fmt: skip
    done = subprocess.run(
        [python_with("transformers==4.57.6"), "-c", REFERENCE, BERT if words is bert else folder],
        input="\n".join(map(json.dumps, cases)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = {"start_logits": (-1,), "end_logits": (-1,)}
    set_up(bench, "question-answering", outputs)

    def run(inputs: Tensors) -> Arrays:
        return dict(zip(outputs, np.moveaxis(logits_of(inputs, 2), 2, 0), strict=True))

    bench.answers(run)
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        given: Any = case["parameters"]
        none = "\nno_answer = true" if given["handle_impossible_answer"] else ""
        toml = f'family = "question-answering"\nmax_tokens = 64\nstride = 16{none}'
        bench.set_up(toml, tensors(outputs))
        payload: Any = case["payload"]
        found = bench.ask(payload, top_k=given["top_k"], max_answer_tokens=given["max_answer_len"])
        best: dict[str, Any] = {}
        windows = json.loads(line)
        assert (len(windows) > 9) == (payload["context"] == context)
        for one in (one for window in windows for one in window):
            name, nothing = one["answer"].lower(), one["answer"] == ""
            if name not in best or (one["score"] < best[name]["score"]) == nothing:
                best[name] = one
        expected = sorted(best.values(), key=lambda one: -one["score"])[: given["top_k"]]
        assert [one["answer"] for one in found] == [one["answer"] for one in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(theirs["score"], abs=2e-6)
            assert payload["context"][ours["start"] : ours["end"]] == ours["answer"]


def test_a_long_window_takes_no_memory_for_answers_that_are_too_long(bench: Bench) -> None:
    """All pairs of 4096 tokens would be 134 MB."""
    outputs = {"start_logits": (-1,), "end_logits": (-1,)}
    bench.set_up('family = "question-answering"\nmax_tokens = 4100', tensors(outputs))
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(lambda inputs: dict.fromkeys(outputs, (inputs["input_ids"] == 4).astype("f")))
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        with pytest.raises(BadPayload, match="`context` has 500001 characters"):
            client.inference({"question": "the", "context": "c" * 500_001})
        tracemalloc.start()
        try:
            (found,) = client.inference({"question": "the", "context": "sat " * 4090 + "cat"})
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (found["answer"], found["start"]) == ("cat", 4 * 4090)
    assert most < 30 * 2**20


def test_long_contexts_are_read_in_windows_that_overlap(bench: Bench) -> None:
    """By hand: words are tokens here, no token stands before a text, and "cat" is the answer."""
    outputs = {"start_logits": (-1,), "end_logits": (-1,)}

    def run(inputs: Tensors) -> Arrays:
        is_cat = np.where(inputs["input_ids"] == 4, np.log(3), 0).astype("f")
        return dict.fromkeys(outputs, is_cat)

    bench.set_up('family = "question-answering"\nmax_tokens = 5\nstride = 1', tensors(outputs))
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    client = bench.client()
    assert list(client.fields) == ["question", "context"]
    short = {"question": "here the", "context": "the cat sat"}
    long = {"question": "here the", "context": "sat sat sat  cat here"}
    with Request(parameters=client.read_parameters({"top_k": 2, "max_answer_tokens": 2})).active():
        bench.server.calls.clear()
        found = client.inference_batch([short, long])
        with pytest.raises(BadPayload, match="`question` has 4 tokens") as caught:
            client.inference({**short, "question": "the the the the"})
        with pytest.raises(BadPayload, match="more than 64 windows of 3 tokens"):
            client.inference({**short, "context": "sat " * 200})
        with pytest.raises(BadPayload, match="`context` has 16001 characters"):
            client.inference({**short, "context": "sat" + "t" * 15_998})
    assert caught.value.hint == "of the model's 5, 2 at least are for the context"
    rows = bench.server.calls[-1]["inputs"]["input_ids"].tolist()
    assert rows == [[6, 3, 3, 4, 5], [6, 3, 5, 5, 5], [6, 3, 5, 4, 6]]
    # (3/5)², and (3/5)(1/5) with a neighbour; in the other text's first window three times (1/3)².
    expected = [("cat", 0.36, 4, 7), ("the cat", 0.12, 0, 7)]
    expected += [("cat", 0.36, 13, 16), ("sat", 0.333333, 0, 3)]
    assert [
        (one["answer"], one["score"], one["start"], one["end"]) for two in found for one in two
    ] == expected


def test_the_answer_of_a_model_with_a_fault_shows_it(bench: Bench) -> None:
    outputs = {"start_logits": (-1,), "end_logits": (-1,)}
    set_up(bench, "question-answering", outputs)
    bench.answers(
        lambda inputs: dict.fromkeys(outputs, np.full_like(inputs["input_ids"], np.nan, "f"))
    )
    (found,) = bench.ask({"question": "Where?", "context": SENTENCE})
    assert math.isnan(found["score"])


# Labels of the caller


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("nli", ["contradiction neutral entailment", "Entailment not_entailment"])
@pytest.mark.parametrize("candidates", [["geography", "cooking", "a b"], ["geography"]])
def test_labels_are_those_of_transformers_pipeline(
    bench: Bench, nli: str, candidates: list[str], multi_label: bool
) -> None:
    names = nli.split()
    set_up(bench, "zero-shot-classification", {"y": (len(names),)}, "\n".join(names) + "\n")
    rows = np.array([[1, 0.5, -3], [-2, 0.25, 4], [0.5, 1, 0.5]], "f")
    rows = rows[: len(candidates), : len(names)]
    bench.answers(lambda inputs: {"y": rows[-len(inputs["input_ids"]) :]})
    payload = {"text": SENTENCE, "candidate_labels": candidates}
    bench.ask(payload)  # and is the mask heeded?
    found = bench.ask({**payload, "multi_label": multi_label, "hypothesis_template": "It is {}."})
    asked = bench.server.calls[-1]["inputs"]["input_ids"]
    words = auto_tokenizer().from_pretrained(BERT)
    sentences = [f"It is {label}." for label in candidates]
    expected = words([SENTENCE] * len(candidates), sentences, padding=True)["input_ids"]
    assert asked.tolist() == expected
    pipeline = import_module("transformers.pipelines.zero_shot_classification")
    theirs = object.__new__(pipeline.ZeroShotClassificationPipeline)
    theirs.model = Mock()
    theirs.model.config.label2id = {name: place for place, name in enumerate(names)}
    outputs = []
    for label, row in zip(candidates, rows, strict=True):
        array = Mock()
        array.float.return_value.numpy.return_value = row[None]
        outputs.append({"candidate_label": label, "sequence": SENTENCE, "logits": array})
    answer = theirs.postprocess(outputs, multi_label=multi_label)
    assert [one["label"] for one in found] == answer["labels"]
    assert [one["score"] for one in found] == pytest.approx(answer["scores"], abs=1e-6)
    assert [candidates[one["index"]] for one in found] == answer["labels"]


def test_texts_with_their_labels_are_as_many_rows_as_the_model_takes(bench: Bench) -> None:
    toml = 'family = "zero-shot-classification"\ncandidate_labels = ["cat", "sat", "here"]'
    toml += '\nhypothesis_template = "the {}"\nmulti_label = true\nmax_tokens = 9'
    two = "entailment\ncontradiction\n"
    bench.set_up(toml, tensors({"y": (2,)}), two)
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(lambda inputs: {"y": (inputs["input_ids"][:, -2:] == 4).astype("f")})
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        client.inference({"text": "the"})
        bench.server.calls.clear()
        client.inference_batch([{"text": "the"}, {"text": "sat", "candidate_labels": "cat, here"}])
        sizes = [call["inputs"]["input_ids"].shape for call in bench.server.calls]
        assert sizes == [(4, 3), (1, 3)]
        for field, value in [
            ("candidate_labels", []), ("candidate_labels", ["a", " "]), ("candidate_labels", 7),
            ("candidate_labels", ["a"] * 101), ("hypothesis_template", "It is."),
            ("hypothesis_template", "{} or {}"),
            ("multi_label", 1), ("labels", ["a"]), ("candidate_labels", ["\ud800"]),
        ]:  # fmt: skip
            with pytest.raises(BadPayload, match=field):
                client.inference({"text": "the", field: value})
        with pytest.raises(BadPayload, match="`text` with the sentence of a label has 10 tokens"):
            client.inference({"text": "the " * 8})
    bench.set_up(toml, tensors({"y": (2,)}), "good\nbad\n")
    assert (
        '`labels` are good, bad; one of two or more is "entailment"' in bench.registry().broken["m"]
    )
