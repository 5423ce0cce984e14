"""The tab with the models and their load, and what a key for management does there."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from prometheus_client.parser import text_string_to_metric_families

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


def tile(page: Page, name: str) -> str:
    return page.locator(f".tile[data-figure={name}] .value").inner_text()


def test_the_models_and_their_load_are_shown(visitor: Visitor, site: Endpoint) -> None:
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
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.05):
            site.ask(modelname="numbers", payload={"numbers": [1]})
            site.ask(modelname="fails", payload={"text": "a"})

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        row = model(page, "numbers")
        wait_for(lambda: figure(row, "Requests/s") not in ("–", "0"), 15, "requests per second")
        assert 0 < float(figure(row, "Requests/s")) < 25
        assert figure(row, "Median").endswith(" ms")
        assert figure(row, "Errors/s") == "0"
        assert float(figure(model(page, "fails"), "Errors/s")) > 0  # 502
        assert figure(model(page, "fails"), "Median") == "–"  # of answers alone
        assert float(tile(page, "rate")) > float(figure(row, "Requests/s"))
        assert figure(model(page, "resnet"), "Requests/s") == "0"
    finally:
        over.set()
        asking.join()


# What the parts do with texts and numbers.


def computed(visitor: Visitor, code: str, given: Any) -> Any:
    """Return what code says that has the module in `load`, and what it is given in `given`."""
    return visitor.page.evaluate(
        f"async (given) => {{ const load = await import('/page/load.js'); {code} }}", given
    )


@pytest.mark.slow
def test_the_text_of_prometheus_is_read_as_its_own_library_reads_it(
    visitor: Visitor, site: Endpoint
) -> None:
    site.ask(modelname="numbers", payload={"numbers": [1]})
    text = site.call("/metrics").body.decode() + (
        '# TYPE odd gauge\nodd{a="}, b=\\"x\\" \\\\ \\n end",b=""} 1e3\nodd{a="{}"} +Inf\n'
        'odd{a="<b>"} -1.5 1700000000000\n'
    )
    expected = [
        [sample.name, sample.labels, sample.value]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    found = computed(
        visitor,
        "return load.parse(given).map((o) => [o.name, Object.fromEntries(o.labels), o.value]);",
        text,
    )
    assert found == expected
    assert len(found) > 50


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_quantile_is_estimated_as_prometheus_does(visitor: Visitor, share: float) -> None:
    limits = [0.005, 0.01, 0.025, 0.05, 0.1]
    for counts in ([4, 10, 10, 2, 1], [0, 0, 5, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 7]):
        below = np.cumsum(counts)
        buckets = [*map(list, zip(limits, map(int, below), strict=True)), [1e999, int(below[-1])]]
        # A straight line through the corners of each bucket that has something in it.
        corners = [(0.0, 0.0)] + [
            corner
            for low, high, start, end in zip(
                [0.0, *limits], limits, [0, *below], below, strict=False
            )
            if end > start
            for corner in ((start, low), (end, high))
        ]
        x, y = zip(*corners, strict=True)
        wanted = np.interp(share * below[-1], x, y)
        buckets[-1][0] = "Infinity"
        found = computed(
            visitor,
            "return load.quantile(given[0], given[1].map(([a, b]) => [Number(a), b]));",
            [share, buckets],
        )
        assert found == pytest.approx(wanted)
    # Above the last limit nothing more is known, and of nothing there is no quantile.
    for counts, wanted in (([[0.1, 0], ["Infinity", 5]], 0.1), ([[0.1, 0], ["Infinity", 0]], None)):
        code = "return load.quantile(0.5, given.map(([a, b]) => [Number(a), b]));"
        assert computed(visitor, code, counts) == wanted


@pytest.mark.slow
def test_counts_that_begin_again_are_a_gap_and_no_load(visitor: Visitor) -> None:
    def text(count: int, status: int = 200) -> str:
        labels = f'model="m",status="{status}"'
        return "".join(
            f'dispatcher_request_seconds_bucket{{{labels},le="{limit}"}} {count}\n'
            for limit in ("0.1", "0.2", "+Inf")
        ) + (f"dispatcher_request_seconds_count{{{labels}}} {count}\n")

    reads = [[0, text(0)], [1000, text(10)], [2000, text(30)], [3000, text(5)], [4000, text(6)],
             [20_000, text(50)], [21_000, text(50) + text(3, 429) + text(1, 503)]]  # fmt: skip
    found = computed(
        visitor,
        """const one = new load.Load({ every: 1000, over: 3000, kept: 50 });
        return given.map(([at, text]) => {
          one.add(text, at);
          const now = one.current()?.all;
          return [now?.rate ?? null, now?.p50 ?? null, now?.refused ?? null, one.history("rate")];
        });""",
        reads,
    )
    assert [rate for rate, *_ in found] == [None, 10, 15, None, 1, None, 4]
    assert found[2][1] == pytest.approx(50)  # ms: half of those up to 0.1 s
    assert found[-1][2] == 4
    assert found[-1][3] == [10, 20, None, 1, None, 4]
    assert not math.isnan(found[-1][0])


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
        wait_for(lambda row=row: figure(row, "Memory") != "–", 10, "the memory")
        assert 10 < float(figure(row, "Memory").removesuffix(" MiB")) < 2000
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
        expect(page.locator(".tile[data-figure=rate] .value")).to_have_text("0")
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
    assert not [url for url in seen if url.endswith(("/metrics", "/health"))]
    with page.expect_request("**/metrics"):
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
