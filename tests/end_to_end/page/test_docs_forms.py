"""The forms of /docs: a request for each route, its command for curl, and its answer."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import PICTURES, Endpoint, picture
from tests.support.browsing import COFFEE, FOUND, HOSTILE_LABEL, HOSTILE_NAME, Visitor, axe

CHELSEA = PICTURES / "chelsea.png"


@pytest.fixture
def reader(browser: Browser, site: Endpoint) -> Iterator[Visitor]:
    """A person who reads /docs, for whom nothing may go wrong that is not an answer."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    one = Visitor(context.new_page(), site)
    one.page.goto(f"{one.address}docs")
    one.page.get_by_role("button", name="Try it in a form").first.wait_for()
    yield one
    context.close()
    assert not one.wrong
    assert not one.elsewhere


def form(page: Page, method: str, path: str) -> Locator:
    """Open a route; return its form."""
    block = page.locator(f"details[data-path='{path}'][data-method={method.lower()}]")
    if block.get_attribute("open") is None:
        block.locator("> summary").click()
    return block.get_by_role("form", name=f"Try {method} {path}", exact=True)


def sent(trial: Locator, status: int = 200) -> Locator:
    """Send the form; return the place of its answer."""
    trial.get_by_role("button", name=re.compile("^Send ")).click()
    whole = re.compile(rf"^{status} .* · \d+ ms · .*(bytes|KiB|MiB)$")
    expect(trial.locator(".answer-head")).to_have_text(whole)
    return trial.locator(".answer .answer .answer").first


def command(trial: Locator) -> str:
    return trial.get_by_label("The command for curl").inner_text()


def results(lines: str) -> list[Any]:
    """Return status and result of each line; errors have the id of their request as well."""
    read = [json.loads(line) for line in lines.splitlines() if line]
    return [(one["status"], one.get("result")) for one in read]


