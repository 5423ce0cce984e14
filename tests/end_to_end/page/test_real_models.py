"""The page in front of the real container: the three models, and one that takes tensors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Endpoint, picture
from tests.end_to_end.conftest import write_own_client
from tests.support.browsing import COFFEE, Visitor

pytestmark = pytest.mark.slow


@pytest.fixture
def visitor(browser: Browser, endpoint: Endpoint) -> Iterator[Visitor]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    one = Visitor(context.new_page(), endpoint).open()
    yield one
    context.close()
    assert not one.wrong
    assert not one.elsewhere


def test_the_models_see_what_is_in_the_picture(visitor: Visitor, endpoint: Endpoint) -> None:
    visitor.choose("resnet", "yolov5").upload("coffee.png", COFFEE.read_bytes())
    first = visitor.card("resnet").locator(".bars li").first
    payload = {"img": picture(COFFEE)}
    asked = endpoint.ask(modelname="resnet", payload=payload, parameters={"top_k": 1000})
    powers = np.exp([float(one.split(":")[0]) for one in asked.json["result"]])
    assert first.inner_text().split() == [
        *("espresso", f"{100 * powers[0] / powers.sum():.1f}", "%"),
    ]
    assert visitor.texts(visitor.card("yolov5").locator(".found li")) == ["cup\n0.529"]
    for name in ("resnet", "yolov5"):
        total, *phases = visitor.card(name).locator(".legend li").all_inner_texts()
        assert [one.rsplit(" ", 2)[0] for one in phases] == [
            *("queue", "decode", "inference", "post-processing", "network and browser"),
        ]
        times = [float(one.split()[-2]) for one in (total, *phases)]
        assert times[0] == pytest.approx(sum(times[1:]), rel=0.02, abs=2)  # each is rounded


def test_the_example_of_every_model_is_answered(visitor: Visitor) -> None:
    names = ("resnet", "yolov5", "bert_base")
    visitor.choose(*names).ask()
    for name in names:
        assert not visitor.card(name).locator(".error").all()


@pytest.fixture
def doubling(endpoint: Endpoint, tmp_path: Path) -> Iterator[str]:
    write_own_client(tmp_path, tmp_path)
    name = "doubling"
    body = json.dumps({"model_name": name, "url": str(tmp_path / "double")})
    assert endpoint.call("/models", body).status == 200
    yield name
    assert endpoint.call(f"/models/{name}", method="DELETE").status == 200


def test_a_model_without_a_client_takes_tensors(
    doubling: str, visitor: Visitor, tmp_path: Path
) -> None:
    page = visitor.choose(doubling).page
    shape, filled = page.get_by_label("Shape of INPUT"), page.get_by_label("Filled with")
    expect(shape).to_have_value("1, 1")  # the file says [any, any]
    filled.select_option("own")
    page.get_by_label("Elements of INPUT").fill("[[1, 2.5, -3]]")
    shape.fill("1, 3")
    card = visitor.ask().card(doubling)
    cells = card.locator("tbody tr > *").all_inner_texts()
    assert cells == ["OUTPUT", "FP32", "[1, 3]", "2, 5, -6"]
    card.get_by_text("The same request in code").click()
    code = card.locator(".code code").inner_text()
    done = subprocess.run(["sh", "-c", code], capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["outputs"][0]["data"] == [2, 5, -6]
    # Long ones are a file.
    filled.select_option("ones")
    shape.fill("2, 4000")
    card = visitor.ask().card(doubling)
    expect(card.locator("tbody")).to_contain_text("2, 2, 2, 2, 2, 2, 2, 2, …")
    card.get_by_text("The same request in code").click()
    with page.expect_download() as download:
        card.get_by_role("link", name="request.json").click()
    download.value.save_as(tmp_path / "request.json")
    code = card.locator(".code code").inner_text()
    done = subprocess.run(["sh", "-c", code], capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["outputs"][0]["data"] == [2] * 8000
    # What does not fit is said by the server.
    shape.fill("3")
    error = visitor.ask().card(doubling).locator(".error")
    expect(error).to_contain_text("400 tensors_refused")
    shape.fill("three")
    visitor.ask()
    expect(page.locator("#refusal")).to_contain_text("must be whole numbers")
