"""Families of pictures in front of models that decode by themselves."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from clients.base import Client
from clients.request import Request
from clients.triton.server import Signature
from tests.support.family_bench import Bench, bench, picture, plain, signature, tried

__all__ = ["bench"]

CLASSIFIES = 'family = "classification"\n'
DETECTS = 'family = "detection"\noutput_layout = "end2end"\n'
RED = picture(plain(50, 100, [200, 0, 0]))
FILE = base64.b64decode(RED["img"])


def takes(datatype: str, *sizes: int, batch: int = 4, output: tuple[int, ...] = (3,)) -> Signature:
    return signature({"x": sizes}, {"y": output}, batch, datatype)


@pytest.mark.parametrize(
    ("tensors", "shape"),
    [
        (takes("BYTES", 1), (1, 1)),
        (takes("BYTES", -1), (1, 1)),
        (takes("BYTES", 1, batch=0), (1,)),
        (takes("BYTES", -1, 1, batch=0), (1, 1)),
        (takes("UINT8", -1), (1, len(FILE))),
        (takes("UINT8", -1, batch=0), (len(FILE),)),
        (takes("UINT8", 1, -1), (1, 1, len(FILE))),
        (takes("UINT8", 1, -1, batch=0, output=(1, 3)), (1, len(FILE))),
    ],
)
def test_the_file_is_sent_as_it_came(
    bench: Bench, tensors: Signature, shape: tuple[int, ...]
) -> None:
    bench.set_up(CLASSIFIES, tensors)
    bench.answers(lambda _: {"y": np.array([[0.25, 0.5, 0]], np.float32)})
    assert bench.ask(RED) == ["0.500000:1:b", "0.250000:0:a", "0.000000:2:c"]
    array = bench.server.calls[-1]["inputs"]["x"]
    assert array.shape == shape
    assert (array.tobytes() if array.dtype == np.uint8 else array.item()) == FILE


@pytest.mark.parametrize(("datatype", "most"), [("BYTES", 4), ("UINT8", 1)])
def test_files_of_unequal_lengths_share_a_run_as_bytes_alone(
    bench: Bench, datatype: str, most: int
) -> None:
    bench.set_up(CLASSIFIES, takes(datatype, -1))
    client: Client = bench.client()
    with Request().active():
        assert client.max_batch_size == most


@pytest.mark.parametrize(
    ("toml", "tensors", "said"),
    [
        (CLASSIFIES, takes("BYTES", 2), "takes no pictures"),
        (CLASSIFIES, takes("UINT8", 5000), "takes no pictures"),
        (CLASSIFIES, takes("UINT8", -1, -1, batch=0), "takes no pictures"),
        (CLASSIFIES + "resize = 256\n", takes("BYTES", 1), "`resize` has no effect: `x` takes"),
        (CLASSIFIES + "mean = [0.5]\n", takes("UINT8", -1), "`mean` has no effect: `x` takes"),
        ('family = "picture-file"\n', takes("UINT8", 3, 8, 8), "`x` takes pixels"),
    ],
)
def test_what_does_not_suit_is_said(bench: Bench, toml: str, tensors: Signature, said: str) -> None:
    bench.set_up(toml, tensors)
    assert said in " ".join([*tried(bench, "m").reasons(), *bench.registry().broken.values()])


@pytest.mark.parametrize(
    ("keys", "box"),
    [
        ("", [50, 0, 100, 50]),  # pixels of the picture itself
        ("normalised = true\n", [0.5, 0, 1, 1]),
        # 100×50 in 64×64: scaled by 0.64 to 64×32, with 16 pixels above.
        ("size = 64\n", [32, 16, 64, 48]),
        ("size = 64\nnormalised = true\n", [0.5, 0.25, 1, 0.75]),
    ],
)
def test_boxes_are_where_the_file_says(bench: Bench, keys: str, box: list[float]) -> None:
    bench.set_up(DETECTS + keys, takes("BYTES", 1, output=(-1, 6)))
    bench.answers(lambda _: {"y": np.array([[[*box, 0.75, 2]]], np.float32)})
    assert bench.ask(RED) == [[2, 0.75, 50, 100, 0, 50, 100, 50]]


def test_all_outputs_are_answered_for_each_picture(bench: Bench) -> None:
    bench.set_up('family = "picture-file"\n', takes("BYTES", 1))
    bench.answers(lambda given: {"y": np.arange(3.0)[None] + np.arange(len(given["x"]))[:, None]})
    client = bench.client()
    with Request().active():
        found: Any = client.inference_batch([RED, RED])
    assert [one["outputs"][0]["data"] for one in found] == [[0, 1, 2], [1, 2, 3]]
    assert {tuple(one["outputs"][0]["shape"]) for one in found} == {(1, 3)}