def run(text: str, folder: Path) -> bytes:
    """Run a command as a shell does into which it was pasted."""
    done = subprocess.run(
        ["/bin/sh", "-c", text], cwd=folder, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_picture_is_sent_and_its_answer_shown(
    reader: Visitor, site: Endpoint, tmp_path: Path
) -> None:
    page = reader.page
    page.locator("details[data-model=yolov5] > summary").click()
    page.locator("details[data-model=yolov5]").get_by_role("button", name="Try it").click()
    trial = form(page, "POST", "/invocations")
    expect(trial.get_by_label("Example")).to_have_value("yolov5")
    trial.get_by_label("Another picture").set_input_files(COFFEE)
    assert json.loads(trial.get_by_label("Body").input_value()) == {
        "modelname": "yolov5",
        "payload": {"img": "<coffee.png>"},
    }
    shown = json.loads(sent(trial).inner_text())
    asked = site.ask(modelname="yolov5", payload={"img": picture(COFFEE)}).json
    assert shown == asked
    assert [round(one[1], 3) for one in shown["result"]] == [FOUND[0][1], FOUND[1][1]]
    trial.get_by_text("Headers", exact=True).click()
    headers = trial.get_by_label("Headers of the answer").inner_text()
    assert "server-timing: queue;dur=" in headers

    # The command does the same, and is copied as it is shown.
    (tmp_path / "coffee.png").write_bytes(COFFEE.read_bytes())
    assert json.loads(run(command(trial), tmp_path)) == asked
    trial.get_by_role("button", name="Copy").click()
    expect(trial.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == command(trial)


@pytest.mark.slow
def test_every_type_of_body_is_sent_as_curl_sends_it(reader: Visitor, tmp_path: Path) -> None:
    trial = form(reader.page, "POST", "/invocations")
    odd = tmp_path / "a \"b\" 'c'; $(touch hacked) d.png"
    odd.write_bytes(CHELSEA.read_bytes())
    for kind, file, expected in (
        ("application/json", None, "many people"),
        ("image/*", odd, "resnet"),
        ("text/plain", None, "many people"),
        ("application/jsonlines", None, "many people"),
        ("multipart/form-data", odd, "resnet"),
        ("application/octet-stream", odd, "resnet"),
    ):
        trial.get_by_label("Content-Type").select_option(kind)
        if file:
            trial.locator("input[type=file]").set_input_files(file)
        shown = sent(trial).inner_text()
        assert expected in shown, kind
        came = run(command(trial), tmp_path).decode()
        if kind == "application/jsonlines":
            assert results(came) == results(shown)
        else:
            assert json.loads(came) == json.loads(shown), kind
    assert not (tmp_path / "hacked").exists()


@pytest.mark.slow
def test_an_answer_may_be_a_picture_or_an_error(reader: Visitor) -> None:
    trial = form(reader.page, "POST", "/infer/{model}")
    trial.get_by_label("Example").select_option("yolov5")
    assert trial.get_by_label("model", exact=True).input_value() == "yolov5"
    trial.get_by_label("Another picture").set_input_files(COFFEE)
    trial.get_by_text("Optional parameters").click()
    trial.get_by_label("Accept", exact=True).select_option("image/png")
    drawn = sent(trial).get_by_alt_text("The picture that came as the answer")
    expect(drawn).to_be_visible()
    assert drawn.evaluate("one => [one.naturalWidth, one.naturalHeight]") == [600, 400]
    trial.get_by_label("Accept", exact=True).select_option("")
    trial.get_by_label("confidence").fill("2")
    error = json.loads(sent(trial, 400).inner_text())["error"]
    assert error["code"] == "bad_parameter"
    trial.get_by_label("Body").fill('{"modelname": ')
    expect(trial.locator(".body .note").last).to_contain_text("This is not JSON")
    assert json.loads(sent(trial, 400).inner_text())["error"]["code"] == "bad_body"
    trial.get_by_label("model", exact=True).fill("")
    trial.get_by_role("button", name="Send POST").click()
    expect(trial.get_by_label("model", exact=True)).to_be_focused()  # the browser asks for it


@pytest.mark.slow
def test_what_is_too_large_is_not_sent(reader: Visitor) -> None:
    trial = form(reader.page, "POST", "/invocations")
    trial.get_by_label("Content-Type").select_option("image/*")
    trial.locator("input[type=file]").evaluate(
        """(input) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(200 * 2 ** 20)], "huge.jpg"));
          input.files = transfer.files;
          input.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
    )
    expect(trial.get_by_role("alert")).to_contain_text(
        "would have 200.0 MiB; the server takes at most 25.0 MiB"
    )
    assert trial.locator("input[type=file]").input_value() == ""


@pytest.mark.slow
def test_every_route_has_a_form_whose_body_has_something_in_it(reader: Visitor) -> None:
    page = reader.page
    described = page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
    routes = [
        (method.upper(), path, route)
        for path, methods in described["paths"].items()
        for method, route in methods.items()
    ]
    assert len(routes) > 40
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    expect(page.locator(".trial")).to_have_count(len(routes))
    fields = "(all) => all.map((one) => [one.labels[0].textContent, one.value])"
    for method, path, route in routes:
        trial = form(page, method, path)
        assert command(trial).count("curl 'http://127.0.0.1:") == 1
        values = dict(trial.locator("input, textarea").evaluate_all(fields))
        for name in re.findall(r"{(\w+)}", path):
            assert values[name] or name == "job", path
        if "requestBody" in route:
            assert json.loads(values["Body"]), path
    # Some of them, which are the same at any time.
    for method, path, expected in (
        ("GET", "/models", '"modelName": "resnet"'),
        ("GET", "/ping", "The body is empty."),
        ("GET", "/metrics", "# TYPE dispatcher_requests_total counter"),
        ("GET", "/page/{file}", "select("),
        ("DELETE", "/models/{model}", "bert_base"),
    ):
        assert expected in sent(form(page, method, path)).inner_text()
    assert json.loads(sent(form(page, "GET", "/models/{model}"), 404).inner_text())["error"]


@pytest.mark.slow
def test_the_examples_are_what_their_schemas_say(reader: Visitor) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    described = reader.page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
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


@pytest.mark.slow
def test_answers_that_come_in_parts_are_shown_as_they_come(reader: Visitor) -> None:
    trial = form(reader.page, "POST", "/invocations")
    trial.get_by_label("Content-Type").select_option("application/jsonlines")
    line = {"modelname": "sleeps", "payload": {"seconds": [0]}}
    slow = {**line, "payload": {"seconds": [6]}}
    trial.get_by_label("Body").fill(f"{json.dumps(line)}\n{json.dumps(slow)}\n")
    trial.get_by_role("button", name="Send POST").click()
    expect(trial.locator(".answer pre").first).to_contain_text("awake")
    assert trial.locator(".answer pre").first.inner_text().count("awake") == 1
    trial.get_by_role("button", name="Cancel").click()
    expect(trial.locator(".answer-head")).to_have_text("Cancelled.")


@pytest.mark.slow
def test_names_and_examples_are_never_html(reader: Visitor) -> None:
    page = reader.page
    trial = form(page, "POST", "/invocations")
    trial.get_by_label("Example").select_option(HOSTILE_NAME)
    assert HOSTILE_LABEL in json.loads(sent(trial).inner_text())["result"][0]["label"]
    assert len(page.locator("script").all()) == 1
    assert not page.locator("[onclick], [onerror], img[src=x]").all()


@pytest.mark.slow
def test_tensors_are_made_from_what_the_model_takes(browser: Browser, endpoint: Endpoint) -> None:
    visitor = Visitor(browser.new_page(), endpoint)
    visitor.page.goto(f"{visitor.address}docs")
    trial = form(visitor.page, "POST", "/v2/models/{model}/infer")
    model = trial.get_by_label("model", exact=True)
    model.fill("bert_base")
    trial.get_by_role("button", name="Make one").click()
    expect(trial.get_by_label("Body")).to_have_value(re.compile("input_ids"))
    answer = sent(trial)
    expect(answer).to_contain_text('"shape": [1, 1, 30522]')
    expect(answer).to_contain_text("The first 100,000 characters. All of it: answer.txt")
    model.fill("resnet")
    trial.get_by_role("button", name="Make one").click()
    expect(trial.locator(".trouble")).to_contain_text("takes [1, 3, 224, 224], 150,528 numbers")
    visitor.page.close()
    assert not visitor.wrong


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_no_rule_of_axe_is_broken_and_all_fits(
    browser: Browser, site: Endpoint, axe_script: str, scheme: Any, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 740}, color_scheme=scheme, bypass_csp=True
    )
    visitor = Visitor(context.new_page(), site)
    page = visitor.page
    page.goto(f"{visitor.address}docs")
    page.get_by_role("button", name="Try it in a form").first.wait_for()
    for path in ("/invocations", "/v2/models/{model}/infer", "/models"):
        trial = form(page, "POST", path)
        for more in trial.locator("summary").all():
            more.click()
    trial = form(page, "POST", "/invocations")
    trial.get_by_label("Example").select_option("yolov5")
    sent(trial)
    page.locator("details[data-model=yolov5] > summary").click()
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
