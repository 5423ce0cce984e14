"""What the page shows for each kind of model, and the code of the same request."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import Endpoint
from tests.support.browsing import COFFEE, FOUND, Visitor
from tests.support.stand_ins import image

SMALL = base64.b64decode(image([255, 0, 0]))

pytestmark = pytest.mark.slow


def test_several_models_of_different_kinds_answer_side_by_side(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 1600, "height": 1000})
    visitor.choose("yolov5", "embed", "numbers")
    expect(visitor.page.locator("#submit")).to_have_text("Ask 3 models")
    visitor.ask()
    cards = [visitor.card(name).bounding_box() for name in ("embed", "numbers", "yolov5")]
    assert len({round(card["y"]) for card in cards if card}) == 1
    widths = [
        visitor.card(name)
        .locator(".time-bar i")
        .evaluate_all(
            "bars => bars.map(bar => parseFloat(bar.style.width)).reduce((a, b) => a + b)"
        )
        for name in ("embed", "numbers", "yolov5")
    ]
    assert max(widths) == pytest.approx(100, abs=0.5)  # one scale for all: the slowest fills it
    # One of the sample picture of 176×119 pixels, another one of the text.
    asked = {one["modelname"]: one["payload"] for one in visitor.asked}
    assert set(asked["yolov5"]) == {"img"}
    assert asked["embed"] == {"text": visitor.page.locator("#text").input_value()}
    assert asked["numbers"] == {"numbers": [1, 2]}


def test_declared_parameters_are_fields(visitor: Visitor) -> None:
    page = visitor.choose("numbers").page
    page.get_by_text("Parameters of").click()
    factor = page.get_by_label("factor")
    assert [factor.get_attribute(name) for name in ("type", "min", "max", "step")] == [
        *("number", "0", "10", "any"),
    ]
    assert page.get_by_label("rounds").get_attribute("step") == "1"
    assert page.get_by_label("format").locator("option").all_inner_texts() == ["compact", "objects"]
    factor.fill("2.5")
    page.get_by_label("rounds").fill("2")
    page.get_by_role("textbox", name="numbers").fill("[4, 8]")
    visitor.ask()
    assert json.loads(visitor.card("numbers").locator("pre").first.inner_text()) == [25, 50]
    asked = {"factor": 2.5, "rounds": 2, "format": "objects"}
    assert visitor.asked[-1]["parameters"] == asked
    page.get_by_label("rounds").fill("7")
    visitor.ask()
    expect(visitor.card("numbers").locator(".hint")).to_contain_text("a whole number from 1 to 3")
    page.get_by_role("textbox", name="numbers").fill("[4, ")
    before = len(visitor.asked)
    visitor.ask()
    expect(page.locator("#refusal")).to_contain_text("is not JSON")
    expect(page.get_by_role("textbox", name="numbers")).to_be_focused()
    assert len(visitor.asked) == before


def test_two_texts_have_a_cosine(visitor: Visitor) -> None:
    visitor.choose("embed").page.locator("#text").fill("a cat sat")
    card = visitor.ask().card("embed")
    assert "26 numbers" in card.inner_text()
    card.get_by_label("Second text").fill("a tall hat")
    card.get_by_role("button", name="Compare").click()
    first, second = ([t.count(chr(97 + n)) for n in range(26)] for t in ("a cat sat", "a tall hat"))
    expected = np.dot(first, second) / np.linalg.norm(first) / np.linalg.norm(second)
    assert float(card.locator(".cosine strong").inner_text()) == pytest.approx(expected, abs=1e-4)


def test_two_masks_are_filled_in_apart(visitor: Visitor) -> None:
    visitor.choose("bert_base")
    visitor.page.locator("#text").fill("There are [MASK] cats and [MASK] dogs.")
    card = visitor.ask().card("bert_base")
    assert card.locator(".sentence").inner_text() == "There are many cats and many dogs."
    assert [len(each.locator("li").all()) for each in card.locator(".bars").all()] == [5, 5]
    second = card.locator(".bars").nth(1).locator("li").nth(1)
    second.click()
    word = second.locator(".label").inner_text()
    assert card.locator("mark").all_inner_texts() == ["many", word]


def test_samples_and_the_camera_give_pictures(visitor: Visitor) -> None:
    page = visitor.choose("resnet").page
    page.get_by_role("button", name="Sample picture 1").click()
    visitor.card("resnet")
    page.get_by_role("button", name="Camera").click()
    page.get_by_role("button", name="Take the picture").click()
    expect(page.locator("#picture-note")).to_contain_text("camera.jpg")
    visitor.card("resnet")
    sample, taken = (one["payload"]["img"] for one in visitor.asked)
    assert sample != taken
    assert taken.startswith("/9j/")  # a JPEG
    expect(page.locator("#camera-dialog")).to_be_hidden()


def test_a_picture_can_be_pasted(visitor: Visitor) -> None:
    visitor.choose("resnet").page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
          document.body.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
        }""",
        list(SMALL),
    )
    visitor.card("resnet")
    expect(visitor.page.locator("#picture-note")).to_contain_text("pasted.png")


