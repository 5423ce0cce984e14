"""Models of texts, served by a line in a file."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from clients.errors import BadPayload, ClientDisabled, ModelUnavailable
from clients.request import Request
from clients.triton.server import Padding, Signature, Tensors
from dispatcher.codecs.responses import encode
from tests.conftest import PROJECT
from tests.support.fake_triton import Arrays
from tests.support.family_bench import TEXTS, Bench, bench, signature, tokenizer_at

__all__ = ["bench"]  # the fixture


def test_a_mask_of_its_own_and_the_inputs_that_the_model_has(bench: Bench) -> None:
    seen: list[Tensors] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(inputs)
        logits = np.full((*inputs["input_ids"].shape, 8), -50, np.float32)
        logits[..., 4] = np.log(3)  # "cat"
        logits[..., 6] = 0  # "here"
        return {"y": logits}

    bench.set_up('family = "fill-mask"\n[parameters]\ntop_k = 2', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    assert bench.ask({"text": "the <mask> sat"}) == [
        {"token": "the cat sat", "score": 0.75},
        {"token": "the here sat", "score": 0.25},
    ]
    assert {name: array.tolist() for name, array in seen[-1].items()} == {
        "input_ids": [[3, 2, 5]],
        "attention_mask": [[1, 1, 1]],
    }
    assert bench.server.calls[-1]["hints"].rows == {"y": [1]}
    bench.answers(lambda inputs: {"y": run(inputs)["y"][:, -1]})  # by a backend that picks the rows
    assert bench.ask({"text": "the <mask> sat"})[0] == {"token": "the cat sat", "score": 0.75}
    assert bench.client().example == {"text": "The world has <mask> people."}
    with pytest.raises(BadPayload, match="`text` has no <mask>"):
        bench.ask({"text": "the [MASK]"})
    with pytest.raises(BadPayload, match="6 tokens"):
        bench.ask({"text": "the cat sat here the <mask>"})


def test_each_mask_in_a_text_is_one_for_the_tokenizer(bench: Bench) -> None:
    """Else answers would stand in other blanks than those that they are for."""
    bench.set_up('family = "fill-mask"', TEXTS)
    shutil.copytree(PROJECT / "model_repository/bert_base/tokenizer", bench.folder / "tokenizer")
    path = bench.folder / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split_special_tokens": True}))
    assert "leave `split_special_tokens` out" in bench.registry().broken["m"]
    shutil.rmtree(bench.folder / "tokenizer")
    alone = {"content": "<mask>", "single_word": True, "special": True, "normalized": False}
    tokenizer_at(bench.folder / "tokenizer", mask_token={"__type": "AddedToken", **alone})
    path = bench.folder / "tokenizer" / "tokenizer.json"
    whole = json.loads(path.read_text())
    whole["added_tokens"][2]["single_word"] = True
    path.write_text(json.dumps(whole))
    bench.answers(lambda inputs: {"y": np.eye(8, dtype=np.float32)[inputs["input_ids"]]})
    with pytest.raises(BadPayload, match="has 2 <mask>, but 1 masks among") as caught:
        bench.ask({"text": "the<mask> <mask> sat"})
    assert caught.value.hint == "put a blank before and behind each of them"
    assert len(bench.ask({"text": "the <mask> <mask> sat"})) == 2


def test_a_word_that_the_tokenizer_has_not_is_none(bench: Bench) -> None:
    """Vocabularies of models are made longer, up to a round number."""
    bench.set_up('family = "fill-mask"\n[parameters]\ntop_k = 1', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    last = np.eye(8, dtype=np.float32)[7]
    bench.answers(lambda inputs: {"y": np.tile(last, (*inputs["input_ids"].shape, 1))})
    assert bench.ask({"text": "the<mask> sat"})[0]["token"] == "the sat"


def test_vectors_are_means_over_the_tokens_and_of_length_1(bench: Bench) -> None:
    """Token 3 is at (3, 0), 4 at (0, 4), padding far away; (1.5, 2) has the length 2.5."""
    places = np.zeros((8, 8), np.float32)
    places[0], places[3, 0], places[4, 1] = 99, 3, 4
    bench.answers(lambda inputs: {"y": places[inputs["input_ids"]]})
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    client = bench.client()
    with Request().active():
        short, long = client.inference_batch([{"text": "the cat"}, {"text": "the cat the cat"}])
    assert short == pytest.approx([0.6, 0.8, 0, 0, 0, 0, 0, 0])
    assert long == short
    with pytest.raises(BadPayload, match="unknown field 'top_k'") as caught:
        bench.ask({"text": "the cat", "top_k": 1})
    assert caught.value.hint.startswith("the payload may have text, token_ids; `parameters`")
    bench.set_up('family = "embedding"\nnormalised = false', TEXTS)
    assert bench.ask({"text": "the cat"})[:2] == [1.5, 2]
    bench.set_up('family = "embedding"\nnormalised = false\npooling = "first"', TEXTS)
    assert bench.ask({"text": "the cat"})[:2] == [3, 0]
    bench.set_up(
        'family = "embedding"\npooling = "none"',
        signature({"input_ids": (-1,)}, {"y": (2,)}, datatype="INT64"),
    )
    bench.answers(lambda inputs: {"y": np.array([[0, 2]], np.float32)})
    assert bench.ask({"text": "the cat"}) == [0, 1]


@pytest.mark.parametrize(
    ("batch", "sizes", "shape"), [(4, (4,), (1, 4)), (0, (-1,), (2,)), (0, (1, 4), (1, 4))]
)
def test_texts_are_filled_up_to_the_model_s_length(
    bench: Bench, batch: int, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["input_ids"]))
        return {"y": np.zeros((*inputs["input_ids"].shape, 8), np.float32) + 1}

    outputs = {"y": (*sizes, 8)}
    bench.set_up('family = "embedding"', signature({"input_ids": sizes}, outputs, batch, "INT32"))
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    assert bench.ask({"text": "the cat"}) == pytest.approx([8**-0.5] * 8)
    assert seen[0].shape == shape
    assert seen[0].dtype == np.int32
    assert seen[0].ravel()[:2].tolist() == [3, 4]
    if 4 in sizes:
        with pytest.raises(BadPayload, match="5 tokens"):
            bench.ask({"text": "the cat sat here the"})


def test_a_tokenizer_that_pads_on_the_left_does_so_here(bench: Bench) -> None:
    """The model takes three tokens; 3 is at (3, 0), 4 at (0, 4); `seen` is written by hand."""
    seen: list[Tensors] = []
    places = np.zeros((8, 8), np.float32)
    places[6], places[3, 0], places[4, 1] = 99, 3, 4

    def run(inputs: Tensors) -> Arrays:
        seen.append(inputs)
        return {"y": places[inputs["input_ids"]]}

    names = ("input_ids", "attention_mask", "token_type_ids")
    tensors = signature(dict.fromkeys(names, (3,)), {"y": (3, 8)}, datatype="INT64")
    tokenizer_at(bench.folder / "tokenizer", padding_side="left", pad_token="here")
    bench.answers(run)
    for pooling, expected in (("mean", [[3, 0], [2, 4 / 3]]), ("first", [[3, 0], [0, 4]])):
        bench.set_up(f'family = "embedding"\nnormalised = false\npooling = "{pooling}"', tensors)
        client: Any = bench.client()
        client.tokenizer = replace(client.tokenizer, type_padding=3)  # as XLNet's
        with Request().active():
            vectors = client.inference_batch([{"text": "the"}, {"text": "cat the the"}])
        assert [vector[:2] for vector in vectors] == [pytest.approx(one) for one in expected]
    assert {name: seen[0][name].tolist() for name in names} == {
        "input_ids": [[6, 6, 3], [4, 3, 3]],
        "attention_mask": [[0, 0, 1], [1, 1, 1]],
        "token_type_ids": [[3, 3, 0], [0, 0, 0]],
    }
    places[2, 4] = 9  # "cat" for the mask
    bench.set_up('family = "fill-mask"', tensors)
    client = bench.client()
    with Request(parameters=client.read_parameters({"top_k": 1})).active():
        answers = client.inference_batch([{"text": "<mask>"}, {"text": "the <mask> sat"}])
    assert [one[0]["token"] for one in answers] == ["cat", "the cat sat"]


def test_texts_that_are_filled_up_on_the_left_share_runs_of_one_length(bench: Bench) -> None:
    """A run of the container's own backend fills up behind its texts."""
    words = signature(WITH_MASK, {"y": (1,)}, datatype="INT64")
    bench.set_up('family = "embedding"\npooling = "none"\nnormalised = false', words)
    tokenizer_at(bench.folder / "tokenizer", padding_side="left", pad_token="here")
    bench.answers(heeds)
    client = bench.client()
    with Request().active():
        vectors = client.inference_batch([{"text": "the"}, {"text": "cat the"}, {"text": "cat"}])
    assert vectors == [[3], [3.5], [4]]
    rows = [call["inputs"]["input_ids"].tolist() for call in bench.server.calls]
    assert rows == [[[3], [4]], [[4, 3]]]
    assert all(call["hints"].padding is None for call in bench.server.calls)


