"""Write what the story needs: pictures, and four versions of ResNet-50.

Version 1 is the model of `make weights`, in f32, and is served. The others lie in `made/versions`
until their turn comes: a good one in int8, one without the mean, and one that computes each picture
twelve times.
"""

import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from PIL import Image

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
RESNET = PROJECT / "model_repository" / "resnet"
SERVED = HERE / "models" / "resnet"
MADE = HERE / "made"
SIZE = 224  # pixels, of the model's input
COPIES = 12  # of each picture, which the slow version computes


def make_pictures(folder: Path) -> None:
    """Cut twelve squares out of two pictures: three of a cat, nine of a cup of espresso."""
    folder.mkdir(parents=True)
    for name, share, rows in (("chelsea", 1.0, (0,)), ("coffee", 0.8, (0, 0.5, 1))):
        picture = Image.open(PROJECT / "tests" / "pictures" / f"{name}.png").convert("RGB")
        side = int(picture.height * share)
        for number, (down, across) in enumerate(product(rows, (0.8, 0.9, 1))):
            left, top = int((picture.width - side) * across), int((picture.height - side) * down)
            part = picture.crop((left, top, left + side, top + side)).resize((SIZE, SIZE))
            part.save(folder / f"{name}-{number}.jpg", quality=95, subsampling=0)


def write_version(number: int, model: onnx.ModelProto) -> None:
    folder = MADE / "versions" / str(number)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")


def leave_out_the_mean(model: onnx.ModelProto) -> None:
    """Make the mistake of an export whose author forgot to subtract the mean of each colour."""
    for one in model.graph.initializer:
        if one.name == "input.mean":
            nothing = np.zeros_like(numpy_helper.to_array(one))
            one.CopyFrom(numpy_helper.from_array(nothing, one.name))


def compute_copies(model: onnx.ModelProto) -> None:
    """Make the mistake of an export with test-time augmentation left in, which averages copies."""
    graph = model.graph
    for node in graph.node:
        for names, name in ((node.input, "input"), (node.output, "output")):
            names[:] = [f"{name}_copies" if one == name else one for one in names]
    constants = {"copies": [COPIES, 1, 1, 1], "apart": [COPIES, -1, 1000]}
    graph.initializer.extend(numpy_helper.from_array(np.array(v), k) for k, v in constants.items())
    graph.node.insert(0, helper.make_node("Tile", ["input", "copies"], ["input_copies"]))
    graph.node.append(helper.make_node("Reshape", ["output_copies", "apart"], ["each"]))
    graph.node.append(helper.make_node("ReduceMean", ["each"], ["output"], axes=[0], keepdims=0))


for old in (MADE, *SERVED.glob("[0-9]")):
    shutil.rmtree(old, ignore_errors=True)
make_pictures(MADE / "pictures")
(MADE / "versions").mkdir()
(SERVED / "1").mkdir()
shutil.copy(RESNET / "1" / "model.onnx", SERVED / "1")
shutil.copy(RESNET / "labels.txt", SERVED)
command = [Path(sys.executable).with_name("dispatcher"), "quantize", "resnet"]
command += ["--samples", MADE / "pictures", "--output", MADE / "versions" / "2"]
subprocess.run(command, check=True, stdout=sys.stderr)
for number, make_mistake in ((3, leave_out_the_mean), (4, compute_copies)):
    model = onnx.load(MADE / "versions" / "2" / "model.onnx")
    make_mistake(model)
    write_version(number, model)
