"""Four models from the lines in the docs, in the real container."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from clients.base import Environment
from clients.errors import ClientDisabled
from clients.families.base import family
from clients.families.base.dispatch_toml import Keys
from clients.families.base.text_input import TextKeys
from clients.images.pictures import EXAMPLE
from clients.plugins.registry import load_clients
from clients.request import Request
from clients.triton.server import Signature, TensorSpec
from tests.conftest import (
    PICTURES,
    PROJECT,
    SHARED,
    Endpoint,
    needs_shared,
    picture,
    running,
    wait_for,
)
from tests.support.fake_triton import FakeTriton

pytestmark = pytest.mark.slow


PAGE = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text() for name in ("adding-a-model", "families")
)
CLOSER = """
import numpy as np

from clients.base import Client
from clients.families.detection import Letterbox, best_objects, yolov5_candidates
from clients.images.pictures import EXAMPLE
from clients.images.resizing import resized


class Closer(Client):
    modelname = "closer"
    model = "yolov5"
    example = {"img": EXAMPLE}
    media = {"picture": "img"}

    def inference(self, payload):
        picture = self.picture(payload)
        box = Letterbox.around(picture)
        rows = self.infer({"images": box.pixels[None]})["output"][0]
        _, _, corners = best_objects(*yolov5_candidates(rows, 0.5), confidence=0.5, iou=0.45)
        found = box.back(corners).round().astype(int).tolist()
        return [
            {"corners": [x1, y1, x2, y2], "index": self.closer(picture[y1:y2, x1:x2])}
            for x1, y1, x2, y2 in found
            if x2 > x1 and y2 > y1  # of a box at the very edge nothing may be left
        ]

    def closer(self, part):
        pixels = np.asarray(resized(part, (224, 224), (224, 224)), np.float32) / 255
        logits = self.infer({"input": pixels.transpose(2, 0, 1)[None]}, model="resnet")["output"]
        return int(logits[0].argmax())
"""
# A block whose first line is a comment with the path of the file that it is.
FILES = [(path, text) for path, text in re.findall(r"(?ms)^```\w*\n# (\S+/\S+)\n(.*?)^```$", PAGE)]
LABELS = (PROJECT / "model_repository" / "resnet" / "labels.txt").read_text().splitlines()
# The architecture that ONNX's own tests carry, without its trained weights: no registry has them.
DENSENET = Path(onnx.backend.test.__file__).parent / "data" / "light" / "light_densenet121.onnx"


def densenet(path: Path) -> None:
    """DenseNet-121, its weights drawn by chance: it has classes to tell apart, not to know."""
    model = onnx.load(DENSENET)
    chance = np.random.default_rng(121)
    sizes = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    drawn = []
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        shape, name = sizes[node.input[0]], node.output[0]
        scale = (2 / max(1, np.prod(shape[1:]))) ** 0.5 if len(shape) == 4 else 0.1
        values = chance.normal(0, scale, shape).astype(np.float32)
        # Variances and scales of a batch normalisation are around 1.
        positive = len(shape) < 4 and not re.search("_(b|m|bias|mean)_", name)
        drawn.append(numpy_helper.from_array(abs(values) + 1 if positive else values, name))
        model.graph.node.remove(node)
    model.graph.initializer.extend(drawn)
    onnx.save(model, path)


def parts_yolov8(path: Path) -> None:
    """A detector for 320×320: two boxes where the picture has anything white, none elsewhere."""
    boxes = np.zeros((1, 4, 5), np.float32)
    scores = np.zeros((1, 2, 5), np.float32)
    boxes[0, :, 1], scores[0, 0, 1] = [160, 160, 64, 32], 0.9
    boxes[0, :, 2], scores[0, 0, 2] = [164, 160, 64, 32], 0.8  # the same, less sure
    boxes[0, :, 4], scores[0, 1, 4] = [60, 100, 40, 20], 0.7
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["images"], ["white"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Squeeze", ["white", "axis"], ["gate"]),
            helper.make_node("Mul", ["scores", "gate"], ["gated"]),
            helper.make_node("Mul", ["gate", "zero"], ["none"]),
            helper.make_node("Add", ["boxes", "none"], ["placed"]),
            helper.make_node("Concat", ["placed", "gated"], ["output0"], axis=1),
        ],
        "parts",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 320, 320])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["n", 6, 5])],
        [
            numpy_helper.from_array(boxes, "boxes"),
            numpy_helper.from_array(scores, "scores"),
            numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
            numpy_helper.from_array(np.array([3]), "axis"),
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


@pytest.fixture(scope="module")
def folder(models: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages say to write, a class that runs two models, and the models beside them."""
    folder = tmp_path_factory.mktemp("page")
    for path, text in FILES:
        if path.startswith(("densenet_onnx", "parts_yolov8", "minilm")):
            file = folder / "repository" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    (folder / "clients").mkdir()
    (folder / "clients" / "closer.py").write_text(CLOSER)
    repository = folder / "repository"
    for name in ("resnet", "yolov5"):
        shutil.copytree(PROJECT / "model_repository" / name, repository / name)
    for name in ("densenet_onnx", "parts_yolov8", "minilm"):
        (repository / name / "1").mkdir()
    densenet(repository / "densenet_onnx" / "1" / "model.onnx")
    shutil.copy(
        PROJECT / "model_repository" / "resnet" / "labels.txt", repository / "densenet_onnx"
    )
    parts_yolov8(repository / "parts_yolov8" / "1" / "model.onnx")
    (repository / "parts_yolov8" / "labels.txt").write_text("bolt\nnut\n")
    if SHARED.is_dir():
        (repository / "minilm" / "tokenizer").mkdir()
        shutil.copy(SHARED / "minilm" / "model.onnx", repository / "minilm" / "1")
        for path in (SHARED / "minilm").glob("*[!x]"):
            shutil.copy(path, repository / "minilm" / "tokenizer")
    else:
        shutil.rmtree(repository / "minilm")
    return folder


