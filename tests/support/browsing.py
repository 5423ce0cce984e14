"""The page in a real Chromium, in front of the real families with a Triton of functions.

`build` is the application for `front`. `chromium` starts the browser, and `Visitor` does on the
page what a person does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from flask import Flask
from PIL import Image

from clients.base import FORMAT, Client, Parameter
from clients.errors import ModelFailed
from clients.images.drawing import as_base64, as_mask
from clients.images.pictures import EXAMPLE
from clients.sound.decoding import EXAMPLE as SOUND
from clients.triton.server import Signature, Tensors, TensorSpec
from tests.conftest import PATIENCE_S, PICTURES, PROJECT, Endpoint
from tests.support.application import quiet, serve_clients
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.stand_ins import bert, resnet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

COFFEE = PICTURES / "coffee.png"  # 600×400
HOSTILE_NAME = "<img src=x onerror=alert(1)>"
HOSTILE_LABEL = "</span><script>alert(2)</script><b onclick=alert(3)>bold</b>"
MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")  # it beeps
AXE = "axe-core@4.14.1"

# Class of COCO, score, and the middle, width and height in pixels of the letterboxed square. A
# picture of 600×400 is scaled to 640×427 there, with bars of 106.5 pixels above and below.
FOUND = ((2, 0.9, 320, 320, 64, 32), (0, 0.6, 160, 300, 100, 200), (16, 0.2, 500, 330, 80, 80))


def yolov5(inputs: Tensors) -> Arrays:
    rows = np.zeros((len(inputs["images"]), 25200, 85), np.float32)
    for place, (kind, score, *box) in enumerate(FOUND):
        rows[:, place, :5] = [*box, 1]
        rows[:, place, 5 + kind] = score
    return {"output": rows}


class Numbers(Client):
    """Answers numbers times a factor."""

    modelname = "numbers"
    example = {"numbers": [1, 2]}
    parameters = {
        "factor": Parameter(2.0, 0, 10, "what to multiply by"),
        "rounds": Parameter(1, 1, 3, "how often"),
        "format": FORMAT,
    }

    def inference(self, payload: Any) -> Any:
        asked = self.request.parameters
        return (self.numbers(payload, "numbers") * asked["factor"] ** asked["rounds"]).tolist()


@dataclass
class Question:
    words: list[str]
    kind: Literal["short", "long"]
    limit: int = 5
    name: str | None = None


class Declared(Client):
    """Answers the payload that it declares."""

    modelname = "declared"
    example = {"words": ["a"], "kind": "short"}

    def inference(self, payload: Question) -> Question:
        return payload


class Embed(Client):
    """Answers how often each letter is in a text."""

    modelname = "embed"
    example = {"text": "a cat"}
    media = {"text": "text"}

    def inference(self, payload: Any) -> Any:
        text = self.text(payload).lower()
        return [float(text.count(chr(97 + letter))) for letter in range(26)]


class Mask(Client):
    """Answers a mask of classes, an opacity or a picture."""

    modelname = "mask"
    example = {"img": EXAMPLE}
    media = {"picture": "img"}
    parameters = {"kind": Parameter("classes", choices=("classes", "opacity", "picture"))}

    def inference(self, payload: Any) -> Any:
        left = np.zeros((40, 60), np.uint8)
        left[:, 45:] = 2
        kind = self.request.parameters["kind"]
        if kind == "picture":
            return {"picture": as_base64(Image.fromarray(left))}
        if kind == "opacity":
            return {"share": 0.25, "mask": as_base64(Image.fromarray(left * 127))}
        classes = [{"label": "sky", "index": 0, "share": 0.75}, {"index": 2, "share": 0.25}]
        return {"classes": classes, "mask": as_base64(as_mask(left))}


class Shapes(Client):
    """Answers an object with a mask, a rotated one, and one with keypoints, of 600×400."""

    modelname = "shapes"
    example = {"img": EXAMPLE}
    media = {"picture": "img"}

    def inference(self, payload: Any) -> Any:
        self.picture(payload)
        one = {"label": "a", "score": 0.9, "box": {"x1": 60, "y1": 40, "x2": 240, "y2": 120}}
        ends = [(60, 80), (150, 40), (240, 80), (150, 120)]
        places = [{"x": x, "y": y} for x, y in ends]
        return [
            {**one, "index": 0, "mask": [ends, [(300, 200), (330, 200), (330, 230)]]},
            {**one, "index": 1, "corners": places},
            {
                **one,
                "index": 2,
                "keypoints": [{**at, "score": 0.3 * n} for n, at in enumerate(places)],
            },
        ]


class Listens(Client):
    """Answers how long a sound is, and whether there is one."""

    modelname = "listens"
    example = {"audio": SOUND}
    media = {"audio": "audio"}

    def inference(self, payload: Any) -> Any:
        samples = self.audio(payload)
        return {"seconds": round(len(samples) / 16_000, 2), "silent": not samples.any()}


class Flat(Client):
    """Answers the row that it was asked, as a table has it."""

    modelname = "flat"
    example = {"age": 30, "city": "Rome", "debt": 0.5}

    def inference(self, payload: Any) -> Any:
        return dict(payload)


class Fails(Client):
    """Answers that the model failed."""

    modelname = "fails"
    example = {"text": "a text"}
    media = {"text": "text"}

    def inference(self, payload: Any) -> Any:
        raise ModelFailed("it fell over", hint="stand it up again")


class Hostile(Client):
    """Has a name, a parameter, an example and labels that want to be HTML."""

    modelname = HOSTILE_NAME
    example = {"text": f"{HOSTILE_LABEL} {HOSTILE_NAME}"}
    media = {"text": "text"}
    parameters = {HOSTILE_NAME: Parameter("a", meaning=HOSTILE_LABEL, choices=("a", HOSTILE_LABEL))}

    def inference(self, payload: Any) -> Any:
        return [{"label": HOSTILE_LABEL, "index": 0, "score": 0.5}]


def build() -> Flask:
    """Return the application, for gunicorn."""
    own = (Numbers, Declared, Embed, Mask, Shapes, Listens, Flat, Fails, Hostile)
    families = {"resnet": resnet, "yolov5": yolov5, "bert_base": bert}
    server = FakeTriton(
        {**families, **{one.modelname: dict for one in own}, "add": dict},
        signatures={
            "add": Signature(
                0, (TensorSpec("A", "FP32", (-1, 2)),), (TensorSpec("SUM", "FP32", (-1,)),)
            )
        },
    )
    return serve_clients(server, own, lambda _: quiet(server), PROJECT / "model_repository")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser without a window; skip the test where there is none."""
    reason = "there is no Chromium: `make test` installs it on Debian, by apt-get install chromium"
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  a quarter of a second

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            timeout=PATIENCE_S * 1000,
            # A sandbox is what root cannot have; a GPU's process draws nothing without one.
            args=["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1", *MICROPHONE],
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A person on the page.

    Args:
        page: a tab of the browser.
        endpoint: the container.

    """

    def __init__(self, page: Page, endpoint: Endpoint) -> None:
        self.page = page
        self.address = f"http://127.0.0.1:{endpoint.port}/"
        self.asked: list[str | None] = []  # bodies of requests; those of pictures are too long
        self.wrong: list[str] = []  # what the browser refused or could not run
        self.elsewhere: list[str] = []  # requests to other servers
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("request", self._request)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._console)
        page.on("dialog", self._dialog)

    def _request(self, request: Any) -> None:
        if request.method == "POST":
            self.asked.append(request.post_data)
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.elsewhere.append(request.url)

    def _console(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.wrong.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self) -> Visitor:
        self.page.goto(self.address)
        self.page.locator("#ask").wait_for()
        return self

    def choose(self, model: str) -> Page:
        self.page.get_by_label("Model").select_option(model)
        return self.page

    def upload(self, name: str, data: bytes, kind: str = "image/png") -> Locator:
        """Choose a picture; return its answer, as `ask` does."""
        file: Any = {"name": name, "mimeType": kind, "buffer": data}
        self.page.locator("#file").set_input_files(file)
        return self.answer()

    def ask(self) -> Locator:
        self.page.locator("#submit").click()
        return self.answer()

    def answer(self) -> Locator:
        """Return the answer, when it is there."""
        answer = self.page.locator("#answer")
        answer.locator("pre, .error").first.wait_for(state="attached")
        return answer