def test_a_model_of_one_length_needs_a_token_that_fills_up(bench: Bench) -> None:
    """Where nothing else tells the model where a text ends."""
    shapes = {"input_ids": (4,)}
    bench.set_up('family = "embedding"', signature(shapes, {"y": (4, 8)}, datatype="INT64"))
    tokenizer_at(bench.folder / "tokenizer", pad_token=None)
    with pytest.raises(ClientDisabled, match=r'no padding token.*"pad_token": "<pad>"'):
        bench.ask({"text": "the cat"})
    shapes["attention_mask"] = (4,)
    bench.set_up('family = "embedding"', signature(shapes, {"y": (4, 8)}, datatype="INT64"))
    bench.answers(lambda inputs: {"y": np.ones((*inputs["input_ids"].shape, 8), np.float32)})
    assert len(bench.ask({"text": "the cat"})) == 8


WITH_MASK = {"input_ids": (-1,), "attention_mask": (-1,)}


@pytest.mark.parametrize(
    ("toml", "tensors", "expected"),
    [
        ('family = "fill-mask"', TEXTS, ["y"]),
        ('family = "embedding"', TEXTS, ["y"]),
        ('family = "embedding"\npadding = false', TEXTS, None),
        ('family = "embedding"\npooling = "none"',
         signature(WITH_MASK, {"y": (8,)}, datatype="INT64"), []),
        ('family = "embedding"\npooling = "first"',  # one vector, whatever the text's length
         signature(WITH_MASK, {"y": (1, 8)}, datatype="INT64"), []),
        ('family = "text-classification"',
         signature(WITH_MASK, {"y": (3,)}, datatype="INT64"), []),
        ('family = "embedding"',  # nothing tells the model where a text ends
         signature({"input_ids": (-1,)}, {"y": (-1, 8)}, datatype="INT64"), None),
        ('family = "embedding"',  # all are of one length
         signature({"input_ids": (4,), "attention_mask": (4,)}, {"y": (4, 8)}, datatype="INT64"),
         None),
        ('family = "embedding"', signature(WITH_MASK, {"y": (-1, 8)}, 0, "INT64"), None),
    ],
)  # fmt: skip
def test_texts_may_be_made_as_long_as_others_where_a_mask_tells_their_end(
    bench: Bench, toml: str, tensors: Signature, expected: list[str] | None
) -> None:
    def run(inputs: Tensors) -> Arrays:
        sizes = [size if size > 0 else 3 for size in tensors.outputs[0].shape]
        return {"y": np.ones(sizes if tensors.max_batch_size == 0 else [1, *sizes[1:]], np.float32)}

    bench.set_up(toml, tensors)
    tokenizer_at(bench.folder / "tokenizer", pad_token="here")
    bench.answers(run)
    bench.ask({"text": "the <mask> sat"})
    padding = bench.server.calls[-1]["hints"].padding
    if expected is None:
        assert padding is None
    else:
        assert padding == Padding({"input_ids": 6, "attention_mask": 0}, expected)


