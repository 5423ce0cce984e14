"""The page on a phone, in the dark, and for a screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Endpoint
from tests.support.browsing import COFFEE, HOSTILE_NAME, Visitor, axe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe(tmp_path_factory.mktemp("axe"))


WIDTHS = {"phone": 360, "desk": 1280}


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=WIDTHS)
def viewed(
    browser: Browser, site: Endpoint, scheme: Any, request: pytest.FixtureRequest
) -> Iterator[Visitor]:
    context = browser.new_context(
        viewport={"width": WIDTHS[request.param], "height": 740},
        color_scheme=scheme,
        has_touch=request.param == "phone",
        bypass_csp=True,  # axe-core is a script that the page does not allow
    )
    yield Visitor(context.new_page(), site).open()
    context.close()


def broken_rules(visitor: Visitor, script: str) -> list[Any]:
    visitor.page.evaluate(script)
    found = visitor.page.evaluate("axe.run()")
    assert len(found["passes"]) > 20  # it has looked
    return [
        (one["id"], [node["target"] for node in one["nodes"]], one["nodes"][0]["failureSummary"])
        for one in found["violations"]
    ]


def test_no_rule_of_axe_is_broken(viewed: Visitor, script: str) -> None:
    assert not broken_rules(viewed, script)
    page = viewed.page
    viewed.choose("yolov5", "resnet", "bert_base", "embed", "fails", "numbers", "add")
    page.locator(".tensors .error, .tensor").first.wait_for()
    viewed.choose("yolov5", "resnet", "bert_base", "embed", "fails", "numbers")
    for details in page.get_by_text("Parameters of").all():
        details.click()
    viewed.upload("coffee.png", COFFEE.read_bytes())
    for name in ("yolov5", "resnet", "bert_base", "embed", "fails", "numbers"):
        viewed.card(name)
    for details in page.get_by_text("The same request in code").all():
        details.click()
    page.locator("#text").fill("A world of [MASK] people.")
    assert not broken_rules(viewed, script)


def test_nothing_is_wider_than_the_screen(viewed: Visitor) -> None:
    page = viewed.page
    names = ("yolov5", "resnet", "bert_base", "embed", "fails", "numbers", HOSTILE_NAME)
    viewed.choose(*names)
    viewed.upload("a-very-long-name-of-a-picture" * 8 + ".png", COFFEE.read_bytes())
    for name in names:
        viewed.card(name)
    for details in page.locator("summary").all():
        details.click()
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]


def test_a_finger_is_wide(browser: Browser, site: Endpoint) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    viewed = Visitor(context.new_page(), site).open()
    for button in viewed.page.locator("#try button:visible, label.choice, label.button").all():
        box = button.bounding_box()
        assert box
        assert box["height"] >= 44, button.inner_text()
    context.close()


def test_answers_are_said(visitor: Visitor) -> None:
    page = visitor.choose("embed").page
    expect(page.locator("#said")).to_have_attribute("role", "status")
    visitor.ask().card("embed")
    expect(page.locator("#said")).to_have_text("The answer is there")
    card = visitor.card("embed")
    assert card.get_by_role("img").first.get_attribute("aria-label") == "The vector of the text"
