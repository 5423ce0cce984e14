"""/docs: Swagger UI shows the routes, sends an example, and shows its answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import PICTURES, Endpoint
from tests.end_to_end.page.conftest import KEY, visiting
from tests.support.browsing import HOSTILE_LABEL, HOSTILE_NAME, Visitor


@pytest.fixture
def reader(browser: Browser, site: Endpoint) -> Any:
    """A person who reads /docs, for whom nothing may go wrong that is not an answer."""
    with visiting(browser, site) as one:
        one.page.goto(f"{one.address}docs")
        yield one


def opened(page: Page, method: str, path: str) -> Locator:
    """Open a route."""
    block = page.locator(f"#operations-default-{method}_{re.sub(r'[^a-z]', '_', path[1:])}")
    block.locator(".opblock-summary-control").click()
    return block


def execute(block: Locator, status: int = 200) -> Locator:
    """Send the request; return its answer."""
    answer = block.locator(".live-responses-table tbody")
    if answer.is_visible():
        block.get_by_role("button", name="Clear").click()
    block.get_by_role("button", name="Execute").click()
    expect(answer.locator(".response-col_status")).to_contain_text(str(status))
    return answer


def sent(block: Locator, status: int = 200) -> str:
    """Send the request; return the body of its answer as it is shown."""
    return execute(block, status).locator(".highlight-code code").first.inner_text()


def test_an_example_is_sent_and_its_answer_shown(reader: Visitor, site: Endpoint) -> None:
    block = opened(reader.page, "post", "/invocations")
    for name in ("yolov5", HOSTILE_NAME):
        block.locator(".examples-select-element").first.select_option(name)
        asked = json.loads(block.locator("textarea.body-param__text").input_value())
        shown = json.loads(sent(block))
        assert shown == site.ask(**asked).json
    assert HOSTILE_LABEL in shown["result"][0]["label"]
    assert len(reader.page.locator("script").all()) == 2
    assert not reader.page.locator("[onclick], [onerror], img[src=x]").all()
    assert "server-timing: queue;dur=" in block.locator(".live-responses-table").inner_text()


@pytest.mark.slow
def test_a_picture_is_sent_as_a_file_and_one_comes_back(reader: Visitor) -> None:
    block = opened(reader.page, "post", "/infer/{model}")
    block.get_by_placeholder("model", exact=True).fill("yolov5")
    block.get_by_label("Request content type").select_option("image/png")
    block.locator("input[type=file]").set_input_files(PICTURES / "coffee.png")
    assert "result" in json.loads(sent(block))
    block.get_by_label("Media Type").first.select_option("image/png")
    drawn = execute(block).locator("img")
    expect(drawn).to_be_visible()
    assert drawn.evaluate("one => [one.naturalWidth, one.naturalHeight]") == [600, 400]


@pytest.mark.slow
def test_a_key_is_asked_for_and_sent_with_each_request(
    browser: Browser, closed_site: Endpoint
) -> None:
    with visiting(browser, closed_site) as visitor:
        page = visitor.page
        page.goto(f"{visitor.address}docs")
        expect(page.locator("#banner")).to_contain_text("needs an API key")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use").click()
        block = opened(page, "get", "/models")
        assert "embed" in sent(block)
        # The key can be exchanged in the dialog that people know.
        page.get_by_role("button", name="Authorize").first.click()
        page.get_by_role("button", name="Remove authorization").click()
        page.locator("#api_key_value").fill("wrong")
        page.get_by_role("button", name="Apply credentials").first.click()
        page.get_by_role("button", name="Close").first.click()
        assert "unauthorized" in sent(block, 401)
        kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert KEY not in kept


@pytest.mark.slow
def test_the_examples_are_what_their_schemas_say(site: Endpoint) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    described = site.call("/openapi.json").json
    count = 0
    bodies = [
        *described["components"]["requestBodies"].values(),
        *(
            route["requestBody"]
            for methods in described["paths"].values()
            for route in methods.values()
            if "content" in route.get("requestBody", {})
        ),
    ]
    for body in bodies:
        for content in body["content"].values():
            for example in content.get("examples", {}).values():
                schema = {**content["schema"], "components": described["components"]}
                jsonschema.Draft202012Validator(schema).validate(example["value"])
                count += 1
    assert count >= 12
