"""What a browser lets pages of other sites do: CORS_ORIGINS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.conftest import free_ports
from tests.end_to_end.page.conftest import APPLICATION
from tests.support.front import front

pytestmark = pytest.mark.slow

# Asks in a way that a browser asks about first: a type and headers that no plain form has.
ASK = """async ([url, method, body]) => {
  try {
    const answer = await fetch(url, { method, body: body ?? undefined, headers: {
      "Content-Type": "application/json", "x-api-key": "a-key", "X-Request-Id": "from-a-page" } });
    const headers = ["X-Request-Id", "Server-Timing", "Cache-Control"];
    return [answer.status, await answer.json(), ...headers.map((one) => answer.headers.get(one))];
  } catch (error) {
    return error.name;
  }
}"""
BODY = '{"modelname": "numbers", "payload": {"numbers": [4]}}'


def test_a_browser_lets_listed_sites_ask_and_no_others(browser: Browser, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    # The same server by other names: to a browser these are other sites.
    site, other = f"http://localhost:{port}", f"http://127.0.0.2:{port}"
    address = f"http://127.0.0.1:{port}"
    settings = {"SAGEMAKER_BIND_TO_PORT": str(port), "CORS_ORIGINS": site}
    settings["MODEL_SERVER_MAX_BODY_MB"] = "1"
    with front(tmp_path, APPLICATION, **settings) as endpoint:

        def asked(origin: str, path: str, method: str, body: str | None = None) -> Any:
            page = browser.new_page(bypass_csp=True)
            page.goto(f"{origin}/ping")
            answer = page.evaluate(ASK, [f"{address}{path}", method, body])
            page.close()
            return answer

        assert endpoint.call("/ping").status == 200
        status, answer, request_id, timing, _ = asked(site, "/invocations", "POST", BODY)
        assert (status, answer["result"]) == (200, [8.0])
        assert request_id == "from-a-page"
        assert timing.startswith("queue;dur=")
        status, answer, *_ = asked(site, "/invocations", "POST", "{")
        assert (status, answer["error"]["code"]) == (400, "bad_body")
        status, answer, *_ = asked(site, "/models/x", "DELETE")
        assert (status, answer["error"]["code"]) == (404, "unknown_model")
        # Above the limit of the body, NGINX answers by itself.
        status, answer, *_ = asked(site, "/invocations", "POST", "0" * (2**20 + 1))
        assert (status, answer["error"]["code"]) == (413, "too_large")
        assert asked(other, "/invocations", "POST", BODY) == "TypeError"  # a fetch that failed
        assert asked(other, "/models/x", "DELETE") == "TypeError"