def heeds(inputs: Tensors) -> Arrays:
    """The mean of a text's own ids."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    return {"y": ((ids * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)).astype("f")}


def passes_over(inputs: Tensors) -> Arrays:
    """The mean of all ids that come, those that only fill up included."""
    return {"y": inputs["input_ids"].mean(1, keepdims=True).astype("f")}


def has_one_scale(inputs: Tensors) -> Arrays:
    """The same as `heeds`, in so many steps of a row's largest number, as if quantized."""
    scale = inputs["input_ids"].max(1, keepdims=True) / 43
    return {"y": (np.round(heeds(inputs)["y"] / scale) * scale).astype("f")}


def is_rounded(inputs: Tensors) -> Arrays:
    """The same as `heeds`, but three of TF32's last bits depend on how many ids come."""
    bits = 3 * 2**-10 * (inputs["input_ids"].shape[1] % 2)
    return {"y": (heeds(inputs)["y"] * (1 + bits)).astype("f")}


def has_a_bias(inputs: Tensors) -> Arrays:
    """The largest of its own ids, or what is left of one that is filled up, which is 3.5."""
    own = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], 3.5)
    return {"y": own.max(1, keepdims=True).astype("f")}


@pytest.mark.parametrize(
    ("run", "together"),
    [(heeds, True), (passes_over, False), (has_one_scale, False), (has_a_bias, False)],
)
def test_texts_are_filled_up_only_where_that_is_found_to_change_nothing(
    bench: Bench, run: Callable[[Tensors], Arrays], together: bool
) -> None:
    """The tokens are 3 to 5, and 6 fills up."""
    words = signature(WITH_MASK, {"y": (1,)}, datatype="INT64")
    bench.set_up('family = "embedding"\npooling = "none"\nnormalised = false', words)
    tokenizer_at(bench.folder / "tokenizer", pad_token="here")
    bench.answers(run)
    client, texts = bench.client(), ["the cat sat", "cat", "the", "sat cat"]
    with Request().active():
        alone = [client.inference({"text": text}) for text in texts]
        bench.server.calls.clear()
        assert client.inference_batch([{"text": text} for text in texts]) == alone
    rows = [call["inputs"]["input_ids"].shape for call in bench.server.calls]
    assert rows == ([(4, 3)] if together else [(1, 3), (2, 1), (1, 2)])
    allowed = [call["hints"].padding is not None for call in bench.server.calls]
    assert allowed == [together] * len(rows)
    if together:
        assert [number for (number,) in alone] == [4, 4, 3, 4.5]


