"""The families for pictures: what of their settings a model's file shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from backends.onnxruntime.session import OnnxFile
from clients.images.boxes import LAYOUTS, MOST_QUERIES, MOST_SHARE, grid_priors
from clients.triton.server import TensorSpec
from container.trouble import Trouble
from tool.scaffold.plan import CHECK, SCORES, AskAuthor, FamilyPlan, Misfit, is_named, several
from tool.scaffold.source import ModelSource
from tool.scaffold.texts import name_output

FLOATS = ("FP32", "FP16")
CLASSIFIER_SIDE, DETECTOR_SIDE = 224, 640
LINE_HEIGHT, LINE_WIDTHS = 48, (320, 640)  # of a line of text, where any size will do
LETTERS = "character"  # the letters in the metadata of PaddleOCR's recognisers, one in each line
AS_IN_PADDLE = ("mean = [0.5, 0.5, 0.5]", "std = [0.5, 0.5, 0.5]", 'channels = "BGR"')
USUAL = (
    "resize = 256",
    'interpolation = "bilinear"',
    "mean = [0.485, 0.456, 0.406]",
    "std = [0.229, 0.224, 0.225]",
)
YOLOX = f"{CHECK}pictures are 0 to 255, in BGR; before version 0.2 YOLOX took 0 to 1, normalised"
PADDED = "# Its own code may prepare pictures otherwise: `fit`, `padding`, `channels`, `pixels`."
PICTURES = ("image", "img", "pixel", "picture", "photo")  # in the name of an input
ANY_SIZE = "the model takes pictures of any size"


class Pixels(NamedTuple):
    """An input that takes pictures: its sizes are -1 where any will do."""

    spec: TensorSpec
    layout: str
    channels: int
    height: int
    width: int

    @property
    def is_shown(self) -> bool:
        """Whether it is sure that these are pictures: sound has one channel, too."""
        return self.channels == 3 or is_named(self.spec, PICTURES)

    def shape(self, side: int) -> tuple[int, ...]:
        """Return the shape for one picture, with `side` where any size will do."""
        sizes = [self.channels, *self.sides(side)]
        sizes = sizes if self.layout == "NCHW" else [*sizes[1:], sizes[0]]
        return (*((1,) if len(self.spec.shape) == 4 else ()), *sizes)

    def sides(self, side: int) -> tuple[int, int]:
        """Return height and width of a picture, with `side` where any size will do."""
        return (
            side if self.height == -1 else self.height,
            side if self.width == -1 else self.width,
        )

    def layout_line(self) -> list[str]:
        """Return the line for the axes of the input, where they are not the usual ones."""
        return [] if self.layout == "NCHW" else [f'layout = "{self.layout}"']

    def size_line(self, key: str, side: int, given: Any = None) -> list[str]:
        """Return the lines for the pictures' size, where the model takes any."""
        if -1 not in (self.height, self.width):
            return []
        if isinstance(given, list) and len(given) == 2 and all(isinstance(n, int) for n in given):
            return [f"{key} = {given}"]
        sizes = list(self.sides(side))
        return [
            f"{CHECK}{ANY_SIZE}",
            f"{key} = {side if sizes == [side, side] else sizes}",
        ]


def pixels(source: ModelSource) -> Pixels:
    if len(source.inputs) != 1:
        raise Misfit(f"it takes {several(source.inputs)}, not one picture")
    (spec,) = source.inputs
    if spec.datatype not in (*FLOATS, "UINT8") or len(spec.shape) not in (3, 4):
        raise Misfit(f"{spec} takes no pictures")
    if len(spec.shape) == 4 and spec.shape[0] not in (1, -1):
        raise Misfit(f"{spec} takes {spec.shape[0]} pictures, never one")
    sizes = spec.shape[-3:]
    if sizes[0] in (1, 3):
        return Pixels(spec, "NCHW", *sizes)
    if sizes[2] in (1, 3):
        return Pixels(spec, "NHWC", sizes[2], *sizes[:2])
    if sizes[0] == -1 and len(spec.shape) == 4:
        return Pixels(spec, "NCHW", 3, *sizes[1:])
    raise Misfit(f"{spec} has not three channels, nor one")