@pytest.fixture(scope="module")
def four(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    settings = {
        "MODEL_REPOSITORY": str(folder / "repository"),
        "CLIENTS_PATH": str(folder / "clients"),
        "MODEL_SERVER_WORKERS": "2",
    }
    with running(tmp_path_factory.mktemp("run"), **settings) as endpoint:
        # Each of the two web workers tries the models for itself.
        wait_for(
            lambda: all(endpoint.call("/ping").status == 200 for _ in range(12)), 60, "both ready"
        )
        yield endpoint


@pytest.mark.parametrize("name", ["densenet_onnx", "chrisnet"])
def test_densenet_answers_as_onnx_runtime_by_itself(
    four: Endpoint, folder: Path, name: str
) -> None:
    small = Image.open(PICTURES / "coffee.png").convert("RGB").resize((224, 224))
    pixels = (np.asarray(small, np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
    session = onnxruntime.InferenceSession(
        folder / "repository" / "densenet_onnx" / "1" / "model.onnx",
        providers=["CPUExecutionProvider"],
    )
    logits = session.run(None, {"data_0": pixels})[0].ravel().astype(np.float64)
    weights = np.exp(logits - logits.max())
    probabilities = weights / weights.sum()
    best = np.argsort(-probabilities)[:5]
    answer = four.ask(modelname=name, payload={"img": picture(PICTURES / "coffee.png")})
    assert (answer.status, answer.json["modelname"]) == (200, name)
    came = [text.split(":", 2) for text in answer.json["result"]]
    assert [(int(index), label) for _, index, label in came] == [(i, LABELS[i]) for i in best]
    assert [float(score) for score, _, _ in came] == pytest.approx(probabilities[best], abs=1e-4)


def test_a_list_for_a_model_without_batches(four: Endpoint) -> None:
    img = picture(PICTURES / "coffee.png")
    one = four.ask(modelname="chrisnet", payload={"img": img}).json["result"]
    answer = four.ask(modelname="chrisnet", payload=[{"img": img}] * 3)
    assert answer.json["result"] == [one] * 3


def test_the_planted_boxes_are_found_in_pixels_of_the_picture(four: Endpoint) -> None:
    """640×320 is scaled by a half and lies 80 pixels below the top of the square."""
    out = io.BytesIO()
    Image.new("RGB", (640, 320), "white").save(out, "PNG")
    answer = four.call(
        "/infer/parts_yolov8?format=objects", out.getvalue(), headers={"Content-Type": "image/png"}
    )
    assert answer.json["result"] == [
        {"label": "bolt", "index": 0, "score": 0.9,
         "box": {"x1": 256, "y1": 128, "x2": 384, "y2": 192}},
        {"label": "nut", "index": 1, "score": 0.7,
         "box": {"x1": 80, "y1": 20, "x2": 160, "y2": 60}},
    ]  # fmt: skip
    headers = {"Content-Type": "image/png", "Accept": "image/png"}
    drawn = four.call("/infer/parts_yolov8", out.getvalue(), headers=headers)
    assert Image.open(io.BytesIO(drawn.body)).size == (640, 320)


@needs_shared
def test_sentences_lie_where_the_reference_says(four: Endpoint) -> None:
    cases = json.loads((SHARED / "reference" / "minilm.json").read_text())
    answer = four.ask(modelname="minilm", payload=[{"text": case["text"]} for case in cases])
    assert answer.status == 200
    for case, vector in zip(cases, answer.json["result"], strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        expected = np.array(case["embedding"])
        assert np.dot(vector, expected) / np.linalg.norm(expected) > 0.999
    alone = four.ask(modelname="minilm", payload={"text": cases[0]["text"]}).json["result"]
    assert np.dot(alone, answer.json["result"][0]) > 0.999


def test_each_box_is_looked_at_closer(four: Endpoint) -> None:
    """The reference finds one object in the picture, a cup; ResNet knows what kind of cup it is."""
    (expected,) = json.loads((PROJECT / "tests" / "reference" / "yolov5.json").read_text())[
        "coffee.png"
    ]["objects"]
    answer = four.ask(modelname="closer", payload={"img": picture(PICTURES / "coffee.png")})
    (found,) = answer.json["result"]
    assert found["corners"] == pytest.approx(expected["x1_y1_x2_y2"], abs=3)
    x1, y1, x2, y2 = found["corners"]
    out = io.BytesIO()
    Image.open(PICTURES / "coffee.png").convert("RGB").crop((x1, y1, x2, y2)).save(out, "PNG")
    alone = four.call(
        "/infer/resnet?top_k=1", out.getvalue(), headers={"Content-Type": "image/png"}
    )
    assert int(alone.json["result"][0].split(":")[1]) == found["index"]


def test_something_is_found_in_the_example(four: Endpoint) -> None:
    """With the defaults; the answers are those of ONNX Runtime, Pillow and OpenCV alone."""
    payload = {"img": EXAMPLE}
    (found,) = four.ask(modelname="yolov5", payload=payload).json["result"]
    assert found[0] == 41  # a cup
    assert found[1] == pytest.approx(0.6943, abs=0.02)
    assert found[2:6] == pytest.approx([38.2, 130.2, 3.3, 115.4], abs=3)
    best = four.ask(modelname="resnet", payload=payload).json["result"][0].split(":")
    assert best[1:] == ["967", "espresso"]
    assert float(best[0]) == pytest.approx(15.0712, abs=0.1)


# Loaded at run time


def test_a_model_that_is_loaded_brings_its_client_and_takes_it_along(
    four: Endpoint, folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "hash"
    shutil.copytree(folder / "repository" / "parts_yolov8", source)
    (source / "dispatch.toml").write_text(
        'family = "detection"\noutput_layout = "yolov8"\naliases = ["later"]\n'
    )
    load = json.dumps({"model_name": "0abc", "url": str(source)})
    assert four.call("/models", load).status == 200
    payload = {"img": picture(PICTURES / "coffee.png")}
    # Some for each worker.
    for name in ("0abc", "later") * 5:
        assert four.ask(modelname=name, payload=payload).status == 200
    assert four.call("/models/0abc").json["client"].startswith("Detection in ")
    assert four.call("/models/0abc", method="DELETE").status == 200
    for name in ("0abc", "later") * 5:
        assert four.ask(modelname=name, payload=payload).status == 404


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('family = "detection"\noutput_layout = "yolov5"', ["output_layout", 'write "yolov8"']),
        ('family = "detecton"', ["`family`", "did you mean `detection`?"]),
    ],
)
def test_a_model_that_does_not_fit_its_file_is_not_loaded(
    four: Endpoint, folder: Path, tmp_path: Path, toml: str, words: list[str]
) -> None:
    source = tmp_path / "hash"
    shutil.copytree(folder / "repository" / "parts_yolov8", source)
    (source / "dispatch.toml").write_text(toml)
    answer = four.call("/models", json.dumps({"model_name": "bad", "url": str(source)}))
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_model")
    for word in words:
        assert word in answer.json["error"]["message"]
    assert f"mend it in {source}" in answer.json["error"]["hint"]
    assert four.ask(modelname="bad", payload={}).status == 404


def test_a_plain_model_file_may_have_one_too(four: Endpoint, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "plain"
    source.mkdir()
    for name in ("labels.txt", "dispatch.toml", "1/model.onnx"):
        shutil.copy(folder / "repository" / "parts_yolov8" / name, source)
    assert four.call("/models", json.dumps({"model_name": "p", "url": str(source)})).status == 200
    answer = four.ask(modelname="p", payload={"img": picture(PICTURES / "coffee.png")})
    assert answer.status == 200
    assert four.call("/models/p", method="DELETE").status == 200


# The page


def test_every_file_on_the_page_is_right(tmp_path: Path) -> None:
    """Each as it stands there, in a folder with labels and a tokenizer."""
    assert len(FILES) >= 10
    for place, (path, text) in enumerate(FILES):
        model = tmp_path / str(place) / Path(path).parent
        model.mkdir(parents=True)
        (model / Path(path).name).write_text(text)
        (model / "labels.txt").write_text("a\nb\n")
        (model / "tokenizer").symlink_to(PROJECT / "model_repository" / "bert_base" / "tokenizer")
        registry = load_clients(Environment(FakeTriton(), model.parent))
        assert registry.broken == {}, path
        assert path.endswith(".pbtxt") == (not registry.clients), path


def test_a_mistake_is_said_as_the_page_shows_it(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^mine(/densenet_onnx/dispatch.toml: .*)$", PAGE, re.MULTILINE)
    folder = tmp_path / "densenet_onnx"
    folder.mkdir()
    (folder / "dispatch.toml").write_text('family = "classification"\ncrop = 256\n')
    shutil.copy(PROJECT / "model_repository" / "resnet" / "labels.txt", folder)
    signature = Signature(
        0,
        (TensorSpec("data_0", "FP32", (1, 3, 224, 224)),),
        (TensorSpec("fc6_1", "FP32", (1, 1000, 1, 1)),),
    )
    environment = Environment(FakeTriton(signatures={"densenet_onnx": signature}), tmp_path)
    client = load_clients(environment).clients["densenet_onnx"]
    with pytest.raises(ClientDisabled) as caught, Request().active():
        client.inference(client.example)
    assert caught.value.message == f"{tmp_path}{shown}"


def rows_of(keys: type[Keys], but: type[Keys] | None) -> list[str]:
    known = {one.name for one in fields(but)} if but else set()
    rows = []
    for one in fields(keys):
        if one.name not in known:
            default = (
                "nothing"
                if one.default in ((), None, "")
                else f"`{json.dumps(one.default, default=str)}`"
            )
            if one.default is MISSING:
                default = "must be there"
            meaning, kind = one.metadata["meaning"], one.metadata["kind"]
            rows.append(f"| `{one.name}` | {default} | {meaning} | {kind.expected} |")
    return rows


def test_every_key_of_every_family_is_on_the_page() -> None:
    table: dict[str, Any] = {"any": (Keys, None), "fill-mask": (TextKeys, Keys)}
    for name in family.names():
        assert f"`{name}`" in PAGE or name == "tensors"
        kind = family.family(name, Path()).keys_type
        table.setdefault(name, (kind, TextKeys if issubclass(kind, TextKeys) else Keys))
    written = re.findall(
        r"^\| `\w+` \| (?:`.*?`|nothing|must be there) \| .* \|$", PAGE, re.MULTILINE
    )
    assert sorted(written) == sorted(row for pair in table.values() for row in rows_of(*pair))