def test_what_a_gpu_rounds_is_no_effect_of_the_padding(bench: Bench) -> None:
    words = signature(WITH_MASK, {"y": (1,)}, datatype="INT64")
    bench.set_up('family = "embedding"\npooling = "none"\nnormalised = false', words)
    tokenizer_at(bench.folder / "tokenizer", pad_token="here")
    bench.answers(is_rounded)
    bench.ask({"text": "the cat sat"})
    assert bench.server.calls[-1]["hints"].padding is not None


def test_a_model_that_cannot_be_asked_is_tried_again(bench: Bench) -> None:
    bench.set_up(
        'family = "embedding"\npooling = "none"\nnormalised = false',
        signature(WITH_MASK, {"y": (1,)}, datatype="INT64"),
    )
    tokenizer_at(bench.folder / "tokenizer")
    client = bench.client()
    bench.server.models_run["m"] = ModelUnavailable("it is away")
    with Request().active(), pytest.raises(ModelUnavailable, match="it is away"):
        client.inference({"text": "the cat"})
    bench.answers(heeds)
    with Request().active():
        client.inference({"text": "the cat"})
    assert bench.server.calls[-1]["hints"].padding is not None


def test_a_text_without_tokens_is_refused_and_a_vector_of_zeros_stays_one(bench: Bench) -> None:
    bench.answers(lambda inputs: {"y": np.zeros((*inputs["input_ids"].shape, 8), np.float32)})
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    with pytest.raises(BadPayload, match="no tokens"):
        bench.ask({"text": " "})
    assert bench.ask({"text": "the cat"}) == [0] * 8


