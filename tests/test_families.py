"""The families: what a `dispatch.toml` may say, what is wrong with it, and what is answered."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from clients import family
from clients.base import Client, Environment
from clients.errors import BadPayload, ClientDisabled
from clients.families.fill_mask import joined
from clients.model_server import Signature, Tensors, TensorSpec
from clients.registry import Registry, load_clients
from clients.request import Request
from clients.scores import best
from clients.triton import renamed_config
from dispatcher.app import create_app
from dispatcher.canary import Canary
from dispatcher.settings import read_settings
from tests.fake_triton import Arrays, FakeTriton
from tests.test_canary import triton
from tests.test_http import quiet


def signature(
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    batch: int = 4,
    datatype: str = "FP32",
) -> Signature:
    """What Triton tells of a model: with a batch it stands first."""
    first = (-1,) if batch else ()
    return Signature(
        batch,
        tuple(TensorSpec(name, datatype, (*first, *sizes)) for name, sizes in inputs.items()),
        tuple(TensorSpec(name, "FP32", (*first, *sizes)) for name, sizes in outputs.items()),
    )


PICTURES = signature({"x": (3, 8, 8)}, {"y": (3,)})
BOXES = signature({"x": (3, 64, 64)}, {"y": (6, 10)})
TEXTS = signature({"input_ids": (-1,), "attention_mask": (-1,)}, {"y": (-1, 8)}, datatype="INT64")


@dataclass
class Bench:
    """A repository with one model, "m", and what is known of it."""

    repository: Path
    server: FakeTriton

    def set_up(self, toml: str, tensors: Signature, labels: str = "a\nb\nc\n") -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "dispatch.toml").write_text(toml)
        (self.folder / "labels.txt").write_text(labels)
        self.server.signatures["m"] = tensors

    @property
    def folder(self) -> Path:
        return self.repository / "m"

    def registry(self) -> Registry:
        return load_clients(Environment(self.server, self.repository))

    def client(self) -> Client:
        registry = self.registry()
        assert registry.broken == {}
        return registry.clients["m"]

    def ask(self, payload: dict[str, Any], **parameters: Any) -> Any:
        client = self.client()
        with Request(parameters=client.read_parameters(parameters)).active():
            return client.inference(payload)

    def answers(self, run: Callable[[Tensors], Arrays]) -> None:
        self.server.models_run["m"] = run


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, FakeTriton())


def picture(pixels: np.ndarray) -> dict[str, str]:
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return {"img": base64.b64encode(out.getvalue()).decode()}


def plain(height: int, width: int, colour: list[int]) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def tokenizer_at(folder: Path, **config: Any) -> None:
    """A tokenizer of whole words, with a mask that is not BERT's."""
    words = ["<pad>", "<unk>", "<mask>", "the", "cat", "sat", "here"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<unk>", "<mask>"])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "model_max_length": 5,
    }
    kept = {name: value for name, value in {**settings, **config}.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))


# Mistakes that the file shows


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("family = ", ["cannot be read", "Invalid value"]),
        ('family = "clasification"', ["`family`", "did you mean `classification`?"]),
        ('family = "sound"', ["`family`", "detection", "fill-mask", "text-classification"]),
        ("family = 3", ["`family`", "3"]),
        ('family = "classification"\nlayuot = "NCHW"', ["`layuot`", "did you mean `layout`?"]),
        ('family = "classification"\nlayout = "HWC"', ["`layout` is 'HWC'", '"NCHW" or "NHWC"']),
        ('family = "classification"\nresize = 0', ["`resize` is 0", "[height, width]"]),
        ('family = "classification"\nmean = [0.5]', ["`mean`", "three numbers"]),
        ('family = "classification"\nmean = [124, 117, 104]', ["`mean`", '"0-255"']),
        ('family = "classification"\ntop_k = 3', ["`top_k`", "below [parameters]"]),
        ('family = "classification"\nsize = 8', ["`size`", "did you mean `resize`?"]),
        ('family = "classification"\nstd = [0, 1, 1]', ["`std`", "above 0"]),
        ('family = "classification"\nsoftmax = "yes"', ["`softmax`", "true or false"]),
        ('family = "classification"\nlabels = "../x"', ["`labels`", "in the model's folder"]),
        ('family = "classification"\nlabels = "no.txt"', ["`labels` is no.txt", "a name in each"]),
        ('family = "classification"\naliases = ["a b"]', ["`aliases`", "letters"]),
        ('family = "detection"', ["`output_layout` is missing", '"yolov5" or "yolov8"']),
        ('family = "classification"\n[parameters]\ntop = 1', ["parameters.top", "`top_k`?"]),
        ('family = "classification"\n[parameters]\ntop_k = 0', ["parameters.top_k", "from 1 to"]),
        ("[parameters]\ntop_k = 1", ["parameters.top_k", "leave them out"]),
        ('family = "embedding"', ["`tokenizer`", "tokenizer.json"]),
        ('family = "classification"\naliases = ["n"]', ["alias 'n'", "another model"]),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_disables_that_model_with_a_sentence(
    bench: Bench, toml: str, words: list[str]
) -> None:
    (bench.repository / "n").mkdir()
    bench.set_up(toml, PICTURES)
    registry = bench.registry()
    assert registry.clients == {}
    assert set(registry.broken) == {"m"}
    for word in [str(bench.folder / "dispatch.toml"), *words]:
        assert word in registry.broken["m"]


