"""`dispatcher invoke` asks a model of a running endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.conftest import PICTURES, picture
from tests.support.serving import serve
from tool.__main__ import main

COFFEE = PICTURES / "coffee.png"


class Noting(BaseHTTPRequestHandler):
    """Notes what was asked; answers it back, or with the error that it is made with."""

    asked: list[tuple[dict[str, str], Any]] = []
    error: tuple[int, bytes] | None = None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        self.asked.append(({name.lower(): text for name, text in self.headers.items()}, body))
        self.answer(*(self.error or (200, json.dumps({"result": body}).encode())))

    def do_GET(self) -> None:
        examples = [] if self.path == "/models/none" else [{"x": 1}, {"x": 2}]
        self.answer(200, json.dumps({"examples": examples}).encode())

    def do_PUT(self) -> None:
        self.do_POST()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def noting() -> Iterator[str]:
    Noting.asked.clear()
    Noting.error = None
    with serve(Noting) as url:
        yield url


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--text", "a [MASK]"], {"payload": {"text": "a [MASK]"}}),
        (["--img", str(COFFEE)], {"payload": {"img": picture(COFFEE)}}),
        (["--text", "a", "--field", "sentence"], {"payload": {"sentence": "a"}}),
        (["--json", '{"a": [1]}'], {"payload": {"a": [1]}}),
        (["--json", "[{}, {}]"], {"payload": [{}, {}]}),
        (
            ["--text", "a", "--parameter", "top_k=3", "--parameter", "format=objects"],
            {"payload": {"text": "a"}, "parameters": {"top_k": 3, "format": "objects"}},
        ),
        (["--example"], {"payload": {"x": 1}}),
        (["--example", "2"], {"payload": {"x": 2}}),
        (["--text", "a", "--version", "2"], {"payload": {"text": "a"}, "modelversion": "2"}),
    ],
)  # fmt: skip
def test_invoke_sends_what_it_is_given(
    noting: str, arguments: list[str], body: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["invoke", "some", *arguments, "--url", noting]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == {"modelname": "some", **body}
    assert "x-api-key" not in Noting.asked[0][0]


def test_invoke_asks_no_proxy_for_this_machine(
    noting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("no_proxy", raising=False)
    assert main(["invoke", "some", "--text", "a", "--url", noting]) == 0
    assert main(["invoke", "some", "--text", "a", "--url", "http://there.invalid"]) != 0
    assert "Connection refused" in capsys.readouterr().err, "that of the proxy"


def test_invoke_sends_the_key_of_the_option_or_the_variable(
    noting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_API_KEY", "from the variable")
    for options, key in (([], "from the variable"), (["--api-key", "given"], "given")):
        assert main(["invoke", "some", "--text", "a", "--url", noting, *options]) == 0
        assert Noting.asked[-1][0]["x-api-key"] == key


def test_invoke_says_what_the_endpoint_says(
    noting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "unknown_model", "message": "no 'x'", "hint": "try y", "request_id": "abc"}
    Noting.error = 404, json.dumps({"error": error}).encode()
    assert main(["invoke", "x", "--text", "a", "--url", noting]) == 1
    assert capsys.readouterr().err == "404 unknown_model: no 'x'\nhint: try y\nrequest: abc\n"
    Noting.error = 502, b"<html>a proxy's own page"
    assert main(["invoke", "x", "--text", "a", "--url", noting]) == 1
    assert capsys.readouterr().err.startswith("502: <html>")
    Noting.error = 200, b"<html>another server"
    assert main(["invoke", "x", "--text", "a", "--url", noting]) == 2
    assert "is no dispatcher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--img", "/no/such.jpg"], "/no/such.jpg cannot be read"),
        (["--img", ""], "(nothing) cannot be read"),
        (["--json", "{oh"], "--json is not JSON"),
        (["--text", "a", "--parameter", "top_k"], "expected NAME=VALUE"),
        (["--text", "a", "--draw", "out.gif"], ".jpg or .png"),
        (["--text", "a", "--url", "file:///etc/passwd"], "expected an address such as http://"),
        (["--text", "a", "--url", "http://[::1"], "expected an address such as http://"),
        (["--text", "a", "--url", "127.0.0.1:1"], "127.0.0.1:1 does not answer"),
        (["--example", "3"], "--example is 3; expected a number from 1 to 2"),
        (["--example", "0"], "--example is 0; expected a number from 1 to 2"),
        ([], "none has no example; send --img, --text or --json"),
    ],
)
def test_invoke_says_what_is_wrong_before_it_asks(
    noting: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["x", *arguments] if arguments else ["none", "--example"]
    assert main(["invoke", "--url", noting, *given]) == 2
    assert words in capsys.readouterr().err
    assert not Noting.asked
