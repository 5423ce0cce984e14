"""Payloads that work: one or several, of a class, an object, or a `dispatch.toml`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from clients.base import Client, Environment
from clients.families.base.family import client_class
from clients.families.detection import Detection
from clients.images.pictures import EXAMPLE
from clients.plugins.validation import declaration_fault
from clients.request import Request
from clients.tensors.client import TensorClient, examples_of, name_examples
from clients.testing import OnnxModels
from tests.conftest import PROJECT
from tests.support.fake_triton import FakeTriton
from tests.support.family_bench import PICTURES, TEXTS, Bench, bench, plain, tokenizer_at
from tests.support.family_bench import picture as png

__all__ = ["bench"]  # the fixture

ONE, TWO = {"x": 1}, {"x": 2}


class Named(Client):
    modelname = "m"

    def inference(self, payload: Any) -> Any:
        return 1


def made(base: type[Client] = Named, **attributes: Any) -> type[Client]:
    return type("Made", (base,), attributes)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (made(example=ONE), (ONE,)),
        (made(examples=[ONE, TWO]), (ONE, TWO)),
        (made(made(example=ONE), examples=(TWO,)), (TWO,)),
        (made(made(examples=[ONE, TWO])), (ONE, TWO)),
        (made(made(example=ONE), examples=[]), (ONE,)),
        (made(TensorClient, example={}), ()),
    ],
)
def test_several_examples_come_before_one(
    kind: type[Client], expected: tuple[dict[str, int], ...]
) -> None:
    client = kind(Environment(FakeTriton(), Path()))
    assert examples_of(kind) == examples_of(client) == expected
    client.examples = [TWO, ONE]
    assert name_examples(client) == [("examples[0]", TWO), ("examples[1]", ONE)]


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "it has no example; write `example = {…}`"),
        ({"examples": ()}, "it has no example; write `example = {…}`"),
        ({"examples": ONE}, "its examples are {'x': 1}; write `examples = [{…}, …]`"),
        ({"examples": [ONE, 2]}, "one of its examples is 2; write"),
        ({"examples": [ONE, {"x": b"1"}]}, "one of its examples is not JSON"),
        ({"examples": [ONE], "example": TWO}, "it has both `example` and `examples`"),
        ({"examples": [ONE, TWO]}, ""),
    ],
)
def test_a_mistake_in_examples_is_named(attributes: dict[str, Any], words: str) -> None:
    fault = declaration_fault(made(**attributes))
    assert words in fault
    assert bool(words) == bool(fault)


def test_examples_of_a_file_are_payloads_or_pictures_in_the_folder(bench: Bench) -> None:
    img = png(plain(4, 4, [1, 2, 3]))
    bench.set_up('family = "classification"\nexamples = ["a.png", { img = "eA==" }]', PICTURES)
    (bench.folder / "a.png").write_bytes(base64.b64decode(img["img"]))
    assert examples_of(bench.client()) == (img, {"img": "eA=="})


def test_examples_of_a_file_are_texts_where_the_model_takes_those(bench: Bench) -> None:
    bench.set_up('family = "fill-mask"\nexamples = ["the <mask>", "<mask> sat here"]', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    assert examples_of(bench.client()) == ({"text": "the <mask>"}, {"text": "<mask> sat here"})


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("examples = []", "`examples` is []; write a list of payloads"),
        ('examples = "a.png"', "`examples` is 'a.png'; write a list of payloads"),
        ("examples = [3]", "write a list of payloads"),
        ('examples = ["b.png"]', "`examples` has 'b.png', which cannot be read; put a file of"),
        ('examples = ["../m/a.png"]', "`examples` has '../m/a.png', which cannot be read"),
        ('examples = ["large.png"]', "a file of 100,001 bytes; take one of at most 100,000"),
        ('examples = ["a.png"]\nexample = { img = "eA==" }', "is there beside `example`"),
        ('examples = ["a.png"]', "has 'a.png'; write tables, as in `example`"),
    ],
)
def test_a_mistake_in_the_examples_of_a_file_is_named(bench: Bench, toml: str, words: str) -> None:
    family = "tensors" if "tables" in words else "classification"
    bench.set_up(f'family = "{family}"\n{toml}', PICTURES)
    (bench.folder / "a.png").write_bytes(base64.b64decode(png(plain(4, 4, [1, 2, 3]))["img"]))
    (bench.folder / "large.png").write_bytes(bytes(100_001))
    reason = bench.registry().broken["m"]
    assert words in reason
    assert reason.startswith(f"{bench.folder / 'dispatch.toml'}: `examples` ")


def test_the_models_find_something_in_the_family_s_picture(models: None) -> None:
    """It shows a cup of espresso, which fills it: so says the README of tests/pictures."""
    repository = PROJECT / "model_repository"
    environment = Environment(OnnxModels(repository), repository)
    found = {}
    for name in ("yolov5", "resnet"):
        client = client_class(repository / name / "dispatch.toml")(environment)
        with Request(parameters=client.read_parameters({})).active():
            found[name] = client.inference(dict(examples_of(client)[0]))
    ((kind, score, x1, x2, y1, y2, width, height),) = found["yolov5"]
    labels = (repository / "yolov5" / "labels.txt").read_text().splitlines()
    assert labels[kind] == "cup"
    assert score > 0.5
    assert (x2 - x1) * (y2 - y1) > 0.3 * width * height
    assert found["resnet"][0].endswith(":espresso")
    assert examples_of(Detection) == ({"img": EXAMPLE},)
