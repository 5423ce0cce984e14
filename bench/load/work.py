"""The work without a server: a payload to tensors, and tensors to an answer.

The in-process limit and every rival do it with these functions, which are the project's own, so
that all do the same: base64, decoding, the same filters, the same arithmetic on the answer.
"""

from __future__ import annotations

import base64
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from backends.onnx_files.rows import NUMBERS
from bench.servers.sessions import Engine, open_session
from clients.images.pictures import Picture, decode_base64, decode_picture

PROJECT = Path(__file__).resolve().parents[2]
MOST_PIXELS = 50_000_000

Tensors = dict[str, npt.NDArray[Any]]


class Work(ABC):
    """One model's work. Safe for many threads."""

    modelname: str
    takes: str
    """The payload's field."""

    def __init__(self, repository: Path) -> None:
        self.folder = repository / self.modelname
        self.file = self.folder / "1" / "model.onnx"

    @abstractmethod
    def prepare(self, payload: Mapping[str, Any]) -> tuple[Tensors, Any]:
        """Return the inputs, a batch of one, and what `finish` needs, as JSON has it."""

    @abstractmethod
    def finish(self, output: npt.NDArray[Any], kept: Any) -> list[Any]:
        """Return the server's answer from this payload's row of the output."""

    @staticmethod
    @abstractmethod
    def gist(answer: Sequence[Any]) -> list[Any]:
        """Return of an answer what does not depend on the last digits."""


class ResNet(Work):
    """A picture squashed; the three best classes."""

    modelname = "resnet"
    takes = "img"

    def __init__(self, repository: Path) -> None:
        super().__init__(repository)
        self.labels = (self.folder / "labels.txt").read_text(encoding="utf-8").splitlines()

    def prepare(self, payload: Mapping[str, Any]) -> tuple[Tensors, Any]:
        from clients.images.resizing import planes, resized

        small = resized(picture(payload["img"]), (224, 224), (224, 224))
        return {"input": planes(small)[None]}, None

    def finish(self, output: npt.NDArray[Any], kept: Any) -> list[Any]:  # noqa: ARG002  as in the others
        best = np.argsort(-output)[:3]
        return [f"{output[place]:f}:{place}:{self.labels[place]}" for place in best]

    @staticmethod
    def gist(answer: Sequence[Any]) -> list[Any]:
        return [text.split(":")[1] for text in answer]


class YoloV5(Work):
    """A picture letterboxed; the objects in it."""

    modelname = "yolov5"
    takes = "img"

    def prepare(self, payload: Mapping[str, Any]) -> tuple[Tensors, Any]:
        from clients.images.resizing import Letterbox

        box = Letterbox.around(picture(payload["img"]))
        kept = [box.width, box.height, box.scale, box.left, box.top]
        return {"images": box.shades[None]}, kept

    def finish(self, output: npt.NDArray[Any], kept: Any) -> list[Any]:
        from clients.images.boxes import YOLOV5, Head
        from clients.images.resizing import Letterbox
        from clients.images.suppression import find_objects

        box = Letterbox(NO_PIXELS, *kept)
        rows = YOLOV5.decode([output], 0.5, Head())
        classes, scores, corners, *_ = find_objects(YOLOV5, rows, confidence=0.5, iou=0.45)
        return [
            [int(kind), round(float(score), 4), x1, x2, y1, y2, box.width, box.height]
            for kind, score, (x1, y1, x2, y2) in zip(
                classes, scores, box.back(corners).round(2).tolist(), strict=True
            )
        ]

    @staticmethod
    def gist(answer: Sequence[Any]) -> list[Any]:
        return [row[0] for row in answer]


NO_PIXELS = np.zeros((0,), np.uint8)


FEW = ".rows.onnx"
"""The suffix of the limit's BERT, which scores the words of some places alone."""
WANTED = f"{NUMBERS}output"
"""Its input: the numbers of these places, int64, counted through all texts of the batch."""