def test_files_as_windows_writes_them(bench: Bench) -> None:
    bench.set_up('family = "classification"', PICTURES)
    (bench.folder / "dispatch.toml").write_bytes(b'\xef\xbb\xbffamily = "classification"\r\n')
    (bench.folder / "labels.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\nc\r\n")
    bench.answers(lambda inputs: {"y": np.array([[3, 2, 1]], np.float32)})
    answer = bench.ask(picture(plain(4, 4, [0, 0, 0])))
    assert answer == ["3.000000:0:a", "2.000000:1:b", "1.000000:2:c"]


def test_the_other_models_are_served(bench: Bench) -> None:
    bench.set_up('family = "classification"', PICTURES)
    (bench.repository / "n").mkdir()
    (bench.repository / "n" / "dispatch.toml").write_text("family = 'x'")
    registry = bench.registry()
    assert set(registry.clients) == {"m"}
    assert set(registry.broken) == {"n"}


# Mistakes that the model's own tensors show


@pytest.mark.parametrize(
    ("toml", "tensors", "words"),
    [
        ("crop = 9", PICTURES, ["`crop` is 9×9", "8×8", "[8, 8]"]),
        ("resize = 7", PICTURES, ["`resize` is 7", "larger"]),
        ('layout = "NHWC"', PICTURES, ["`layout`", 'write "NCHW"']),
        ("", signature({"x": (3, -1, -1)}, {"y": (3,)}), ["`crop` is missing", "any size"]),
        ("", signature({"x": (3, 8, 8)}, {"y": (4,)}), ["`labels`", "3 lines", "4 classes"]),
        ("", signature({"x": (1, 8, 8)}, {"y": (3,)}), ["`family`", "three channels"]),
        ("", signature({"x": (3,)}, {"y": (3,)}), ["`family`", "no pictures", "leave it out"]),
        ("", signature({"x": (3, 8, 8), "z": (1,)}, {"y": (3,)}), ["`input` is missing", '"z"']),
        ('input = "w"', PICTURES, ['`input` is "w"', 'the model has "x"']),
        ("", signature({"x": (3, 8, 8)}, {"y": (3,), "v": (3,)}), ["`output` is missing", '"v"']),
        ("", signature({"x": (3, 8, 8)}, {"y": (3,)}, datatype="UINT8"), ["UINT8", '"0-255"']),
        ('pixels = "0-255"\nstd = [2, 2, 2]',
         signature({"x": (3, 8, 8)}, {"y": (3,)}, datatype="UINT8"), ["UINT8", "`std`"]),
        ("", signature({"x": (3, 8, 8)}, {"y": (3,)}, datatype="INT64"), ["no pictures"]),
        ("", signature({"x": (2, 3, 8, 8)}, {"y": (3,)}, batch=0), ["2 pictures"]),
    ],
)  # fmt: skip
def test_a_classifier_that_is_not_as_the_file_says(
    bench: Bench, toml: str, tensors: Signature, words: list[str]
) -> None:
    bench.set_up(f'family = "classification"\n{toml}', tensors)
    with pytest.raises(ClientDisabled) as caught:
        bench.ask(picture(plain(8, 8, [0, 0, 0])))
    for word in [str(bench.folder / "dispatch.toml"), *words]:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("layout", "tensors", "words"),
    [
        ("yolov5", signature({"x": (3, 8, 8)}, {"y": (7, 10)}), ["output_layout", '"yolov8"']),
        ("yolov8", signature({"x": (3, 8, 8)}, {"y": (10, 8)}), ["output_layout", '"yolov5"']),
        ("yolov8", signature({"x": (3, 8, 8)}, {"y": (9, 10)}), ["`labels`", "5 classes"]),
        ("yolov8", signature({"x": (3, 8, 8)}, {"y": (7,)}), ["`family`", "no table of boxes"]),
        ("yolov8", signature({"x": (3, -1, -1)}, {"y": (7, 10)}), ["`size` is missing"]),
    ],
)  # fmt: skip
def test_a_detector_that_is_not_as_the_file_says(
    bench: Bench, layout: str, tensors: Signature, words: list[str]
) -> None:
    bench.set_up(f'family = "detection"\noutput_layout = "{layout}"', tensors)
    with pytest.raises(ClientDisabled) as caught:
        bench.ask(picture(plain(8, 8, [0, 0, 0])))
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("toml", "tensors", "words"),
    [
        ("", signature({"words": (-1,)}, {"y": (-1, 8)}, datatype="INT64"), ["`words`", "input_i"]),
        ("", signature({"input_ids": (-1,)}, {"y": (-1, 8)}), ["FP32", "INT64 or INT32"]),
        ("", signature({"input_ids": (-1,)}, {"y": (8,)}, datatype="INT64"), ['write "none"']),
        ("max_tokens = 9", signature({"input_ids": (4,)}, {"y": (4, 8)}, datatype="INT64"),
         ["`max_tokens` is 9", "write 4"]),
        ('pooling = "none"', TEXTS, ["`pooling`", 'write "mean"']),
    ],
)  # fmt: skip
def test_a_language_model_that_is_not_as_the_file_says(
    bench: Bench, toml: str, tensors: Signature, words: list[str]
) -> None:
    bench.set_up(f'family = "embedding"\n{toml}', tensors)
    tokenizer_at(bench.folder / "tokenizer")
    with pytest.raises(ClientDisabled) as caught:
        bench.ask({"text": "the cat"})
    for word in words:
        assert word in caught.value.message


