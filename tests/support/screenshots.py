"""Pictures of the page for the documentation, made by a browser.

usage: python -m tests.support.screenshots     starts the container, writes docs/pictures/page*.png
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from tests.conftest import PICTURES, PROJECT, Endpoint, running
from tests.support.browsing import Visitor, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PLACE = PROJECT / "docs" / "pictures"
# The first requests have costs of their own, and so has a machine that does other work.
TRIES, USUAL_MS = 8, 200
COLOURS = 255  # a palette: a third of the size, and hardly a difference on a page


def make(browser: Browser, endpoint: Endpoint, folder: Path) -> list[Path]:
    """Write the pictures into a folder; return them."""
    return [
        shot(folder / "page.png", pictures(browser, endpoint)),
        shot(folder / "page-phone.png", phone(browser, endpoint)),
    ]


def pictures(browser: Browser, endpoint: Endpoint) -> bytes:
    """Two models that look at a picture, on a desk."""
    context = browser.new_context(viewport={"width": 1240, "height": 850})
    visitor = Visitor(context.new_page(), endpoint).open().choose("yolov5", "resnet")
    for _ in range(TRIES):
        visitor.upload("coffee.png", (PICTURES / "coffee.png").read_bytes())
        for name in ("yolov5", "resnet"):
            visitor.card(name)
        if milliseconds(visitor, "yolov5") < USUAL_MS:
            break
    visitor.card("yolov5").get_by_role("slider").fill("0.30")
    visitor.card("resnet").get_by_text("The same request in code").click()
    visitor.page.evaluate("document.activeElement.blur()")
    taken = visitor.page.screenshot()
    context.close()
    return taken


def milliseconds(visitor: Visitor, name: str) -> float:
    """Return how long a model's answer took."""
    shown, unit = visitor.card(name).locator(".legend strong").inner_text().split()
    return float(shown) * (1 if unit == "ms" else 1000)


def phone(browser: Browser, endpoint: Endpoint) -> bytes:
    """A word in its place, on a phone, in the dark."""
    context = browser.new_context(
        viewport={"width": 390, "height": 850}, color_scheme="dark", has_touch=True
    )
    visitor = Visitor(context.new_page(), endpoint).open().choose("bert_base")
    visitor.page.locator("#text").fill("He went to the [MASK] to buy bread.")
    for _ in range(TRIES):
        visitor.ask().card("bert_base")
        if milliseconds(visitor, "bert_base") < USUAL_MS / 10:
            break
    visitor.page.evaluate("document.activeElement.blur()")
    taken = visitor.page.screenshot(clip={"x": 0, "y": 0, "width": 390, "height": 515})
    context.close()
    return taken


def shot(path: Path, taken: bytes) -> Path:
    """Write a picture with few colours."""
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    small = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder)) as endpoint,
        chromium() as browser,
    ):
        for path in make(browser, endpoint, PLACE):
            print(path, path.stat().st_size)  # noqa: T201  a command
