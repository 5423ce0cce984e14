"""A model with a `dispatch.toml`, on a fake Triton."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from clients.base import Client, Environment
from clients.plugins.registry import Registry, load_clients
from clients.request import Request
from clients.triton.server import Signature, Tensors, TensorSpec
from dispatcher.status.prober import Prober
from dispatcher.status.status import Readiness
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.probing import probed, triton


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
        shares_runs=batch > 1,
    )


PICTURES = signature({"x": (3, 8, 8)}, {"y": (3,)})
BYTES = signature({"x": (3, 8, 8)}, {"y": (3,)}, datatype="UINT8")
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
def bench(tmp_path: Path, in_this_process: None) -> Bench:
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


def tried(bench: Bench, *required: str) -> Readiness:
    """Return what is known after one round of the prober, while Triton had the model ready."""
    bench.answers(dict)
    return probed(Prober(required, bench.registry(), bench.server, 8, 8, triton))