def test_a_tokenizer_without_a_limit_needs_one(bench: Bench) -> None:
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer", model_max_length=None)
    assert "`max_tokens` is missing" in bench.registry().broken["m"]


def test_a_fill_mask_model_needs_a_mask(bench: Bench) -> None:
    bench.set_up('family = "fill-mask"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer", mask_token=None)
    assert "without a mask token" in bench.registry().broken["m"]


def test_the_tokenizer_of_another_model_is_seen(bench: Bench) -> None:
    bench.set_up(
        'family = "fill-mask"', signature({"input_ids": (-1,)}, {"y": (-1, 5)}, 4, "INT64")
    )
    tokenizer_at(bench.folder / "tokenizer")
    with pytest.raises(ClientDisabled, match="7 words"):
        bench.ask({"text": "the <mask>"})


# What /ping and the log say


def tried(bench: Bench, *required: str) -> Canary:
    """A canary that went round once, while Triton had the model ready."""
    bench.answers(dict)
    canary = Canary(required, bench.registry(), bench.server, 8, 8, triton)
    canary.list_models()
    for model, trial in list(canary.due()):
        canary.look(model, trial)
    return canary


def test_a_model_that_does_not_fit_is_logged_and_known_to_ping(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.set_up('family = "classification"\ncrop = 9', PICTURES)
    assert tried(bench).reasons() == []
    assert caplog.text.count("`crop` is 9×9") == 1
    assert "`crop` is 9×9" in tried(bench, "m").reasons()[0]


def test_a_mistake_in_the_file_is_known_to_ping(bench: Bench) -> None:
    bench.set_up('family = "clasification"', PICTURES)
    assert tried(bench).reasons() == []
    assert "did you mean" in tried(bench, "m").reasons()[0]


def test_a_mended_model_is_taken_as_it_is_now(bench: Bench) -> None:
    """The check is made again when Triton tells other tensors."""
    bench.set_up('family = "classification"', signature({"x": (3, 8, 8)}, {"y": (4,)}))
    bench.answers(lambda inputs: {"y": np.zeros((len(inputs["x"]), 3), np.float32)})
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        with pytest.raises(ClientDisabled):
            client.inference(picture(plain(8, 8, [0, 0, 0])))
        bench.server.signatures["m"] = PICTURES
        assert len(client.inference(picture(plain(8, 8, [0, 0, 0])))) == 3


# What is answered


def sent(bench: Bench, toml: str, tensors: Signature, pixels: np.ndarray) -> np.ndarray:
    """What a classifier is given for a picture."""
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["x"]))
        return {"y": np.zeros((1, 3), np.float32)}

    bench.set_up(f'family = "classification"\n{toml}', tensors)
    bench.answers(run)
    bench.ask(picture(pixels))
    return seen[0]