def test_texts_are_classified(bench: Bench) -> None:
    bench.set_up(
        'family = "text-classification"',
        signature({"input_ids": (-1,)}, {"y": (2,)}, datatype="INT64"),
        labels="bad\ngood\n",
    )
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(lambda inputs: {"y": np.array([[0, np.log(4)]], np.float32)})
    assert bench.ask({"text": "the cat"}) == [
        {"label": "good", "index": 1, "score": 0.8},
        {"label": "bad", "index": 0, "score": 0.2},
    ]


@pytest.mark.parametrize(
    ("more", "logits", "apply"),
    [
        ("", [-9.5], "sigmoid"),  # of a model that ranks; its softmax would always be 1
        ("", [-2.5, 0.5, 1], "softmax"),
        ("\nmulti_label = true", [-2.5, 0.5, 1], "sigmoid"),
        ("\nsoftmax = false", [-2.5], "none"),
        ("\nsoftmax = false", [-2.5, 0.5, 1], "none"),
    ],
)
def test_scores_are_those_of_transformers_pipeline(
    bench: Bench, more: str, logits: list[float], apply: str
) -> None:
    """Of its own code on the same logits, which it takes as an array of PyTorch."""
    names = [f"class {place}" for place in range(len(logits))]
    tensors = signature({"input_ids": (-1,)}, {"y": (len(logits),)}, datatype="INT64")
    bench.set_up(f'family = "text-classification"{more}', tensors, "\n".join(names) + "\n")
    tokenizer_at(bench.folder / "tokenizer")
    rows = np.array([logits], np.float32)
    bench.answers(lambda inputs: {"y": rows})
    module = import_module("transformers.pipelines.text_classification")
    theirs = object.__new__(module.TextClassificationPipeline)
    theirs.model = Mock()
    theirs.model.config.id2label = dict(enumerate(names))
    array = Mock()
    array.float.return_value.numpy.return_value = rows[0]
    function = module.ClassificationFunction(apply)
    expected = theirs.postprocess({"logits": [array]}, function, top_k=5, _legacy=False)
    found = bench.ask({"text": "the cat"})
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    scores = [one["score"] for one in expected]
    assert [one["score"] for one in found] == pytest.approx(scores, rel=1e-5, abs=5e-7)