class Bert(Work):
    """A text with one mask; the five likeliest words for it."""

    modelname = "bert_base"
    takes = "text"

    def __init__(self, repository: Path) -> None:
        from tokenizers import Tokenizer as Backend

        from clients.text.tokenizer import Tokenizer

        super().__init__(repository)
        backend = Backend.from_file(str(self.folder / "tokenizer" / "tokenizer.json"))
        backend.no_padding()
        backend.no_truncation()
        self.tokenizer = Tokenizer(backend, "[MASK]")
        self.mask = backend.token_to_id("[MASK]")

    def prepare(self, payload: Mapping[str, Any]) -> tuple[Tensors, Any]:
        from clients.families.base.text_input import pad_rows

        text = payload["text"]
        ids = pad_rows([self.tokenizer.backend.encode(text).ids], 0)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        return inputs, [text, np.nonzero(ids[0] == self.mask)[0].tolist()]

    def finish(
        self, output: npt.NDArray[Any] | Mapping[int, npt.NDArray[Any]], kept: Any
    ) -> list[Any]:
        from clients.tensors.scores import likeliest

        text, places = kept
        before, after = text.split("[MASK]")
        return [
            {"token": self.tokenizer.filled(before, token, after), "score": round(score, 6)}
            for token, score in likeliest(output[places[0]], 5)
        ]

    @staticmethod
    def gist(answer: Sequence[Any]) -> list[Any]:
        # Not whether a piece of a word is joined to the one before it: the AWS sample does not, and
        # older versions of this server joined it to the one behind it.
        return [one["token"].replace("##", "").replace(" ", "") for one in answer]


WORKS: Mapping[str, type[Work]] = {work.modelname: work for work in (ResNet, YoloV5, Bert)}


def picture(text: str) -> Picture:
    return decode_picture(decode_base64(text, "img"), "img", MOST_PIXELS)


class FewRows:
    """A session of BERT that computes only the logits of the masks."""

    def __init__(self, session: Any, mask: int | None) -> None:
        self._session = session
        self._mask = mask

    def run(self, outputs: Sequence[str], inputs: Tensors) -> list[list[dict[int, Any]]]:
        """Return for each text its logits by place."""
        texts, places = np.nonzero(inputs["input_ids"] == self._mask)
        numbers = texts * inputs["input_ids"].shape[1] + places
        ((logits,),) = self._session.run(outputs, {**inputs, WANTED: numbers})
        answers: list[dict[int, Any]] = [{} for _ in inputs["input_ids"]]
        for text, place, row in zip(texts, places, logits, strict=True):
            answers[text][place] = row
        return [answers]


class Runner:
    """A model with its session, for rivals: one thread's whole work."""

    def __init__(self, threads: int) -> None:
        repository = Path(os.environ["BENCH_REPOSITORY"])
        self.work = WORKS[os.environ["BENCH_MODEL"]](repository)
        engine = Engine(os.environ["BENCH_ENGINE"])
        self.session = open_session(self.work.file, engine, threads=threads)

    def answer(self, payloads: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Return the answers of a batch, run at once."""
        return answer_batch(self.work, self.session, payloads)


def answer_batch(
    work: Work, session: Any, payloads: Sequence[Mapping[str, Any]]
) -> list[list[Any]]:
    """Prepare payloads one by one, run them at once, and finish them one by one."""
    prepared = [work.prepare(payload) for payload in payloads]
    output = session.run(["output"], join_inputs([inputs for inputs, _ in prepared]))[0]
    return [work.finish(row, kept) for row, (_, kept) in zip(output, prepared, strict=True)]


def join_inputs(inputs: Sequence[Tensors]) -> Tensors:
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}


# What everybody is asked.


TOKENS = 9


def payload(modelname: str, *, tokens: int = TOKENS) -> Any:
    """Return the payload of every request: a 768×576 JPEG, or 9 tokens of text."""
    if modelname == "bert_base":
        # [CLS], [MASK], the full stop and [SEP] are four.
        return {"text": "the " * (tokens - 4) + "[MASK]."}
    return {"img": base64.b64encode(jpeg()).decode()}


def body(modelname: str, **size: Any) -> dict[str, Any]:
    """Return the whole body of a request to this server."""
    return {"modelname": modelname, "payload": payload(modelname, **size)}


def jpeg() -> bytes:
    """Return a JPEG made from a picture of the tests.

    Noise is added, for an enlarged picture is smooth, and decodes faster than one of its size
    from a camera: the file has the 160 kB that such a one has.
    """
    size = (768, 576)
    enlarged = Image.open(PROJECT / "tests" / "pictures" / "coffee.png").convert("RGB").resize(size)
    noise = np.random.default_rng(5).normal(0, NOISE, (*size[::-1], 1))
    pixels = np.clip(np.asarray(enlarged) + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


NOISE = 6.0