@pytest.mark.parametrize(
    ("toml", "tensors", "expected"),
    [
        ("", PICTURES, [1.0, 0.4, 0.0]),
        ('channels = "BGR"', PICTURES, [0.0, 0.4, 1.0]),
        ('pixels = "0-255"', PICTURES, [255, 102, 0]),
        ("mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.25, 0.5]", PICTURES, [1.0, -0.4, -1.0]),
        ('pixels = "0-255"\nchannels = "BGR"\nmean = [104, 117, 123]', PICTURES, [-104, -15, 132]),
    ],
)
def test_channels(bench: Bench, toml: str, tensors: Signature, expected: list[float]) -> None:
    given = sent(bench, toml, tensors, plain(4, 4, [255, 102, 0]))
    assert given.shape == (1, 3, 8, 8)
    assert given.dtype == np.float32
    assert given[0, :, 3, 5].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("tensors", "toml", "shape", "dtype"),
    [
        (signature({"x": (8, 8, 3)}, {"y": (3,)}), 'layout = "NHWC"', (1, 8, 8, 3), np.float32),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 0), "", (3, 8, 8), np.float32),
        (signature({"x": (1, 3, 8, 8)}, {"y": (1, 3)}, 0), "", (1, 3, 8, 8), np.float32),
        (signature({"x": (-1, 3, -1, -1)}, {"y": (-1, 3)}, 0), "crop = [4, 6]", (1, 3, 4, 6),
         np.float32),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 4, "UINT8"), 'pixels = "0-255"', (1, 3, 8, 8),
         np.uint8),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 4, "FP16"), "", (1, 3, 8, 8), np.float16),
    ],
)  # fmt: skip
def test_the_tensor_is_the_model_s(
    bench: Bench, tensors: Signature, toml: str, shape: tuple[int, ...], dtype: type
) -> None:
    given = sent(bench, toml, tensors, plain(4, 4, [255, 102, 0]))
    assert given.shape == shape
    assert given.dtype == dtype


def test_resize_and_crop_take_the_middle(bench: Bench) -> None:
    """32×16 becomes 16×8, whose middle 8 columns are columns 8 to 24 of the picture."""
    pixels = plain(16, 32, [0, 0, 0])
    pixels[:, 8:24] = 255
    given = sent(bench, 'resize = 8\ninterpolation = "nearest"', PICTURES, pixels)
    assert (given == 1).all()
    pixels[:, 8:10] = 0
    assert (
        sent(bench, 'resize = 8\ninterpolation = "nearest"', PICTURES, pixels)[..., 0] == 0
    ).all()
    squashed = sent(bench, 'interpolation = "nearest"', PICTURES, pixels)
    assert squashed[0, 0, 0].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


def test_scores_are_logits_or_probabilities(bench: Bench) -> None:
    bench.answers(lambda inputs: {"y": np.log(np.array([[1, 6, 3]], np.float32))})
    bench.set_up('family = "classification"\n[parameters]\ntop_k = 2', PICTURES)
    img = picture(plain(4, 4, [0, 0, 0]))
    assert bench.ask(img) == [f"{math.log(6):f}:1:b", f"{math.log(3):f}:2:c"]
    bench.set_up('family = "classification"\nsoftmax = true', PICTURES)
    assert bench.ask(img) == ["0.600000:1:b", "0.300000:2:c", "0.100000:0:a"]
    assert bench.ask(img, top_k=1, format="objects") == [
        {"label": "b", "index": 1, "score": pytest.approx(0.6)}
    ]


