"""The page and /docs in a browser, before a container that starts in seconds."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clients.images.drawing import PALETTE
from clients.sound.decoding import make_tone
from tests.conftest import PATIENCE_S, Endpoint
from tests.support.browsing import AXE, COFFEE, HOSTILE_LABEL, HOSTILE_NAME, Visitor, chromium
from tests.support.front import front, key_lines
from tests.support.packages import modules_with
from tests.support.stand_ins import image

pytestmark = pytest.mark.slow
KEY = "the-secret"
APPLICATION = "tests.support.browsing:build()"
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("page"), APPLICATION) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def closed_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One that wants a key."""
    folder = tmp_path_factory.mktemp("closed")
    keys = folder / "keys"
    keys.write_text(key_lines("inference", shop=KEY))
    with front(folder, APPLICATION, API_KEYS_FILE=str(keys), PAGE="on") as endpoint:
        yield endpoint


@contextmanager
def visiting(browser: Browser, site: Endpoint) -> Iterator[Visitor]:
    """A person, for whom nothing may go wrong that is not an answer."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    one = Visitor(context.new_page(), site)
    yield one
    context.close()
    assert not one.wrong
    assert not one.elsewhere


@pytest.fixture
def visitor(browser: Browser, site: Endpoint) -> Iterator[Visitor]:
    """A person with the page open."""
    with visiting(browser, site) as one:
        yield one.open()


SCRIPTED = b"""<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="alert(4)">
<script>alert(5)</script><image href="x" onerror="alert(6)"/></svg>"""


def test_a_picture_is_asked_about_and_its_boxes_are_drawn(visitor: Visitor) -> None:
    visitor.choose("yolov5")
    answer = visitor.upload("coffee.png", COFFEE.read_bytes())
    expect(answer.locator(".box span")).to_have_text(["person 0.600", "car 0.900"])  # best on top
    box, stage = answer.locator(".box").last.bounding_box(), answer.locator(".stage").bounding_box()
    assert box
    assert stage
    # The middle of the letterboxed square is that of the picture; 64 of 640 pixels are a tenth.
    assert box["x"] + box["width"] / 2 - stage["x"] == pytest.approx(stage["width"] / 2, abs=2)
    assert box["y"] + box["height"] / 2 - stage["y"] == pytest.approx(stage["height"] / 2, abs=2)
    assert box["width"] == pytest.approx(stage["width"] / 10, abs=2)
    assert answer.locator(".rows li").all_inner_texts() == ["car\n0.900", "person\n0.600"]
    assert "of them in the server: queue " in answer.locator(".note").first.inner_text()


def test_outlines_and_keypoints_lie_over_the_picture(visitor: Visitor) -> None:
    visitor.choose("shapes")
    answer = visitor.upload("coffee.png", COFFEE.read_bytes())
    polygons, stage = answer.locator(".shapes polygon"), answer.locator(".stage").bounding_box()
    expect(polygons).to_have_count(3)
    expect(answer.locator(".shapes circle")).to_have_count(2)  # of a score of 0.5 or more
    box = polygons.first.bounding_box()
    assert box
    assert stage
    part = stage["width"] / 600
    # The line, of two pixels, is around it, and longer at its ends.
    assert box["x"] - stage["x"] == pytest.approx(60 * part, abs=5)
    assert box["y"] - stage["y"] == pytest.approx(40 * part, abs=5)
    assert box["width"] == pytest.approx(180 * part, abs=10)


def test_masks_and_pictures_are_shown(visitor: Visitor) -> None:
    page = visitor.choose("mask")
    answer = visitor.upload("coffee.png", COFFEE.read_bytes())
    assert answer.locator(".rows li").all_inner_texts() == ["sky\n75.0 %", "class 2\n25.0 %"]
    # The colour in the list is that of the mask's palette.
    swatch = answer.locator(".rows i").last.evaluate("one => one.style.backgroundColor")
    assert [int(part) for part in re.findall(r"\d+", swatch)] == pytest.approx(PALETTE[6:9], abs=2)
    assert len(answer.locator("pre").inner_text()) < 1000  # without the file
    for kind in ("opacity", "picture"):
        page.get_by_label("kind").select_option(kind)
        image = visitor.ask().locator(".stage img")
        assert "data:image/png;base64,iVBORw0KGgo" in image.evaluate("one => one.src")


def test_each_model_s_example_is_there_to_be_asked(visitor: Visitor) -> None:
    visitor.choose("resnet")
    assert len(visitor.ask().locator(".rows li").all()) == 3
    page = visitor.choose("embed")
    page.get_by_label("Text", exact=True).fill("a cat sat")
    assert json.loads(visitor.ask().locator("pre").inner_text())["result"][:3] == [3, 0, 1]
    visitor.choose("bert_base")
    assert visitor.ask().locator(".rows li").all()


def test_parameters_and_other_fields_are_sent(visitor: Visitor) -> None:
    page = visitor.choose("numbers")
    factor = page.get_by_label("factor")
    assert [factor.get_attribute(name) for name in ("type", "min", "max", "step", "value")] == [
        *("number", "0", "10", "any", None)
    ]
    assert page.get_by_label("rounds").get_attribute("step") == "1"
    assert page.get_by_label("format").locator("option").all_inner_texts() == ["compact", "objects"]
    factor.fill("2.5")
    page.get_by_label("rounds").fill("2")
    page.get_by_label("Other fields").fill('{"payload": {"numbers": [4, 8]}}')
    assert json.loads(visitor.ask().locator("pre").inner_text())["result"] == [25, 50]
    assert json.loads(visitor.asked[-1] or "") == {
        "modelname": "numbers",
        "parameters": {"factor": 2.5, "rounds": 2, "format": "objects"},
        "payload": {"numbers": [4, 8]},
    }
    page.get_by_label("Other fields").fill("[4, ")
    page.locator("#submit").click()
    expect(page.locator("#refusal")).to_contain_text("not JSON")
    assert len(visitor.asked) == 1


def test_a_row_is_filled_in_by_its_columns(visitor: Visitor) -> None:
    """An empty field is a missing value."""
    page = visitor.choose("flat")
    age = page.get_by_label("age")
    assert [age.get_attribute("type"), age.input_value()] == ["number", "30"]
    age.fill("31.5")
    page.get_by_label("city").fill("5")
    page.get_by_label("debt").fill("")
    visitor.ask()
    assert json.loads(visitor.asked[-1] or "")["payload"] == {
        "age": 31.5, "city": "5", "debt": None,
    }  # fmt: skip
    visitor.choose("numbers")
    expect(page.get_by_label("city")).to_have_count(0)


def test_declared_fields_are_filled_in_one_by_one(visitor: Visitor) -> None:
    """One that is left empty is not sent."""
    page = visitor.choose("declared")
    words, kind, limit, name = (
        page.get_by_label(one) for one in ("words", "kind", "limit", "name")
    )
    shown = [one.input_value() for one in (words, kind, limit, name)]
    assert shown == ['["a"]', "short", "5", ""]
    assert kind.locator("option").all_inner_texts() == ["", "long", "short"]
    kind.select_option("long")
    limit.fill("7")
    visitor.ask()
    filled = {"words": ["a"], "kind": "long", "limit": 7}
    assert json.loads(visitor.asked[-1] or "")["payload"] == filled
    name.fill("x")
    assert json.loads(visitor.ask().locator("pre").inner_text())["result"] == {
        **filled,
        "name": "x",
    }
    words.fill("[1]")
    expect(visitor.ask().locator(".error")).to_contain_text("Expected `str`, got `int`")
    words.fill("one")
    page.locator("#submit").click()
    expect(page.locator("#refusal")).to_contain_text("not JSON")


def test_a_model_without_a_class_takes_tensors(visitor: Visitor) -> None:
    described = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 2]}]}
    visitor.page.route("**/v2/models/add", lambda route: route.fulfill(json=described))
    page = visitor.choose("add")
    expect(page.get_by_label("Other fields")).to_have_value(re.compile('"data"'))
    visitor.ask()
    tensor = {"name": "A", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]}
    asked = json.loads(visitor.asked[-1] or "")
    assert asked == {"modelname": "add", "inputs": [tensor], "parameters": {}}


def test_an_error_is_shown_with_its_hint_and_id(visitor: Visitor) -> None:
    visitor.choose("fails")
    error = visitor.ask().locator(".error")
    assert error.locator(".message").inner_text() == "it fell over"
    assert error.locator(".hint").inner_text() == "stand it up again"
    assert re.match(r"502 model_failed request \w+", error.locator(".note").inner_text())


def test_names_labels_and_drawings_are_never_html(visitor: Visitor) -> None:
    page = visitor.choose(HOSTILE_NAME)
    assert HOSTILE_LABEL in visitor.ask().locator(".rows li").inner_text()
    visitor.choose("resnet")
    error = visitor.upload("drawing.svg", SCRIPTED, "image/svg+xml").locator(".error")
    expect(error).to_contain_text("400 bad_payload")
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    assert page.evaluate("document.querySelectorAll('[onclick], [onerror]').length") == 0


def test_a_file_of_200_mb_is_refused_before_it_is_sent(visitor: Visitor) -> None:
    page = visitor.choose("resnet")
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(200 * 2 ** 20)], "huge.jpg"));
          const how = { dataTransfer: transfer, bubbles: true, cancelable: true };
          document.body.dispatchEvent(new DragEvent("drop", how));
        }"""
    )
    # A body may have 25 MiB; base64 makes four bytes of three.
    expect(page.locator("#refusal")).to_have_text(
        "“huge.jpg” has 200.0 MiB; the server takes pictures of at most 18.7 MiB here."
    )
    assert not visitor.asked