def code(card: Locator, language: str) -> str:
    card.get_by_role("tab", name=language).click()
    return card.locator(".code code").inner_text()


def run(language: str, source: str, folder: Path) -> Any:
    """Run what the page shows, as someone does who pasted it into a file."""
    commands = {
        "curl": ["sh", "-c", source],
        "Python": [sys.executable, "-c", source],
        "boto3": [sys.executable, "-c", source],
        "JavaScript": ["node", "--input-type=module", "-e", source],
    }
    done = subprocess.run(
        commands[language], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LANGUAGES = ["curl", "Python", "boto3", "JavaScript"]


@pytest.mark.parametrize("kind", ["picture", "text", "numbers"])
def test_the_code_asks_the_same(visitor: Visitor, tmp_path: Path, kind: str) -> None:
    name = "it's a $(cup) of %s.png"
    (tmp_path / name).write_bytes(COFFEE.read_bytes())
    if kind == "picture":
        visitor.choose("yolov5").upload(name, COFFEE.read_bytes())
        card = visitor.card("yolov5")
        card.get_by_role("slider").fill("0.85")
    elif kind == "text":
        visitor.choose("embed").page.locator("#text").fill('it\'s "a" \\ cat\n$(ls) é 🐈 %s')
        card = visitor.ask().card("embed")
    else:
        visitor.choose("numbers").page.get_by_text("Parameters of").click()
        visitor.page.get_by_label("factor").fill("3")
        card = visitor.ask().card("numbers")
    card.get_by_text("The same request in code").click()
    for language in LANGUAGES:
        if language == "JavaScript" and shutil.which("node") is None:
            continue
        printed = run(language, code(card, language), tmp_path)
        if kind == "picture":
            assert "car" in printed, language
            assert "person" not in printed, language  # it is less sure than the slider asks for
        elif kind == "text":
            counts = visitor.asked[-1]["payload"]["text"].lower().count
            assert f"{counts('a')}" in printed, language
            if language != "JavaScript":  # which does not print long lists whole
                numbers = [counts(chr(97 + n)) for n in range(26)]
                assert json.loads(printed.replace("'", '"'))["result"] == numbers, language
        else:
            assert all(one in printed for one in ("numbers", "3", "6")), language


def test_code_is_copied(visitor: Visitor) -> None:
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card = visitor.choose("numbers").ask().card("numbers")
    card.get_by_text("The same request in code").click()
    card.get_by_role("button", name="Copy").click()
    expect(card.get_by_text("Copied")).to_be_visible()
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    assert copied == card.locator(".code code").inner_text()


def test_the_slider_s_boxes_are_those_that_the_server_gives_for_it(
    visitor: Visitor, site: Endpoint
) -> None:
    visitor.choose("yolov5").upload("coffee.png", COFFEE.read_bytes())
    card = visitor.card("yolov5")
    for threshold in (0.1, 0.5, 0.8):
        card.get_by_role("slider").fill(str(threshold))
        shown = [text.split()[0] for text in card.locator(".found li").all_inner_texts()]
        body = {**visitor.asked[0], "parameters": {"confidence": threshold, "format": "objects"}}
        result = site.ask(**body).json["result"]
        assert shown == [one["label"] for one in result]
        assert len(shown) == sum(score >= threshold for _, score, *_ in FOUND)


def test_a_size_has_the_unit_that_shows_it(visitor: Visitor) -> None:
    sizes = visitor.page.evaluate(
        "async (given) => given.map((await import('/page/api.js')).size)",
        [0, 1023, 1024, 2345, 2**20, 200 * 2**20, 3 * 2**30],
    )
    assert sizes == ["0 bytes", "1023 bytes", "1.0 KiB", "2.3 KiB", "1.0 MiB", "200.0 MiB", "3.0 GiB"]  # fmt: skip  # noqa: E501


def test_the_tab_in_the_address_is_shown(visitor: Visitor) -> None:
    visitor.page.goto(f"{visitor.address}#models")
    visitor.page.reload()
    expect(visitor.page.locator("#models")).to_be_visible()
    visitor.page.get_by_role("tab", name="Try").click()
    expect(visitor.page.locator("#choices .choice").first).to_be_visible()