def test_yolov8_rows_have_no_objectness(bench: Bench) -> None:
    """A 128×64 picture lies in a 64×64 square at half its size, 16 pixels below the top."""
    table = np.zeros((1, 6, 10), np.float32)
    table[0, :, 3] = [32, 32, 16, 8, 0.9, 0.1]  # x 24…40, y 28…36 in the square
    table[0, :, 4] = [33, 32, 16, 8, 0.8, 0.1]  # the same object, less sure
    table[0, :, 5] = [33, 32, 16, 8, 0.1, 0.7]  # another class
    table[0, :, 6] = [10, 32, 4, 4, 0.4, 0.4]  # not sure enough
    bench.set_up('family = "detection"\noutput_layout = "yolov8"', BOXES, labels="cat\ndog\n")
    bench.answers(lambda inputs: {"y": table})
    found = bench.ask(picture(plain(64, 128, [0, 0, 0])), format="objects")
    assert found == [
        {"label": "cat", "index": 0, "score": 0.9,
         "box": {"x1": 48, "y1": 24, "x2": 80, "y2": 40}},
        {"label": "dog", "index": 1, "score": 0.7,
         "box": {"x1": 50, "y1": 24, "x2": 82, "y2": 40}},
    ]  # fmt: skip
    bench.set_up(
        'family = "detection"\noutput_layout = "yolov8"\n[parameters]\nconfidence = 0.85',
        BOXES,
        labels="cat\ndog\n",
    )
    assert bench.ask(picture(plain(64, 128, [0, 0, 0]))) == [[0, 0.9, 48, 80, 24, 40, 128, 64]]


def test_a_detector_of_whole_numbers_is_sent_them(bench: Bench) -> None:
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["x"]))
        return {"y": np.zeros((1, 6, 10), np.float32)}

    tensors = signature({"x": (3, 64, 64)}, {"y": (6, 10)}, datatype="UINT8")
    bench.set_up('family = "detection"\noutput_layout = "yolov8"', tensors, labels="cat\ndog\n")
    bench.answers(run)
    assert bench.ask(picture(plain(64, 32, [255, 102, 3]))) == []
    (sent_pixels,) = seen
    assert sent_pixels.dtype == np.uint8
    assert sent_pixels[0, :, 0, 0].tolist() == [114, 114, 114]  # the grey beside the picture
    assert sent_pixels[0, :, 32, 32].tolist() == [255, 102, 3]


def test_scores_that_are_unsigned_are_sorted_too() -> None:
    assert best(np.array([0, 200, 7, 255], np.uint8), 3) == [(3, 255), (1, 200), (2, 7)]


def test_of_equal_scores_the_first_are_best() -> None:
    scores = np.array([1, 3, 0, 3, 2, 3, 2], np.float32)
    assert best(scores, 2) == [(1, 3), (3, 3)]
    assert best(scores, 4) == [(1, 3), (3, 3), (5, 3), (4, 2)]
    assert best(scores, 99) == [(1, 3), (3, 3), (5, 3), (4, 2), (6, 2), (0, 1), (2, 0)]
    assert [place for place, _ in best(scores * np.nan, 2)] == [0, 1]


def test_a_label_may_hold_what_python_takes_for_the_end_of_a_line(bench: Bench) -> None:
    bench.set_up('family = "classification"', PICTURES, labels="a\u2028a\r\nb\x0cb\nc\n\n")
    bench.answers(lambda inputs: {"y": np.array([[3, 2, 1]], np.float32)})
    found = bench.ask(picture(plain(4, 4, [0, 0, 0])), format="objects")
    assert [one["label"] for one in found] == ["a\u2028a", "b\x0cb", "c"]


@pytest.mark.parametrize(
    ("before", "word", "after", "text"),
    [
        ("The ", "cat", " sat", "The cat sat"),
        ("The ", " cat", " sat", "The cat sat"),  # byte-level: RoBERTa's
        ("The", " cat", " sat", "The cat sat"),
        ("", " Cats", " sit", "Cats sit"),
        ("Walk", "##ing", " cats", "Walking cats"),  # WordPiece: BERT's
    ],
)
def test_a_word_is_put_into_the_blank_without_the_tokenizer_s_marks(
    before: str, word: str, after: str, text: str
) -> None:
    assert joined(before, word, after) == text


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
    assert {name: array.tolist() for name, array in seen[0].items()} == {
        "input_ids": [[3, 2, 5]],
        "attention_mask": [[1, 1, 1]],
    }
    assert bench.server.calls[-1]["rows"] == {"y": [1]}
    bench.answers(lambda inputs: {"y": run(inputs)["y"][:, 1]})  # by a backend that picks the rows
    assert bench.ask({"text": "the <mask> sat"})[0] == {"token": "the cat sat", "score": 0.75}
    assert bench.client().example == {"text": "The world has <mask> people."}
    with pytest.raises(BadPayload, match="`text` has no <mask>"):
        bench.ask({"text": "the [MASK]"})
    with pytest.raises(BadPayload, match="6 tokens"):
        bench.ask({"text": "the cat sat here the <mask>"})


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


