"""Bad input, failing models, and a server that goes away, on the page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Endpoint
from tests.end_to_end.page.conftest import APPLICATION
from tests.support.browsing import COFFEE, HOSTILE_LABEL, HOSTILE_NAME, Visitor
from tests.support.front import front

pytestmark = pytest.mark.slow

INPUT = {"name": "A", "datatype": "FP32", "shape": [-1, 2]}
SCRIPTED = b"""<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="alert(4)">
<script>alert(5)</script><image href="x" onerror="alert(6)"/></svg>"""


def test_a_file_of_200_mb_is_refused_before_it_is_sent(visitor: Visitor) -> None:
    visitor.choose("resnet").drop("huge.jpg", "image/jpeg", 200)
    refusal = visitor.page.locator("#refusal")
    # A body may have 25 MiB; base64 makes four bytes of three.
    expect(refusal).to_contain_text(
        "“huge.jpg” has 200.0 MiB; the server takes pictures of at most 18.7 MiB"
    )
    expect(refusal).to_contain_text("MODEL_SERVER_MAX_BODY_MB (now 25)")
    assert not visitor.sent
    visitor.upload("coffee.png", COFFEE.read_bytes())
    visitor.card("resnet")
    expect(refusal).to_be_hidden()


def test_the_largest_picture_that_the_page_takes_is_one_that_the_server_takes(
    visitor: Visitor,
) -> None:
    visitor.choose("resnet").drop("large.jpg", "image/jpeg", 18)
    error = visitor.card("resnet").locator(".error")
    expect(error).to_contain_text("400 bad_payload")  # 18 MiB of zeros arrived, and are no picture


def test_a_text_in_the_name_of_a_picture(visitor: Visitor) -> None:
    visitor.choose("resnet").upload("notes.jpg", b"Dear diary, " * 20, "image/jpeg")
    expect(visitor.page.locator("#picture-note")).to_contain_text("cannot show “notes.jpg”")
    error = visitor.card("resnet").locator(".error")
    expect(error).to_contain_text("400 bad_payload")
    expect(error.locator(".hint")).to_contain_text("JPEG, PNG, WebP, BMP or GIF")


def test_a_drawing_with_a_script_runs_nothing(visitor: Visitor) -> None:
    visitor.choose("resnet").upload("drawing.svg", SCRIPTED, "image/svg+xml")
    expect(visitor.card("resnet").locator(".error")).to_contain_text("400 bad_payload")
    expect(visitor.page.locator("#preview")).to_be_visible()  # as a picture, in which none runs


def test_nothing_is_no_picture(visitor: Visitor) -> None:
    visitor.choose("resnet").upload("empty.png", b"")
    expect(visitor.page.locator("#refusal")).to_contain_text("“empty.png” is empty")
    assert not visitor.sent


def test_a_model_that_fails_leaves_the_others_their_answers(visitor: Visitor) -> None:
    visitor.choose("fails", "embed").ask()
    error = visitor.card("fails").locator(".error")
    assert error.locator(".message").inner_text() == "it fell over"
    assert error.locator(".hint").inner_text() == "stand it up again"
    facts = error.locator(".facts").inner_text()
    assert "502 model_failed" in facts
    assert "request " in facts  # by which the log is searched
    assert "26 numbers" in visitor.card("embed").inner_text()
    expect(visitor.page.locator("#said")).to_have_text("1 of 2 requests failed")


def test_a_request_can_be_cancelled(visitor: Visitor) -> None:
    visitor.choose("sleeps").ask()
    visitor.page.get_by_role("button", name="Cancel").click()
    expect(visitor.card("sleeps")).to_contain_text("Cancelled.")


def test_names_and_labels_are_never_html(visitor: Visitor) -> None:
    page = visitor.choose(HOSTILE_NAME).page
    page.get_by_text("Parameters of").click()
    card = visitor.ask().card(HOSTILE_NAME)
    assert card.locator("h2").inner_text() == HOSTILE_NAME
    assert card.locator(".bars .label").inner_text() == HOSTILE_LABEL
    card.get_by_text("The same request in code").click()
    card.get_by_text("The answer as JSON").click()
    elements = "(one) => document.querySelectorAll(one).length"
    assert page.evaluate(elements, "script") == 1
    assert page.evaluate(elements, "[onclick], [onerror], img[src=x]") == 0


def test_two_tabs_do_not_mix_their_answers(visitor: Visitor, site: Endpoint) -> None:
    other = Visitor(visitor.page.context.new_page(), site).open()
    visitor.choose("embed").page.locator("#text").fill("aaa")
    other.choose("numbers")
    visitor.ask()
    other.ask()
    assert "26 numbers" in visitor.card("embed").inner_text()
    assert "2,\n  4" in other.card("numbers").inner_text()
    assert not other.wrong


def test_a_server_that_goes_away_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with front(tmp_path, APPLICATION) as endpoint:
        visitor = Visitor(browser.new_page(), endpoint).open()
        visitor.choose("embed").ask().card("embed")
    visitor.ask()
    error = visitor.card("embed").locator(".error")
    expect(error).to_contain_text("the server does not answer")
    expect(error).not_to_contain_text("again")  # the visitor decides
    expect(visitor.page.locator("#banner")).to_contain_text("tries again by itself")
    again = tmp_path / "again"
    again.mkdir()
    with front(again, APPLICATION, SAGEMAKER_BIND_TO_PORT=str(endpoint.port)):
        expect(visitor.page.locator("#banner")).to_be_empty()
        expect(visitor.page.locator("#said")).to_have_text("The server answers again.")
        assert "26 numbers" in visitor.ask().card("embed").inner_text()
    visitor.page.close()
    assert not visitor.wrong


@pytest.mark.parametrize(
    ("path", "asked", "there"),
    [
        ("", "models", "#choices .choice"),
        ("#models", "health", "#models .model"),
        ("docs", "openapi.json", "#swagger-ui .opblock"),
        ("", "v2/models/add", ".tensor"),
    ],
)
def test_what_is_opened_while_the_server_is_away_mends_itself(
    browser: Browser, site: Endpoint, path: str, asked: str, there: str
) -> None:
    page = browser.new_page()
    visitor = Visitor(page, site)
    page.route(f"**/{asked}", lambda route: route.abort())
    page.goto(visitor.address + path)
    if asked == "v2/models/add":
        page.locator("#choices [data-name=add]").click()
    error = page.locator(".error").first
    expect(error).to_contain_text("the server does not answer")
    expect(error).to_contain_text("tries again by itself")
    page.unroute(f"**/{asked}")
    if there == ".tensor":  # which this Triton, a dictionary, does not describe
        page.route(f"**/{asked}", lambda route: route.fulfill(json={"inputs": [INPUT]}))
    page.locator(there).first.wait_for()
    expect(page.locator(".error")).to_have_count(0)
    page.close()
    assert not visitor.wrong


def test_the_second_tab_is_there_when_the_network_is_gone(visitor: Visitor) -> None:
    page = visitor.page
    page.context.set_offline(True)
    page.get_by_role("tab", name="Models").click()
    expect(page.locator("#models .notice")).to_contain_text("tries again by itself")
    page.context.set_offline(False)
    page.locator("#models .model").first.wait_for()


@pytest.fixture
def guarded(browser: Browser, tmp_path: Path) -> Iterator[Endpoint]:
    keys = tmp_path / "keys"
    keys.write_text(f"inference shop {hashlib.sha256(b'the-secret').hexdigest()}\n")
    folder = tmp_path / "run"
    folder.mkdir()
    with front(folder, APPLICATION, API_KEYS_FILE=str(keys), PAGE="on") as endpoint:
        yield endpoint


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, guarded: Endpoint) -> None:
    page = browser.new_page()
    visitor = Visitor(page, guarded)
    page.goto(visitor.address)
    expect(page.locator("#banner")).to_contain_text("needs an API key")
    assert not page.locator(".error").all()
    assert not page.locator("main section:visible").all()
    for key in ("wrong", "the-secret"):
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Use").click()
    page.locator("#choices .choice").first.wait_for()
    card = visitor.choose("embed").ask().card("embed")
    card.get_by_text("The same request in code").click()
    assert "x-api-key: YOUR_KEY" in card.locator(".code code").inner_text()
    kept = page.evaluate(
        "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
    )
    assert "the-secret" not in kept
    assert "the-secret" not in page.content()
    page.reload()
    expect(page.locator("#banner")).to_contain_text("needs an API key")
    page.close()
    assert not visitor.wrong
