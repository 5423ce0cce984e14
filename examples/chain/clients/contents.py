"""Which objects are in the picture, and what exactly is each? Asks `yolov5`, then `resnet`."""

from typing import Any

from triton_dispatcher.clients.base import Client, Parameter, Payload
from triton_dispatcher.clients.images.pictures import EXAMPLE


class Contents(Client):
    """Detects objects, cuts each out of the picture, and classifies all of them in one batch."""

    modelname = "contents"
    model = "yolov5"  # the first model that it asks; it has none of its own
    example = {"img": EXAMPLE}
    media = {"picture": "img"}
    parameters = {"top_k": Parameter(1, 1, 5, "how many classes for each object")}

    def inference(self, payload: Payload) -> Any:
        picture = self.picture(payload)  # a bad picture is the caller's error here, before any ask
        objects = self.ask("yolov5", {"img": picture}, {"format": "objects"})
        parts = [self.part(picture, one["box"]) for one in objects]
        classes = self.ask(
            "resnet",
            [{"img": part} for part in parts],
            {"format": "objects", "top_k": self.request.parameters["top_k"]},
        )
        return [{**one, "classes": best} for one, best in zip(objects, classes, strict=True)]

    def part(self, picture: Any, box: Any) -> Any:
        """Return the pixels in a box, at least one; boxes may end beside the picture."""
        height, width, _ = picture.shape
        left, top = (max(0, int(box[side])) for side in ("x1", "y1"))
        left, top = min(left, width - 1), min(top, height - 1)
        right, bottom = max(left + 1, int(box["x2"])), max(top + 1, int(box["y2"]))
        return picture[top:bottom, left:right]