def test_pairs_of_texts_are_scored_together(bench: Bench) -> None:
    """The tokens are 3 to 6; the pair's second text is known by its type alone."""
    seen: list[Tensors] = []
    names = ("input_ids", "token_type_ids")

    def run(inputs: Tensors) -> Arrays:
        seen.append(inputs)
        return {"y": (inputs["input_ids"] * inputs["token_type_ids"]).sum(1, keepdims=True) - 9.0}

    tensors = signature(dict.fromkeys(names, (-1,)), {"y": (1,)}, datatype="INT64")
    bench.set_up('family = "text-classification"', tensors, labels="relevant\n")
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    client: Any = bench.client()
    query, text = client.pair_fields
    texts = ["sat here", "cat the"]
    with Request(parameters=client.read_parameters({})).active():
        results = client.inference_batch([{query: "the cat", text: one} for one in texts])
        assert {name: seen[-1][name].tolist() for name in names} == {
            "input_ids": [[3, 4, 5, 6], [3, 4, 4, 3]],
            "token_type_ids": [[0, 0, 1, 1], [0, 0, 1, 1]],
        }
        with pytest.raises(BadPayload, match="`text_pair` is 7"):
            client.inference({query: "the cat", text: 7})
        with pytest.raises(BadPayload, match="`text` with `text_pair` has 6 tokens"):
            client.inference({query: "the cat the", text: "the cat the"})
        with pytest.raises(BadPayload, match="with `text_pair` has 301 characters"):
            client.inference({query: "c", text: "c" * 300})
    expected = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))]
    assert [client.pair_score(one) for one in results] == pytest.approx(expected, abs=1e-8)
    with pytest.raises(BadPayload, match="several classes"):
        client.pair_score([{"index": 0, "score": 0.5}, {"index": 1, "score": 0.5}])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("toml", "shape", "expected"),
    [
        ('family = "embedding"\npooling = "none"\nnormalised = false', (2,), [None, 0]),
        ('family = "embedding"\npooling = "none"', (2,), None),
        ('family = "text-classification"\nsoftmax = false', (2,), None),
        ('family = "text-classification"', (2,), None),
        ('family = "fill-mask"', (-1, 8), None),
    ],
)
def test_numbers_that_are_not_finite_are_null_in_every_family_of_texts(
    bench: Bench, toml: str, shape: tuple[int, ...], expected: Any, bad: float
) -> None:
    inputs = {"input_ids": (-1,), "attention_mask": (-1,)}
    tensors = signature(inputs, {"y": shape}, datatype="INT64")
    bench.set_up(toml, tensors, labels="bad\ngood\n")
    tokenizer_at(bench.folder / "tokenizer")
    numbers = np.zeros((1, *(4 if size < 0 else size for size in shape)), np.float32)
    numbers[..., 0] = bad
    bench.answers(lambda inputs: {"y": numbers})
    text, count = encode(bench.ask({"text": "the <mask> cat sat"}))
    assert not {"NaN", "Infinity"} & set(re.findall("[A-Za-z]+", text))
    assert count == text.count("null") > 0
    assert expected is None or json.loads(text) == expected


def clip_tokenizer_at(folder: Path) -> Any:
    """Save CLIP's tokenizer, of the letters of ASCII and two words, as transformers does."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["ca", "cat</w>", "a</w>"]
    tokens = [*letters, *(f"{one}</w>" for one in letters if one != "a"), *words]
    vocabulary = {one: place for place, one in enumerate(tokens)}
    vocabulary |= {"<|startoftext|>": len(tokens), "<|endoftext|>": len(tokens) + 1}
    made = import_module("transformers").CLIPTokenizer(
        vocab=vocabulary, merges=[("c", "a"), ("ca", "t</w>")], model_max_length=77
    )
    made.save_pretrained(str(folder))
    return made


@pytest.mark.parametrize("names", [["input_ids"], ["input_ids", "attention_mask"]])
@pytest.mark.parametrize("length", [77, -1])
def test_clip_s_texts_are_those_of_its_tokenizer(
    bench: Bench, names: list[str], length: int
) -> None:
    """The graph takes the vector at the first end of text, by whose id a text is also padded."""
    seen: list[Tensors] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(inputs)
        ids = inputs["input_ids"]
        ends = ids.argmax(1)[:, None]
        return {"y": np.hstack([ends, np.take_along_axis(ids, ends - 1, 1)]).astype(np.float32)}

    bench.set_up(
        'family = "embedding"\npooling = "none"\nnormalised = false',
        signature(dict.fromkeys(names, (length,)), {"y": (2,)}, datatype="INT64"),
    )
    reference = clip_tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    for text in ("a Photo of  a CAT", "x", "cat, cats & 2 dogs!"):
        padding = {"padding": "max_length", "max_length": 77} if length > 0 else {}
        expected = reference(text, return_tensors="np", **padding)
        found = bench.ask({"text": text})
        assert {name: array.tolist() for name, array in seen[-1].items()} == {
            name: expected[name].tolist() for name in names
        }
        ids = reference(text)["input_ids"]
        assert found == [len(ids) - 1, ids[-2]]
    with pytest.raises(BadPayload, match="78 tokens"):
        bench.ask({"text": "cat " * 76})