def test_a_sound_is_chosen_or_recorded(visitor: Visitor) -> None:
    page = visitor.choose("listens")
    assert "0.25" in visitor.ask().inner_text()  # of its example
    content = base64.b64decode(make_tone(seconds=0.5))
    page.get_by_label("File").set_input_files(
        {"name": "tone.wav", "mimeType": "audio/wav", "buffer": content}
    )
    expect(page.locator("#answer pre")).to_contain_text('"seconds": 0.5')
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#file-note")).to_contain_text(re.compile("[1-9] s"))  # with a beep in it
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#file-note")).to_have_text("recording.wav")
    expect(page.locator("#answer pre")).to_contain_text('"silent": false')
    expect(page.locator("#answer pre")).not_to_contain_text('"seconds": 0,')


def test_a_picture_can_be_pasted(visitor: Visitor) -> None:
    visitor.choose("resnet").evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
          document.body.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
        }""",
        list(base64.b64decode(image([255, 0, 0]))),
    )
    assert visitor.answer().locator(".rows li").all()
    expect(visitor.page.locator("#picture-note")).to_have_text("pasted.png")


def test_a_server_that_is_away_is_said(visitor: Visitor) -> None:
    visitor.choose("embed").route("**/invocations", lambda route: route.abort())
    expect(visitor.ask().locator(".error")).to_contain_text("the server does not answer")
    visitor.page.unroute("**/invocations")
    assert visitor.ask().locator("pre").all()


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, closed_site: Endpoint) -> None:
    with visiting(browser, closed_site) as visitor:
        page = visitor.page
        page.goto(visitor.address)
        expect(page.locator("#banner")).to_contain_text("needs an API key")
        for key, shown in (("wrong", "401 unauthorized"), (KEY, "")):
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Use").click()
            expect(page.locator("#banner")).to_contain_text(shown)
        page.locator("#ask").wait_for()
        visitor.choose("embed")
        assert not visitor.ask().locator(".error").all()
        stored = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        assert KEY not in page.evaluate(stored) + page.content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_rule_of_axe_is_broken_and_all_fits(
    browser: Browser, site: Endpoint, width: int, scheme: Any
) -> None:
    script = (modules_with(AXE) / "node_modules" / "axe-core" / "axe.min.js").read_text()
    context = browser.new_context(
        viewport={"width": width, "height": 740}, color_scheme=scheme, bypass_csp=True
    )
    visitor = Visitor(context.new_page(), site).open()
    page = visitor.page
    for name in ("yolov5", "embed", "fails", "numbers", HOSTILE_NAME):
        visitor.choose(name)
        if name == "yolov5":
            visitor.upload("a-very-long-name-of-a-picture" * 8 + ".png", COFFEE.read_bytes())
        visitor.ask()
        page.evaluate(script)
        found = page.evaluate("axe.run()")
        assert len(found["passes"]) > 15  # it has looked
        assert not [(one["id"], one["nodes"][0]["failureSummary"]) for one in found["violations"]]
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1]
    context.close()


@pytest.fixture
def reader(browser: Browser, site: Endpoint) -> Any:
    """A person who reads /docs, for whom nothing may go wrong that is not an answer."""
    with visiting(browser, site) as one:
        one.page.goto(f"{one.address}docs")
        yield one


def opened(page: Page, operation: str) -> Locator:
    """Open a route."""
    block = page.locator(f"#operations-default-{operation}")
    block.locator(".opblock-summary-control").click()
    return block


def sent(block: Locator) -> str:
    """Send the request; return the body of its answer as it is shown."""
    answer = block.locator(".live-responses-table tbody")
    if answer.is_visible():
        block.get_by_role("button", name="Clear").click()
    block.get_by_role("button", name="Execute").click()
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    return answer.locator(".highlight-code code").first.inner_text()


def test_an_example_is_sent_and_its_answer_shown(reader: Visitor, site: Endpoint) -> None:
    block = opened(reader.page, "invoke")
    for name in ("yolov5.1", "img_src_x_onerror_alert_1.1"):
        block.locator(".examples-select-element").first.select_option(name)
        asked = json.loads(block.locator("textarea.body-param__text").input_value())
        shown = json.loads(sent(block))
        assert shown == site.ask(**asked).json
    assert HOSTILE_LABEL in shown["result"][0]["label"]
    assert len(reader.page.locator("script").all()) == 2
    assert not reader.page.locator("[onclick], [onerror], img[src=x]").all()
    assert "server-timing: queue;dur=" in block.locator(".live-responses-table").inner_text()


def test_a_key_is_asked_for_and_sent_with_each_request(
    browser: Browser, closed_site: Endpoint
) -> None:
    with visiting(browser, closed_site) as visitor:
        page = visitor.page
        page.goto(f"{visitor.address}docs")
        expect(page.locator("#banner")).to_contain_text("needs an API key")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use").click()
        block = opened(page, "list_models")
        assert "embed" in sent(block)
        kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert KEY not in kept


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
            for name in content.get("examples", {}):
                example = described["components"]["examples"].get(name, content["examples"][name])
                schema = {**content["schema"], "components": described["components"]}
                jsonschema.Draft202012Validator(schema).validate(example["value"])
                count += 1
    assert count >= 12
