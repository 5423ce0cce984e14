"""A `dispatch.toml` with mistakes, or of another model: the messages."""

from __future__ import annotations

import numpy as np
import pytest

from clients.errors import ClientDisabled
from clients.triton.server import Signature, TensorSpec
from tests.support.family_bench import (
    BYTES,
    PICTURES,
    TEXTS,
    Bench,
    bench,
    picture,
    plain,
    signature,
    tokenizer_at,
)

__all__ = ["bench"]  # the fixture


# Mistakes that the file shows


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("family = ", ["cannot be read", "Invalid value"]),
        ('family = "clasification"', ["`family`", "did you mean `classification`?"]),
        ('family = "video"', ["`family`", "detection", "fill-mask", "text-classification"]),
        ("family = 3", ["`family`", "3"]),
        ('family = "classification"\nlayuot = "NCHW"', ["`layuot`", "did you mean `layout`?"]),
        ('family = "classification"\nlayout = "HWC"', ["`layout` is 'HWC'", '"NCHW" or "NHWC"']),
        ('family = "classification"\nresize = 0', ["`resize` is 0", "[height, width]"]),
        ('family = "classification"\nmean = [0.5, 1]', ["`mean`", "three numbers", "one for grey"]),
        ('family = "classification"\nmean = [124, 117, 104]', ["`mean`", '"0-255"']),
        ('family = "classification"\ntop_k = 3', ["`top_k`", "below [parameters]"]),
        # The first of several, whatever the order of a set.
        ('family = "detection"\niou = 1\nformat = 1\nconfidence = 1', ["`iou`"]),
        ('family = "detection"\nformat = 1\nconfidence = 1\niou = 1', ["`format`"]),
        ('family = "detection"\nconfidence = 1\niou = 1\nformat = 1', ["`confidence`"]),
        ('family = "classification"\nsize = 8', ["`size`", "did you mean `resize`?"]),
        ('family = "classification"\nstd = [0, 1, 1]', ["`std`", "above 0"]),
        ('family = "classification"\npadding = [0, 0, 256]', ["`padding`", "of 0 to 255"]),
        ('family = "classification"\npadding = [0, 0, 0]', ["`padding`", "nothing beside them"]),
        ('family = "classification"\nsoftmax = "yes"', ["`softmax`", "true or false"]),
        ('family = "classification"\nlabels = "../x"', ["`labels`", "in the model's folder"]),
        ('family = "classification"\nlabels = "no.txt"', ["`labels` is no.txt", "a name in each"]),
        ('family = "classification"\naliases = ["a b"]', ["`aliases`", "letters"]),
        ('family = "detection"', ["`output_layout` is missing", '"retinaface" or "centerface"']),
        ('family = "classification"\n[parameters]\ntop = 1', ["parameters.top", "`top_k`?"]),
        ('family = "classification"\n[parameters]\ntop_k = 0',
         ["parameters.top_k", "write a whole number from 1 to"]),
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


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_files_as_windows_writes_them(bench: Bench, coding: str) -> None:
    bench.set_up('family = "classification"', PICTURES)
    toml = 'family = "classification"\r\n'
    (bench.folder / "dispatch.toml").write_bytes(toml.encode(coding))
    (bench.folder / "labels.txt").write_bytes("a\r\nb\r\nc\r\n".encode(coding))
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


YOLOV5, YOLOV8 = (f'output_layout = "yolov{number}"' for number in (5, 8))


