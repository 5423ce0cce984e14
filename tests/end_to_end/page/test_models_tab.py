"""The tab with the models, and what a key for management does there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import Endpoint, running, wait_for
from tests.end_to_end.page.conftest import APPLICATION
from tests.support.browsing import HOSTILE_NAME, Visitor, axe
from tests.support.front import front

INFERENCE, MANAGEMENT = "a-key-for-asking", "a-key-for-managing"


def models_of(visitor: Visitor) -> Page:
    """Go to the tab; return its page when the models are there."""
    page = visitor.page
    page.get_by_role("tab", name="Models").click()
    page.locator("#models .model").first.wait_for()
    return page


def model(page: Page, name: str) -> Locator:
    return page.locator(f"#models li[data-name={json.dumps(name)}]")


def figure(place: Locator, name: str) -> str:
    """Return what is shown below a name."""
    return place.locator(f"dt:text-is('{name}') + dd").inner_text()


def test_the_models_are_shown(visitor: Visitor) -> None:
    page = models_of(visitor)
    for name in ("resnet", "yolov5", "bert_base", "numbers"):
        row = model(page, name)
        expect(row.locator(".state")).to_have_text("READY")
        assert row.get_by_role("heading").inner_text() == name
    assert model(page, HOSTILE_NAME).get_by_role("heading").inner_text() == HOSTILE_NAME
    assert (
        page.evaluate("document.querySelectorAll('[onerror], [onclick], img[src=x]').length") == 0
    )
    twice = model(page, "twice")
    assert "a class on the model numbers" in twice.locator(".model-head").inner_text()
    assert not twice.get_by_role("button").all()


# On the whole container.


@pytest.fixture(scope="module")
def guarded(models: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    keys.write_text(
        "".join(
            f"{scope} {scope} {hashlib.sha256(key.encode()).hexdigest()}\n"
            for scope, key in (("inference", INFERENCE), ("management", MANAGEMENT))
        )
    )
    with running(folder, API_KEYS_FILE=str(keys), PAGE="on") as endpoint:
        wait_for(lambda: endpoint.call("/ping").status == 200, 60, "the models")
        yield endpoint


def use_key(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use").click()


@pytest.mark.slow
def test_a_key_for_management_loads_unloads_and_reloads(
    browser: Browser, guarded: Endpoint
) -> None:
    visitor = Visitor(browser.new_page(viewport={"width": 1280, "height": 900}), guarded)
    page = visitor.page
    page.goto(f"{visitor.address}#models")
    notice = page.locator("#models .notice")
    expect(page.locator("#banner")).to_contain_text("needs an API key")
    use_key(page, "not-a-key")
    expect(notice).to_contain_text("401 ")
    use_key(page, INFERENCE)
    page.locator("#models .model").first.wait_for()
    expect(notice).to_be_empty()
    assert page.locator("#models .model h3").all_inner_texts() == ["bert_base", "resnet", "yolov5"]
    assert page.locator("#models .ready").inner_text().startswith("Ready. Triton running")

    listed = {
        one["modelName"]: one
        for one in guarded.call("/models", headers={"x-api-key": INFERENCE}).json["models"]
    }
    names = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
    for name, one in listed.items():
        row = model(page, name)
        expect(row.locator(".state")).to_have_text("READY")
        assert figure(row, "Engine").startswith(f"{names[one['engine']]}, {one['precision']}")
        assert figure(row, "Last probe").startswith("answered ")
        row.get_by_text("More").click()
        assert figure(row, "Folder") == one["modelUrl"]
        assert figure(row, "Weights") == one["weights"]

    # The server's own words where the key is for something else.
    row = model(page, "resnet")
    row.get_by_role("button", name="Reload").click()
    expect(row.locator(".error")).to_contain_text("the key of 'inference' is for inference")
    expect(row.locator(".error .hint")).to_have_text("this route needs a key for management")

    use_key(page, MANAGEMENT)
    row.get_by_role("button", name="Reload").click()
    expect(row.locator(".said")).to_contain_text("resnet was loaded again.")
    row.get_by_role("button", name="Unload").click()
    expect(row.get_by_role("button", name="Yes, unload resnet")).to_be_focused()
    row.get_by_role("button", name="Keep").click()
    expect(row.get_by_role("button", name="Unload resnet", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    available = page.locator("#models .available li[data-name=resnet]")
    expect(available.get_by_role("button", name="Load resnet")).to_be_focused()
    expect(page.locator("#models .live-head")).to_contain_text("resnet was unloaded.")
    assert page.locator("#models .model h3").all_inner_texts() == ["bert_base", "yolov5"]
    asked = guarded.call("/models/resnet", headers={"x-api-key": MANAGEMENT})
    assert asked.status == 404
    expect(page.locator("#models .ready")).to_contain_text("the required model 'resnet'")
    available.get_by_role("button", name="Load").click()
    expect(page.locator("#models .model h3")).to_have_text(["bert_base", "resnet", "yolov5"])
    expect(page.locator("#models .ready")).to_contain_text("Ready. ")

    load_from_nowhere(page)
    page.close()
    assert not visitor.wrong
    assert not visitor.elsewhere


def load_from_nowhere(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("mine")
    page.get_by_label("Folder in the container").fill("/no/such/folder")
    page.get_by_role("button", name="Load", exact=True).click()
    error = page.get_by_role("form", name="Load a model").locator("xpath=..").locator(".error")
    expect(error).to_contain_text("/no/such/folder")
    expect(error).to_contain_text("400 bad_model")
    page.get_by_role("button", name="Reload classes").click()
    expect(page.locator("#models .manage")).to_contain_text("No class is new or changed.")


@pytest.mark.slow
def test_it_goes_on_when_the_server_comes_back(browser: Browser, tmp_path: Path) -> None:
    with front(tmp_path, APPLICATION) as endpoint:
        visitor = Visitor(browser.new_page(), endpoint).open()
        page = models_of(visitor)
    notice, panel = page.locator("#models .notice"), page.locator("#models")
    expect(notice).to_contain_text("the server does not answer")
    expect(notice).to_contain_text("tries again by itself")
    expect(panel).to_have_class("stale")
    expect(page.locator("#models .ready")).to_have_text("What is shown is old.")
    row = model(page, "resnet")
    row.get_by_role("button", name="Reload").click()
    expect(row.locator(".error")).to_contain_text("the server does not answer")
    expect(row.locator(".error")).not_to_contain_text("again")  # which nobody does but the visitor
    again = tmp_path / "again"
    again.mkdir()
    with front(again, APPLICATION, SAGEMAKER_BIND_TO_PORT=str(endpoint.port)):
        expect(notice).to_be_empty()
        expect(panel).not_to_have_class("stale")
        expect(page.locator("#models .live-head")).to_contain_text("The server answers again.")
    page.close()
    assert not visitor.wrong


@pytest.mark.slow
def test_nothing_is_asked_for_while_the_tab_is_not_shown(visitor: Visitor) -> None:
    page = models_of(visitor)
    page.get_by_role("tab", name="Try").click()
    page.wait_for_timeout(500)
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.wait_for_timeout(4500)
    assert not [url for url in seen if url.endswith("/health")]
    with page.expect_request("**/health"):
        page.get_by_role("tab", name="Models").click()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_no_rule_of_axe_is_broken_and_all_fits(
    browser: Browser, site: Endpoint, axe_script: str, scheme: Any, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 740}, color_scheme=scheme, bypass_csp=True
    )
    page = models_of(Visitor(context.new_page(), site).open())
    for more in page.locator("#models summary").all():
        more.click()
    model(page, "numbers").get_by_role("button", name="Unload").click()
    page.get_by_label("Name", exact=True).fill("x" * 200)
    page.get_by_label("Folder in the container").fill("no/path")
    page.get_by_role("button", name="Load", exact=True).click()
    page.locator("#models .error").wait_for()
    page.evaluate(axe_script)
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 20
    assert not [(one["id"], one["nodes"][0]["failureSummary"]) for one in found["violations"]]
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    context.close()


@pytest.fixture(scope="module")
def axe_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe(tmp_path_factory.mktemp("axe"))