def test_an_example_of_one_s_own_is_tried_and_shown(bench: Bench) -> None:
    bench.set_up('family = "embedding"\nexample = { text = "the cat" }', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    assert bench.client().example == {"text": "the cat"}


def test_every_key_is_documented() -> None:
    """Each family has a declaration with a meaning; the file of a family is all there is to it."""
    for name in family.names():
        for key in fields(family.family(name, Path()).keys_type):
            assert key.metadata["meaning"]
            assert key.metadata["kind"].expected


# Names


def test_an_alias_is_another_name_for_the_same_client(bench: Bench) -> None:
    bench.set_up('family = "classification"\naliases = ["n"]', PICTURES)
    registry = bench.registry()
    assert registry.clients[registry.name("n")] is registry.clients["m"]
    assert registry.name("nobody") == "nobody"


def test_an_alias_cannot_be_had_twice(bench: Bench) -> None:
    bench.set_up('aliases = ["other"]', PICTURES)
    (bench.repository / "z").mkdir()
    (bench.repository / "z" / "dispatch.toml").write_text('aliases = ["other"]')
    registry = bench.registry()
    assert set(registry.clients) == {"m"}
    assert "'other' belongs to" in registry.broken["z"]


def application(bench: Bench, registry: Registry) -> FlaskClient:
    settings, environment = read_settings({}), Environment(bench.server, bench.repository)
    return create_app(settings, registry, environment, renamed_config, quiet()).test_client()


def test_an_alias_is_asked_listed_and_offered(bench: Bench) -> None:
    bench.set_up('family = "classification"\naliases = ["n"]', PICTURES)
    bench.answers(lambda inputs: {"y": np.array([[3, 2, 1]], np.float32)})
    client = application(bench, bench.registry())
    payload = picture(plain(4, 4, [0, 0, 0]))
    answer = client.post("/invocations", json={"modelname": "n", "payload": payload})
    assert answer.json == {
        "modelname": "n",
        "result": ["3.000000:0:a", "2.000000:1:b", "1.000000:2:c"],
    }
    both = client.post(
        "/invocations",
        json={"modelname": ["m", "n"], "payload": payload, "parameters": {"top_k": 1}},
    )
    assert both.json == {
        "results": {name: {"status": 200, "result": ["3.000000:0:a"]} for name in ("m", "n")}
    }
    assert (client.get("/models/n").json or {})["modelName"] == "m"
    assert (client.get("/models/m").json or {})["aliases"] == ["n"]
    assert "Also asked as <code>n</code>" in client.get("/docs").text
    answer = client.post("/invocations", json={"modelname": "nn", "payload": payload})
    assert "served are: n, m" in answer.json["error"]["hint"]


def test_no_model_can_be_loaded_under_the_alias_of_another(bench: Bench) -> None:
    bench.set_up('family = "classification"\naliases = ["n"]', PICTURES)
    client = application(bench, bench.registry())
    answer = client.post("/models", json={"model_name": "n", "url": str(bench.folder)})
    assert (answer.status_code, (answer.json or {})["error"]["code"]) == (409, "already_loaded")
    assert "'n' is an alias of the model 'm'" in answer.json["error"]["message"]
    assert not (bench.repository / "n").exists()


def test_plain_tensors_may_have_other_names(bench: Bench) -> None:
    bench.set_up('aliases = ["n"]', PICTURES)
    bench.answers(lambda inputs: {"y": np.ones((1, 3), np.float32)})
    registry = bench.registry()
    client = application(bench, registry)
    zeros = {"name": "x", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0] * 192}
    answer = client.post("/infer/n", json={"inputs": [zeros]})
    assert (answer.json or {})["outputs"][0]["data"] == [1, 1, 1]
    assert (client.get("/models/n").json or {})["example"] is None
    assert "<code>m</code>" in client.get("/docs").text
    assert tried(bench, "m").reasons() == []


def test_a_model_that_is_disabled_says_why_to_those_who_ask(bench: Bench) -> None:
    bench.set_up('family = "clasification"', PICTURES)
    bench.answers(dict)
    answer = application(bench, bench.registry()).post("/infer/m", json={"payload": {}})
    assert (answer.status_code, (answer.json or {})["error"]["code"]) == (503, "client_disabled")
    assert "did you mean `classification`?" in answer.json["error"]["message"]