@pytest.mark.parametrize(
    ("toml", "tensors", "words"),
    [
        ("crop = 9", PICTURES, ["`crop` is 9×9", "8×8", "[8, 8]"]),
        ("resize = 7", PICTURES, ["`resize` is 7", "larger"]),
        ('resize = 8\nfit = "centre"', PICTURES, ["`resize`", "beside `fit`"]),
        ('layout = "NHWC"', PICTURES, ["`layout`", 'write "NCHW"']),
        ("", signature({"x": (3, -1, -1)}, {"y": (3,)}), ["`crop` is missing", "any size"]),
        ("", signature({"x": (3, 8, 8)}, {"y": (5,)}), ["`labels`", "3 lines", "5 classes"]),
        ("", signature({"x": (3, 8, 8)}, {"y": (4,)}),
         ["3 lines", "4 classes", 'is often "background", the first']),
        ("", signature({"x": (2, 8, 8)}, {"y": (3,)}), ["`family`", "three channels or one"]),
        ("", signature({"x": (8, 8)}, {"y": (3,)}), ["`family`", "no axis for the channels"]),
        ("", signature({"x": (-1, 8, 8)}, {"y": (-1, 3)}, 0), ["no axis for the channels"]),
        ("", signature({"x": (8, 8, 1)}, {"y": (3,)}), ["`layout`", 'write "NHWC"']),
        ("mean = [0.5, 0.5, 0.5]", signature({"x": (1, 8, 8)}, {"y": (3,)}),
         ["`mean` has 3 numbers", "1 channels", "write 1"]),
        ("std = [0.5]", PICTURES, ["`std` has 1 numbers", "3 channels", "write 3"]),
        ("crop = 9", signature({"x": (3, -1, 8)}, {"y": (3,)}), ["`crop` is 9×9", "write [9, 8]"]),
        ("", signature({"x": (3, 8, 8)}, {"y": (3, 2)}), ["`family`", "no score per class"]),
        ("", signature({"x": (3,)}, {"y": (3,)}), ["`family`", "no pictures", "leave it out"]),
        ("", signature({"x": (3, 8, 8), "z": (1,)}, {"y": (3,)}), ["`input` is missing", '"z"']),
        ('input = "w"', PICTURES, ['`input` is "w"', 'the model has "x"']),
        ("", signature({"x": (3, 8, 8)}, {"y": (3,), "v": (3,)}), ["`output` is missing", '"v"']),
        ('pixels = "0-1"', BYTES, ["`pixels`", "UINT8", "0 to 255", "leave it out"]),
        ('pixels = "0-255"\nstd = [2, 2, 2]', BYTES, ["`std`", "UINT8", "leave it out"]),
        ("", signature({"x": (3, 8, 8)}, {"y": (3,)}, datatype="INT64"), ["no pictures"]),
        ("", signature({"x": (2, 3, 8, 8)}, {"y": (3,)}, batch=0), ["2 pictures"]),
        ("", Signature(4, PICTURES.inputs, (TensorSpec("y", "BYTES", (-1, 3)),)), ["no numbers"]),
        (YOLOV5, signature({"x": (3, 8, 8)}, {"y": (7, 10)}), ["yolov5", "8 numbers", "has 10"]),
        (YOLOV8, signature({"x": (3, 8, 8)}, {"y": (9, 10)}), ["7 numbers", "3 lines", "has 9"]),
        (YOLOV8, signature({"x": (3, 8, 8)}, {"y": (3, 80, 80, 85), "z": (9,)}),
         ["`family`", "no table of boxes"]),
        (YOLOV8, signature({"x": (3, 8, 8)}, {"y": (7,)}), ["`family`", "no table of boxes"]),
        (YOLOV8, signature({"x": (3, -1, -1)}, {"y": (7, 10)}), ["`size` is missing"]),
    ],
)  # fmt: skip
def test_a_model_of_pictures_that_is_not_as_the_file_says(
    bench: Bench, toml: str, tensors: Signature, words: list[str]
) -> None:
    family = "detection" if "output_layout" in toml else "classification"
    bench.set_up(f'family = "{family}"\n{toml}', tensors)
    (bench.folder / "one.txt").write_text("good\n")
    with pytest.raises(ClientDisabled) as caught:
        bench.ask(picture(plain(8, 8, [0, 0, 0])))
    for word in [str(bench.folder / "dispatch.toml"), *words]:
        assert word in caught.value.message


END2END = (300, 6)
POSE = (56, 100)  # 4 + 1 + 17 × 3


@pytest.mark.parametrize(
    ("layout", "labels", "output", "numbers"),
    [
        ("yolov8", 80, END2END, (84, 300)),
        ("yolov5", 80, END2END, (85, 6)),
        ("end2end", 80, (300, 57), (6, 57)),
        ("end2end", 80, (84, 8400), (6, 8400)),
        ("end2end", 80, (25200, 85), (6, 85)),
        ("yolov5", 80, (300, 84), (85, 84)),
        # Keypoints, and coefficients of masks that were cut off.
        ("yolov8", 1, POSE, (5, 56)),
        ('yolov8"\nextra_columns = 51 #"', 2, POSE, (57, 56)),
        ("yolov8", 80, (116, 8400), (84, 116)),
        # Boxes along the other axis.
        ("yolov8", 70, (8400, 84), (74, 84)),
        # Places alone, and DETR's classes, as its own export has them.
        ("yolov5", 3, (100, 4), (8, 4)),
        *((layout, 80, (100, 92), (wanted, came)) for layout, wanted, came in [
            ("yolov5", 85, 92), ("yolov8", 84, 100), ("rtdetr", 84, 92), ("end2end", 6, 92)]),
    ],
)  # fmt: skip
def test_a_head_of_another_layout_is_refused(
    bench: Bench, layout: str, labels: int, output: tuple[int, int], numbers: tuple[int, int]
) -> None:
    tensors = signature({"x": (3, 64, 64)}, {"y": output, "z": (100, 4)})
    lines = "".join(f"c{number}\n" for number in range(labels))
    toml = f'family = "detection"\noutput = "y"\noutput_layout = "{layout}"'
    bench.set_up(toml, tensors, labels=lines)
    with pytest.raises(ClientDisabled) as caught:
        bench.ask(picture(plain(8, 8, [0, 0, 0])))
    wanted, came = numbers
    for word in (f"{wanted} numbers, as `labels` has {labels} lines", f"has {came};", "(OBB)"):
        assert word in caught.value.message


def test_an_angle_is_no_column_to_ignore(bench: Bench) -> None:
    toml = 'family = "detection"\noutput_layout = "yolov8"\nextra_columns = 1'
    bench.set_up(toml, signature({"x": (3, 64, 64)}, {"y": (8, 100)}))
    assert "is 1, as for an angle; write `rotated = true`" in bench.registry().broken["m"]


