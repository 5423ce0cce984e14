"""Which texts are in the picture, and where? A detector of lines, and models that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import cv2
import numpy as np
import numpy.typing as npt

from clients.base import Parameter, Payload
from clients.families.base.dispatch_toml import COUNT, MODEL, key
from clients.families.base.picture_input import PictureFamily, PictureKeys, TensorPlan
from clients.images.boxes import not_this_head
from clients.images.drawing import draw_objects
from clients.images.pictures import EXAMPLE_PAGE, Picture, room
from clients.images.resizing import Letterbox
from clients.images.shapes import Spot, as_places
from clients.images.text_boxes import cut_out, proportion, text_boxes
from clients.triton.server import Signature

Array = npt.NDArray[Any]
Line = TypedDict(
    "Line", {"text": NotRequired[str], "score": NotRequired[float], "corners": list[Spot]}
)

# The sizes that RapidOCR gives a picture before it looks for texts.
STRIDE = 32  # a detector's sides are multiples of it
LEAST_SIDE = 30  # pixels; smaller pictures are enlarged
FLATTEST = 8  # times as wide as high; more, and there are black bars above and below it
BARS = 2  # times as high as the flattest picture is one with bars
SHARING = 6  # lines that are cut out and read at a time
LABEL = 0.05  # of a picture's shorter side: how high what is written beside a line is
TURNED, SURE = 1, 0.9  # the class of a line that is upside down, and the score to believe it


@dataclass(frozen=True, kw_only=True)
class OcrKeys(PictureKeys):
    """The keys of this family."""

    recogniser: str = key(
        MODEL, "the model of the family `ctc` that reads the lines; else boxes are answered", ""
    )
    angle: str = key(
        MODEL, "the classifier whose class 1 are lines that are upside down; else none are", ""
    )
    min_side: int = key(
        COUNT, "pixels to which a shorter side below it is enlarged for the detector", 736
    )
    max_side: int = key(COUNT, "pixels to which a longer side above it is reduced", 2000)


@dataclass(frozen=True)
class Page:
    """A picture as texts are looked for in it."""

    picture: Picture  # reduced or enlarged, with bars above and below it if it was flat
    top: int  # pixels of it that are the bar above
    size: tuple[int, int]  # width and height of the picture that was sent, in pixels
    scale: tuple[float, float]  # pixels of that for one of `picture`, across and down

    @classmethod
    def of(cls, picture: Picture, most: int) -> Page:
        """Prepare a picture, whose longer side becomes `most` pixels at most."""
        size = picture.shape[1], picture.shape[0]
        ratio = min(max(1, LEAST_SIDE / min(size)), most / max(size))
        if ratio != 1:
            picture = np.asarray(cv2.resize(picture, in_strides(size, ratio)), np.uint8)
        high, wide = picture.shape[:2]
        scale = size[0] / wide, size[1] / high
        bar = 0
        if high <= LEAST_SIDE or wide > FLATTEST * high:
            bar = abs(max(wide // FLATTEST, LEAST_SIDE) * BARS - high) // 2
            picture = np.pad(picture, ((bar, bar), (0, 0), (0, 0)))
        return cls(picture, bar, size, scale)

    def back(self, corners: Array) -> dict[str, list[dict[str, float]]]:
        """Return corners [4, 2], x and y, for an answer, in pixels of the picture that was sent."""
        places = ((corners - (0, self.top)) * self.scale).clip(0, self.size).round(2)
        return {"corners": as_places(places[None])[0]}


def in_strides(size: tuple[int, int], ratio: float) -> tuple[int, int]:
    """Return width and height of a scaled picture, as the nearest multiples of the stride."""
    wide, high = (max(1, round(int(side * ratio) / STRIDE)) * STRIDE for side in size)
    return wide, high


class Ocr(PictureFamily[OcrKeys, TensorPlan]):
    """Answers the lines of text in reading order, each with its score and four corners.

    The model itself finds the lines (DB); two others that `dispatch.toml` names read them. Corners
    are x and y in pixels of the picture that was sent, from the line's own top left on, clockwise.
    """

    keys_type = OcrKeys
    result_type = list[Line]
    example = {"img": EXAMPLE_PAGE}
    fills = True
    parameters = {
        "confidence": Parameter(0.5, 0, 1, "lines with a lower score are left out"),
        "box_confidence": Parameter(0.5, 0, 1, "boxes with a lower score are not read"),
        "unclip": Parameter(1.6, 1, 10, "how far boxes are wider than the detector's own marks"),
    }

    def fit(self, signature: Signature) -> TensorPlan:
        taken = self.read_input(signature)
        output = self.tensor(signature.outputs, "output")
        sizes = taken.rest_of(output)
        if len(sizes) != 3 or sizes[0] not in (1, -1):
            raise self.misfit(f"{output} has no likelihood for each pixel")
        return TensorPlan(taken, output.name)

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan, most = self.fitted(), self.keys.max_side
        pages = self.each(payloads, lambda payload: Page.of(self.picture(payload), most))
        return [self.lines_of(page, self.boxes(page, plan)) for page in pages]

    def lines_of(self, page: Page, boxes: Sequence[Array]) -> list[dict[str, Any]]:
        if not self.keys.recogniser:
            return [page.back(box) for box in boxes]
        texts, least = self.texts(page.picture, boxes), self.request.parameters["confidence"]
        return [
            {"text": one["text"], "score": one["score"], **page.back(box)}
            for one, box in zip(texts, boxes, strict=True)
            if one["score"] >= least
        ]

    def boxes(self, page: Page, plan: TensorPlan) -> list[Array]:
        """Return the corners of a page's lines in reading order, in pixels of its picture.

        Raises ModelFailed: a model of this kind cannot answer such numbers.
        """
        high, wide = page.picture.shape[:2]
        least = self.keys.min_side
        # A tall picture has no bars: what it is enlarged to is limited as a flat one is.
        ratio = min(max(1, least / min(wide, high)), FLATTEST * least / max(wide, high))
        taken, (width, height) = plan.input, in_strides((wide, high), ratio)
        size = (
            height if taken.height == -1 else taken.height,
            width if taken.width == -1 else taken.width,
        )
        pixels = taken.scaled_planes(Letterbox.around(page.picture, size, fit="stretch").shades)
        answer = self.infer(taken.tensor([pixels]), outputs=[plan.output])[plan.output]
        heat = answer.reshape(answer.shape[-2:]).astype(np.float32, copy=False)
        if not (heat.min() >= -0.01 and heat.max() <= 1.01):  # also of what is no number
            what = "a pixel's likelihood to be inside a text is not 0 to 1"
            raise not_this_head(what, "name another `output`, or export it with its last sigmoid")
        settings = self.request.parameters
        return text_boxes(heat, (high, wide), settings["box_confidence"], settings["unclip"])

    def texts(self, picture: Picture, boxes: Sequence[Array]) -> list[Mapping[str, Any]]:
        """Return what the recogniser answers for each line.

        Six of about the same proportion share a run, padded to the widest of them: how far they are
        padded changes their spaces, and so they are as RapidOCR's.
        """
        proportions = list(map(proportion, boxes))
        order = np.argsort(proportions)
        texts: dict[int, Mapping[str, Any]] = {}
        for begin in range(0, len(order), SHARING):
            places = order[begin : begin + SHARING].tolist()
            cuts = [cut_out(picture, boxes[at]) for at in places]
            if self.keys.angle:
                cuts = [
                    np.ascontiguousarray(cut[::-1, ::-1]) if is_turned else cut
                    for cut, is_turned in zip(cuts, self.turned(cuts), strict=True)
                ]
            widest = {"proportion": proportions[places[-1]]}
            read = self.ask(self.keys.recogniser, [{"img": cut} for cut in cuts], widest)
            texts.update(zip(places, read, strict=True))
        return [texts[at] for at in range(len(boxes))]

    def turned(self, cuts: Sequence[Picture]) -> list[bool]:
        """Return which lines are upside down."""
        best = {"top_k": 1, "format": "objects"}
        found = self.ask(self.keys.angle, [{"img": cut} for cut in cuts], best)
        return [one["index"] == TURNED and one["score"] > SURE for (one,) in found]

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        with room.kept():
            picture = self.picture(payload)
            above = LABEL * min(picture.shape[:2])  # not over the line itself
            objects = []
            for one in result:
                x, y = (min(corner[side] for corner in one["corners"]) for side in "xy")
                box = {"x1": x, "y1": max(0, y - above), "x2": x, "y2": y}
                named = {"label": one.get("text", ""), "index": 0, "box": box}
                objects.append({"score": 1.0, **one, **named})
            return draw_objects(picture, objects, media_type, self.request.time_left)
