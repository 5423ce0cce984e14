"""What a person does first on the page."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.conftest import PROJECT
from tests.support.browsing import COFFEE, FOUND, Visitor
from tests.support.stand_ins import image


def boxes_colours() -> list[str]:
    script = (PROJECT / "dispatcher" / "page" / "boxes.js").read_text()
    return re.findall(r"\"(#[0-9a-f]{6})\"", script)


def test_a_picture_is_asked_about_and_its_boxes_are_drawn(visitor: Visitor) -> None:
    visitor.choose("yolov5", "resnet").upload("coffee.png", COFFEE.read_bytes())
    card, page = visitor.card("yolov5"), visitor.page
    assert visitor.texts(card.locator(".box span")) == ["person 0.60", "car 0.90"]  # best on top
    box, stage = card.locator(".box").last.bounding_box(), card.locator(".stage").bounding_box()
    assert box
    assert stage
    # The middle of the letterboxed square is that of the picture; 64 of 640 pixels are a tenth.
    assert box["x"] + box["width"] / 2 - stage["x"] == pytest.approx(stage["width"] / 2, abs=2)
    assert box["y"] + box["height"] / 2 - stage["y"] == pytest.approx(stage["height"] / 2, abs=2)
    assert box["width"] == pytest.approx(stage["width"] / 10, abs=2)
    assert len(visitor.texts(visitor.card("resnet").locator(".bars li"))) == 3
    assert [(one["modelname"], one["parameters"]) for one in visitor.asked] == [
        ("resnet", {"format": "objects", "top_k": 1000}),
        ("yolov5", {"confidence": 0.05, "format": "objects"}),
    ]
    # The slider draws again, and asks nothing.
    slider = card.get_by_role("slider", name="Threshold")
    for threshold in ("0.1", "0.95", "0.7"):
        slider.fill(threshold)
        shown = [score for _, score, *_ in FOUND if score >= float(threshold)]
        assert len(card.locator(".box").all()) == len(shown)
        assert card.locator(".count").inner_text().startswith(f"{len(shown)} of 3")
    assert len(visitor.asked) == 2
    expect(page.locator("#said")).to_have_text("All answers are there")
    for phase in ("queue", "decode", "inference", "post-processing"):
        assert phase in card.locator(".legend").inner_text()


def test_scores_of_any_size_are_shown_in_per_cent(visitor: Visitor) -> None:
    """The stand-in gives three classes the means of the colours, and the 997 others -1."""
    visitor.choose("resnet").upload("red.png", base64.b64decode(image([255, 0, 0])))
    card = visitor.card("resnet")
    powers = np.exp([1.0, 0, 0] + 997 * [-1])
    expected = [f"{100 * one / powers.sum():.2f} %" for one in powers[:3]]
    assert card.locator(".bars .score").all_inner_texts() == expected
    assert "own score of the first is 1.000" in card.inner_text()
    card.get_by_text("The same request in code").click()
    assert "top_k" not in card.locator(".code code").inner_text()


@pytest.mark.parametrize("colour", boxes_colours())
def test_a_box_is_seen_on_a_picture_of_its_colour(visitor: Visitor, colour: str) -> None:
    """Across each side of a box there is something light and something dark, whatever is below."""
    shown = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    sent = base64.b64decode(image(shown, (600, 400)))
    visitor.choose("yolov5").upload("plain.png", sent)
    box = visitor.card("yolov5").locator(".box").last.bounding_box()
    assert box
    clip = {"x": box["x"] - 6, "y": box["y"] + box["height"] / 2, "width": 12, "height": 1}
    taken = Image.open(io.BytesIO(visitor.page.screenshot(clip=clip))).convert("L")
    assert taken.getextrema()[0] < 40
    assert taken.getextrema()[1] > 215


def test_an_answer_that_is_there_stays_where_it_is_on_a_phone(visitor: Visitor) -> None:
    page = visitor.page
    page.set_viewport_size({"width": 360, "height": 740})
    visitor.choose("numbers", "sleeps", "yolov5")
    page.get_by_label("seconds").fill("[1.5]")
    visitor.ask()
    there = [visitor.card(name) for name in ("numbers", "yolov5")]
    before = [card.bounding_box() for card in there]
    visitor.card("sleeps")
    assert [card.bounding_box() for card in there] == before
    titles = page.locator("#answers h2").all_inner_texts()
    assert titles[-1] == "sleeps"  # which was the last to answer


def test_the_keyboard_is_enough(visitor: Visitor) -> None:
    page = visitor.page
    focused = "document.activeElement.id || document.activeElement.closest('label')?.dataset.name"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(focused))
        if seen[-1] == "bert_base":
            page.keyboard.press("Space")
        if seen[-1] == "resnet":
            page.keyboard.press("Space")  # it was chosen
        if seen[-1] == "text":
            break
    assert seen[:2] == ["try-tab", "reference"]
    assert seen[-1] == "text"
    page.keyboard.press("Control+A")
    page.keyboard.type("The world has [MASK] people.")
    page.keyboard.press("Control+Enter")
    card = visitor.card("bert_base")
    assert card.locator(".sentence").inner_text() == "The world has many people."
    assert card.locator(".bars input").first.is_checked()
    card.locator(".bars input").first.focus()
    page.keyboard.press("ArrowDown")
    other = card.locator(".bars li").nth(1).locator(".label").inner_text()
    assert card.locator("mark").inner_text() == other
    page.locator("#try-tab").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#models-tab")).to_be_focused()
    expect(page.locator("#models")).to_be_visible()
    expect(page.locator("#try")).to_be_hidden()