def with_uint8(
    source: ModelSource, copy: Path, mean: Sequence[float], std: Sequence[float]
) -> ModelSource:
    """Let a model's copy take pictures as bytes, which its graph scales; return the model of it."""
    try:
        taken = pixels(source)
    except Misfit as error:
        raise Trouble(f"--uint8 is for models of pictures; {error}") from error
    if taken.spec.datatype == "UINT8":
        raise Trouble(f"{taken.spec} takes bytes already: leave --uint8 out")
    if not {len(mean), len(std)} <= {0, taken.channels} or min(std, default=1) <= 0:
        raise Trouble(
            f"{taken.spec} has {taken.channels} channels: --mean and --std take as many "
            "numbers, those of --std above 0"
        )
    import onnx

    from weights.converters.pixels import take_bytes

    model = onnx.load(copy, load_external_data=False)
    onnx.save(take_bytes(model, mean, std, taken.layout), copy)
    return replace(source, opened=OnnxFile(copy))


def classification(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served as a classifier.

    It is sure to be one if its pictures are, with their size, and its scores: a vector for a
    picture looks the same.
    """
    taken = pixels(source)
    found = [one for one in source.outputs if is_row(one, taken)]
    sides = (CLASSIFIER_SIDE, CLASSIFIER_SIDE + 64)
    shapes = dict.fromkeys(map(taken.shape, sides))
    answers, *larger = (source.run({taken.spec.name: shape}) for shape in shapes)
    how = tuple(describe_preparation(source, taken))
    for output in found:
        count = answers[output.name].size
        if any(count != other[output.name].size for other in larger):
            raise Misfit(f"{output} has more numbers for a larger picture, which no class is")
        why = f"{taken.spec} takes pictures, and {output} has {count} scores"
        plan = name_output(source, FamilyPlan("classification", why, labelled=output.name), output)
        names = source.labels if len(source.labels) == count else ()
        plan = plan.with_labels(names).and_lines(*how)
        scores = answers[output.name]
        softmax = bool(scores.min() >= 0 and abs(float(scores.sum()) - 1) < 1e-2)
        if softmax:
            plan = plan.and_lines("# The scores are probabilities already: no `softmax`.")
        else:
            plan = plan.and_lines("# softmax = true  # makes probabilities of the scores")
        named = softmax or is_named(output, SCORES)
        sure = taken.is_shown and not any(ANY_SIZE in line for line in how)
        # One number for a picture is no class, unless its author says so.
        yield replace(plan, proven=sure and count > 1 and (named or bool(names)))


def is_row(output: TensorSpec, taken: Pixels) -> bool:
    """Whether an output may have a score for each class of one picture."""
    rest = output.shape[1:] if len(taken.spec.shape) == 4 else output.shape
    return output.datatype in FLOATS and sum(size != 1 for size in rest) == 1


def describe_preparation(source: ModelSource, taken: Pixels, size: str = "crop") -> Iterator[str]:
    """Yield the lines for how pictures are prepared; `size` is the key for the model's size."""
    yield from taken.layout_line()
    yield from taken.size_line(size, CLASSIFIER_SIDE, source.noted("imgsz"))
    if taken.spec.datatype == "UINT8":
        return
    yield f"{CHECK}the file does not show how pictures were prepared in training"
    yield "# Without more keys they are squeezed to the model's size, and pixels are 0 to 1. Most"
    yield "# classifiers of torchvision need these:"
    usual = USUAL if size == "crop" else USUAL[1:]  # of a mask nothing is cut off
    yield from (f"# {line}" for line in usual[: None if taken.channels == 3 else -2])


def ctc(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served as a recogniser of letters, step by step."""
    taken = pixels(source)
    noted = source.opened.metadata.get(LETTERS, "").rstrip("\n")
    letters = source.given or (tuple(noted.split("\n")) if noted else ())
    for output, steps in find_steps(source, taken):
        classes = steps.shape[-1]
        why = f"{taken.spec} takes pictures, and {output} has {classes} scores a step"
        if not letters:
            fix = "name them, --labels FILE, with one in each line"
            raise AskAuthor(f"{why}, so it reads letters: {fix}")
        if classes - len(letters) not in (0, 1, 2):
            what = f"{output} has {classes} classes, which are no {len(letters)} letters"
            raise Misfit(what)
        plan = name_output(source, FamilyPlan("ctc", why, labels=letters), output)
        if np.abs(steps.sum(-1) - 1).max() > 1e-2 or steps.min() < 0:
            plan = plan.and_lines("softmax = true")
        plan = plan.and_lines(*describe_lines(taken, is_paddles=bool(noted)))
        yield replace(plan, proven=bool(noted))
        return


def find_steps(source: ModelSource, taken: Pixels) -> Iterator[tuple[TensorSpec, npt.NDArray[Any]]]:
    """Yield the outputs with scores for each step of a line, and those of a made-up one.

    A wider line has more steps, but not more than pixels; lines of one width are wide.
    """
    lines = taken if taken.height != -1 else taken._replace(height=LINE_HEIGHT)
    widths = LINE_WIDTHS if taken.width == -1 else (taken.width,)
    first, *wider = (source.run({taken.spec.name: lines.shape(width)}) for width in widths)
    for output in source.outputs:
        sizes = first[output.name].shape
        grown = [one[output.name].shape for one in wider]
        has_more = all(one[-1] == sizes[-1] and max(one[:2]) > max(sizes[:2]) for one in grown)
        is_line = has_more if grown else taken.width > lines.height
        if len(sizes) == 3 and is_line and min(sizes[:2]) == 1 and 2 < max(sizes[:2]) <= widths[0]:
            yield output, first[output.name]


def describe_lines(taken: Pixels, *, is_paddles: bool) -> Iterator[str]:
    """Yield the lines of a file for how lines of text are prepared."""
    yield from taken.layout_line()
    if taken.height == -1:
        yield f"{CHECK}it takes lines of any height; PP-OCR's are of 48 pixels, its oldest of 32"
        yield f"height = {LINE_HEIGHT}"
    hidden = "" if is_paddles and taken.channels == 3 else "# "
    if hidden:
        yield f"{CHECK}the file does not show how pictures were prepared in training"
        yield "# Without more keys pixels are 0 to 1, and lines are as wide as they come."
    if taken.channels == 3:
        yield "# As PaddleOCR prepares them:"
        yield from (f"{hidden}{line}" for line in ("width = 320", *AS_IN_PADDLE))


def detection(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served as a detector, the likeliest layout first."""
    taken = pixels(source)
    if taken.channels != 3:
        raise Misfit(f"{taken.spec} is no picture of three channels")
    batch = len(taken.spec.shape) == 4
    answers = source.run({taken.spec.name: taken.shape(DETECTOR_SIDE)})
    shapes = [answers[one.name].shape[batch:] for one in source.outputs]
    if name := face_layout(taken, shapes):
        yield faces(source, taken, name)
        return
    tables = [one for one in source.outputs if len(one.shape) == 2 + batch]
    masks = max((shape[0] for shape in shapes if len(shape) == 3), default=0)
    found = [
        plan
        for output in tables
        for plan in layouts(source, taken, output, answers[output.name], masks)
    ]
    plans = [plan for plan, is_one in found if is_one]
    if found and not plans:
        raise Misfit(
            f"{several(source.outputs)} has the sizes of a table of boxes, but not its numbers: "
            "widths, heights or scores below 0, scores above 1, or no box beyond the first half of "
            "the picture"
        )
    if source.labels and not plans:
        what = f"table of boxes with a score for each of {len(source.labels)} labels"
        raise Misfit(f"{several(source.outputs)} has no {what}")
    yield from plans


def face_layout(taken: Pixels, shapes: Sequence[Sequence[int]]) -> str:
    """Return the layout of a detector of faces with outputs of these shapes; empty if it is none.

    They are for boxes and scores, and maybe for five keypoints.
    """
    high, wide = taken.sides(DETECTOR_SIDE)
    priors = len(grid_priors(LAYOUTS["retinaface"], (high, wide), 0))
    tables = sorted(one[1] for one in shapes if len(one) == 2 and one[0] == priors)
    if tables in ([2, 4], [2, 4, 10]):
        return "retinaface"
    maps = sorted(one[0] for one in shapes if list(one[1:]) == [high // 4, wide // 4])
    return "centerface" if maps in ([1, 2, 2], [1, 2, 2, 10]) else ""


def faces(source: ModelSource, taken: Pixels, name: str) -> FamilyPlan:
    why = f"{taken.spec} takes pictures, and {several(source.outputs)} are {name}'s"
    plan = FamilyPlan("detection", why, (f'output_layout = "{name}"',), proven=True)
    size = taken.size_line("size", DETECTOR_SIDE)
    return plan.and_lines(*taken.layout_line(), *size).with_labels(source.labels or ("face",))


def layouts(
    source: ModelSource, taken: Pixels, output: TensorSpec, answer: npt.NDArray[Any], masks: int
) -> Iterator[tuple[FamilyPlan, bool]]:
    """Yield a plan for each layout that an output's sizes suit, and whether its numbers do."""
    table = answer.reshape(answer.shape[-2:])
    for name, turned in by_likelihood(taken, table.shape, len(source.labels)):
        layout = LAYOUTS[name]
        boxes = table if (layout.axis == 1 or turned) else table.T
        behind, lines = behind_boxes(source, masks)
        count = boxes.shape[1] - layout.before - behind
        if layout.classes and (
            count < 1 or (source.labels and len(source.labels) != count) or len(boxes) < count
        ):
            continue
        shares = bool(np.abs(boxes[:, :4]).max(initial=0) <= MOST_SHARE)
        if layout.shares and not shares:
            continue
        if not layout.classes and not source.labels:
            raise AskAuthor(
                f"{output} has a box's class as a number, so the file does not show how "
                "many classes there are: name them, --labels FILE, with a name in each line"
            )
        why = f"{taken.spec} takes pictures, and {output} is a table of {len(boxes)} "
        plan = FamilyPlan("detection", f"{why}boxes: {layout.box}", (f'output_layout = "{name}"',))
        if not source.opened.metadata.get("task"):
            plan = plan.and_lines(f"{CHECK}by the output's sizes a box is {layout.box}")
        plan = name_output(source, plan, output).and_lines(*lines)
        if shares and not layout.shares:
            plan = plan.and_lines("normalised = true")
        plan = plan.and_lines(YOLOX if layout.grids else PADDED)
        size = taken.size_line("size", DETECTOR_SIDE, source.noted("imgsz"))
        plan = plan.with_labels(source.labels, count if layout.classes else 0)
        plan = plan.and_lines(*taken.layout_line(), *size)
        scores = boxes[:, 4 : layout.before + (count if layout.classes else -1)]
        fits = bool(scores.min(initial=0) >= 0 and scores.max(initial=0) <= 1)
        if not layout.queries:  # each place of the picture has its boxes
            half = 0.5 if shares else min(taken.sides(DETECTOR_SIDE)) / 2
            decoded = boxes[:, 2:4].min() >= 0 and (boxes[:, :2].max(0) >= half).all()
            fits &= bool(decoded) != bool(layout.grids)
        # By its sizes alone it may be another head's table, whose numbers mean other things.
        yield replace(plan, proven=bool(source.labels or layout.grids)), fits


def behind_boxes(source: ModelSource, masks: int) -> tuple[int, list[str]]:
    """Return how many numbers are behind a box's classes, and the lines for them."""
    task, points = source.opened.metadata.get("task"), source.noted("kpt_shape")
    if task == "pose" and isinstance(points, list):
        return math.prod(points), [f"keypoints = {points}"]
    return (1, ["rotated = true"]) if task == "obb" else (masks, [])


def by_likelihood(taken: Pixels, sizes: Sequence[int], labels: int) -> Iterator[tuple[str, bool]]:
    """Yield the layouts that a table may have, and whether rows and columns are swapped."""
    rows, columns = sizes
    if columns == LAYOUTS["end2end"].before and rows <= MOST_QUERIES:
        yield "end2end", False
    if columns > rows:
        yield "yolov8", False
        return
    if rows <= MOST_QUERIES:
        yield "rtdetr", False
    cells = len(grid_priors(LAYOUTS["yolox"], taken.sides(DETECTOR_SIDE), rows))
    if rows == cells and columns > LAYOUTS["yolox"].before:
        yield "yolox", False
    # As many boxes as cells are without anchors: v8's, or v6's with its objectness.
    usual = labels or 80
    swapped = rows == cells and columns != LAYOUTS["yolov5"].before + usual
    yield from (
        [("yolov8", True), ("yolov5", False)]
        if swapped and rows > MOST_QUERIES
        else [("yolov5", False), ("yolov8", True)]
    )