@pytest.mark.parametrize(
    ("toml", "tensors", "words"),
    [
        ("", signature({"words": (-1,)}, {"y": (-1, 8)}, datatype="INT64"), ["`words`", "input_i"]),
        ("", signature({"input_ids": (-1,)}, {"y": (-1, 8)}), ["FP32", "INT64 or INT32"]),
        ("", signature({"input_ids": (-1,)}, {"y": (8,)}, datatype="INT64"), ['write "none"']),
        ("max_tokens = 9", signature({"input_ids": (4,)}, {"y": (4, 8)}, datatype="INT64"),
         ["`max_tokens` is 9", "write 4"]),
        ('pooling = "none"', TEXTS, ["`pooling`", 'write "mean"']),
        ("", signature({"input_ids": (2, 4)}, {"y": (2, 4, 8)}, 0, "INT64"),
         ["2 texts, never one"]),
        ("", signature({"input_ids": (-1,), "attention_mask": (4,)}, {"y": (-1, 8)}, 4, "INT64"),
         ["`attention_mask` INT64 [-1, 4] is of another shape than `input_ids` INT64 [-1, -1]"]),
        ("", signature({"input_ids": (1, 4), "attention_mask": (4,)}, {"y": (1, 4, 8)}, 0, "INT64"),
         ["is of another shape"]),
        ("", Signature(4, TEXTS.inputs, (TensorSpec("y", "BYTES", (-1, -1, 8)),)),
         ["`y` BYTES", "no numbers", "leave it out"]),
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


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("tokenizer.json", b'{"a": ', "whose tokenizer.json cannot be read (Exp"),
        ("tokenizer.json", b'{"a": 1}', "which cannot be loaded ("),
        ("tokenizer.json", b'{"a": "\xe9"}', "whose tokenizer.json cannot be read ('utf-8'"),
        ("tokenizer_config.json", b'{"a": ', "whose tokenizer_config.json cannot be read (Exp"),
        ("tokenizer_config.json", b'{"pad_token": "<pad>", "model_max_length": "512"}',
         "tokenizer_config.json has a `model_max_length` that is no number: '512'"),
        ("tokenizer_config.json", None, "whose tokenizer_config.json cannot be read ([Errno 21]"),
    ],
)  # fmt: skip
def test_a_damaged_tokenizer_is_told_by_its_file(
    bench: Bench, file: str, data: bytes | None, words: str
) -> None:
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    path = bench.folder / "tokenizer" / file
    path.unlink()
    path.mkdir() if data is None else path.write_bytes(data)
    said = bench.registry().broken["m"]
    assert words in said
    assert "put tokenizer.json" not in said
    assert "save the tokenizer again" in said


def test_labels_that_cannot_be_read_are_told_why(bench: Bench) -> None:
    """Letters of Windows, and a folder in place of the file."""
    bench.set_up('family = "classification"\nlabels = "labels.txt"', PICTURES)
    (bench.folder / "labels.txt").write_bytes("a\nschön\nc".encode("latin-1"))
    said = bench.registry().broken["m"]
    assert "labels.txt, which cannot be read (UnicodeDecodeError)" in said
    assert "put a file of that name beside config.pbtxt, UTF-8" in said
    (bench.folder / "labels.txt").unlink()
    (bench.folder / "labels.txt").mkdir()
    assert "which cannot be read (IsADirectoryError)" in bench.registry().broken["m"]
    (bench.folder / "labels.txt").rmdir()
    assert "put a file of that name beside config.pbtxt" in bench.registry().broken["m"]


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_a_tokenizer_without_a_limit_needs_one(bench: Bench, limit: int | None) -> None:
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer", model_max_length=limit)
    assert "`max_tokens` is missing" in bench.registry().broken["m"]


def test_a_fill_mask_model_needs_a_mask(bench: Bench) -> None:
    bench.set_up('family = "fill-mask"\nmax_tokens = 5', TEXTS)
    tokenizer_at(bench.folder / "tokenizer", mask_token=None)
    said = bench.registry().broken["m"]
    assert "names no mask token; write its `mask_token` into its tokenizer_config.json" in said
    (bench.folder / "tokenizer" / "tokenizer_config.json").unlink()
    assert bench.registry().broken["m"] == said
    (bench.folder / "tokenizer" / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    bench.answers(lambda inputs: {"y": np.eye(8, dtype=np.float32)[inputs["input_ids"]]})
    assert bench.ask({"text": "the <mask> sat"}, top_k=1)[0]["token"] == "the <mask> sat"


def test_the_tokenizer_of_another_model_is_seen(bench: Bench) -> None:
    bench.set_up(
        'family = "fill-mask"', signature({"input_ids": (-1,)}, {"y": (-1, 5)}, 4, "INT64")
    )
    tokenizer_at(bench.folder / "tokenizer")
    with pytest.raises(
        ClientDisabled, match=r"whose token 6 is `here`, but `y` FP32 .* has 5 words.*\"embedding\""
    ):
        bench.ask({"text": "the <mask>"})
