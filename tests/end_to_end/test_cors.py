"""Which pages of other sites may read the answers: CORS_ORIGINS, on the real NGINX."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import Answer, Endpoint, wait_for
from tests.support.front import front

SHOP, LOCAL = "https://shop.example", "http://localhost:3000"
# More, and longer ones, than NGINX's tables have room for by default.
MANY = [f"https://{'a' * 60}.{'b' * 60}.{number}.example:8443" for number in range(300)]
DOUBLE = json.dumps({"modelname": "double", "payload": {"numbers": [1]}})
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"inference shop {'0' * 64}\n")
    folder = tmp_path_factory.mktemp("listed")
    origins = ", ".join([SHOP, *MANY, LOCAL])
    settings = {"CORS_ORIGINS": origins, "API_KEYS_FILE": str(keys)}
    with front(folder, **settings, MODEL_SERVER_MAX_BODY_MB="1") as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("opened"), CORS_ORIGINS="*") as endpoint:
        yield endpoint


def allowed(answer: Answer) -> dict[str, str]:
    return {
        name.lower().removeprefix("access-control-"): value
        for name, value in answer.headers.items()
        if name.lower().startswith("access-control-")
    }


@pytest.mark.parametrize("origin", [SHOP, LOCAL, MANY[-1]])
def test_a_page_of_a_listed_site_may_read_answers_and_errors(listed: Endpoint, origin: str) -> None:
    for path, body, status in (
        ("/ping", None, 200),
        ("/models", None, 401),
        ("/invocations", DOUBLE, 401),
        ("/invocations", "0" * (2**20 + 1), 413),  # NGINX's own
        ("/endpoints/mine/invocations", "0" * (2**20 + 1), 424),
    ):
        answer = listed.call(path, body, headers={"Origin": origin})
        assert answer.status == status
        found = allowed(answer)
        assert found.pop("allow-origin") == origin
        exposed = found.pop("expose-headers").lower().split(", ")
        assert {"server-timing", "x-request-id", "retry-after"} <= set(exposed)
        assert not found  # above all no credentials
        assert answer.headers["Vary"] == "Origin"
        assert answer.headers["X-Request-Id"]


@pytest.mark.parametrize(
    "origin",
    [
        *("https://other.example", "http://shop.example", "https://shop.example.other.example"),
        *("https://shop.example:444", "https://shopXexample", "https://a.shop.example", "null", ""),
    ],
)
def test_a_page_of_another_site_may_not(listed: Endpoint, origin: str) -> None:
    for method, headers in (("GET", {}), ("OPTIONS", ASKS)):
        answer = listed.call("/ping", None, method, {"Origin": origin, **headers})
        assert answer.status == 200
        assert allowed(answer) == {}
        assert answer.headers["Vary"] == "Origin"  # or a cache would give it to a listed site
    # Without a key nothing is said of other paths either.
    assert listed.call("/models", None, "OPTIONS", {"Origin": origin, **ASKS}).status == 401


@pytest.mark.parametrize("path", ["/invocations", "/models/x", "/endpoints/mine/invocations"])
def test_a_browser_that_asks_first_is_answered_without_a_key(listed: Endpoint, path: str) -> None:
    answer = listed.call(path, None, "OPTIONS", {"Origin": SHOP, **ASKS})
    assert (answer.status, answer.body) == (204, b"")
    found = allowed(answer)
    assert found["allow-origin"] == SHOP
    assert found["allow-headers"] == "x-api-key"
    assert {"POST", "DELETE"} <= set(found["allow-methods"].split(", "))
    assert 0 < int(found["max-age"]) <= 7200  # Chromium's longest
    assert "allow-credentials" not in found
    assert answer.headers["Vary"] == "Origin"


def test_such_questions_are_not_in_the_log(listed: Endpoint) -> None:
    listed.call("/asked-first", None, "OPTIONS", {"Origin": SHOP, **ASKS})
    listed.call("/asked-then", None, "GET", {"Origin": SHOP})
    wait_for(lambda: "/asked-then" in listed.log.read_text(), 5, "the line of the request")
    assert "/asked-first" not in listed.log.read_text()


def test_other_options_are_as_ever(listed: Endpoint) -> None:
    answer = listed.call("/ping", None, "OPTIONS", {"Origin": SHOP})  # of a program, not a browser
    assert answer.status == 200
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST"}
    assert "allow-methods" not in allowed(answer)


def test_a_star_allows_every_site_and_sends_no_credentials(opened: Endpoint) -> None:
    for origin in (SHOP, "null"):
        answer = opened.call("/invocations", DOUBLE, headers={"Origin": origin})
        assert answer.json == {"modelname": "double", "result": [2.0]}
        assert allowed(answer)["allow-origin"] == "*"
        assert "allow-credentials" not in allowed(answer)
        assert "Vary" not in answer.headers  # it is the same for all
        first = opened.call("/invocations", None, "OPTIONS", {"Origin": origin, **ASKS})
        assert (first.status, allowed(first)["allow-origin"]) == (204, "*")
    # No page asks so.
    assert opened.call("/nowhere", None, "OPTIONS", ASKS).status == 404
