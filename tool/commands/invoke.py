"""`dispatcher invoke MODEL`: asks a model of a running endpoint."""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.model_files.files import text_of
from container.trouble import Trouble

URL = "http://127.0.0.1:8080"
TIME_S = 120.0  # twice what the endpoint takes at most, as it is set by default
DRAWN = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the name of the model")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--img", metavar="FILE", help="send a picture, or another file")
    what.add_argument("--text", help="send a text")
    what.add_argument(
        "--json", metavar="FILE", help="send this payload: a file, '-' or the JSON itself"
    )
    what.add_argument(
        "--example",
        type=int,
        nargs="?",
        const=1,
        metavar="N",
        help="send the model's own example, or the N-th of its examples",
    )
    parser.add_argument(
        "--field",
        default="",
        metavar="NAME",
        help="the payload's field for it (default: img or text)",
    )
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter; may be repeated",
    )
    parser.add_argument("--version", default="", help="version of the model (default: the latest)")
    parser.add_argument(
        "--draw", type=Path, metavar="OUT.jpg", help="save the picture with what was found on it"
    )
    add_endpoint(parser)


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=URL, help=f"the endpoint (default: {URL})")
    add_endpoint_key(parser)


def add_endpoint_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key",
        default=os.environ.get("DISPATCHER_API_KEY", ""),
        help="key for the endpoint (default: the variable DISPATCHER_API_KEY)",
    )


def opener(host: str) -> urllib.request.OpenerDirector:
    """Return a URL opener for `host`; no proxy is used for this machine."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    own = name == "localhost" or name.startswith("127.") or name == "::1"
    return urllib.request.build_opener(*[urllib.request.ProxyHandler({})] * own)


def run(options: argparse.Namespace) -> int:
    """Send the request and show the answer; return 0, or 1 for an error."""
    accept = "application/json"
    if options.draw:
        accept = DRAWN.get(options.draw.suffix.lower(), "")
        if not accept:
            raise Trouble(f"--draw is {options.draw}; expected a name that ends in .jpg or .png")
    try:
        answer = call(options, "/invocations", json.dumps(body(options)).encode(), accept)
    except urllib.error.HTTPError as error:
        with error:
            return print_error(error.code, error.read())
    if options.draw:
        options.draw.write_bytes(answer)
        sys.stdout.write(f"wrote {options.draw}\n")
    else:
        result = read_json(options, answer)
        sys.stdout.write(f"{json.dumps(result, ensure_ascii=False, indent=2)}\n")
    return 0


def call(
    options: argparse.Namespace,
    path: str,
    data: bytes | None,
    accept: str = "application/json",
    method: str | None = None,
) -> bytes:
    """Send a request to the endpoint; return the answer."""
    headers = {"Content-Type": "application/json", "Accept": accept}
    try:
        with send(options, path, data, headers, method) as response:
            answer: bytes = response.read()
            return answer
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Trouble(
            f"{options.url} does not answer: {getattr(error, 'reason', error)}; "
            "is it running there? `make serve` starts one"
        ) from error


def send(
    options: argparse.Namespace,
    path: str,
    data: bytes | None,
    headers: Mapping[str, str],
    method: str | None = None,
) -> Any:
    """Send a request to the endpoint; return its response, or raise it as an HTTPError."""
    key = {"x-api-key": options.api_key} if options.api_key else {}
    request = urllib.request.Request(  # noqa: S310  its kind is looked at
        f"{address(options.url)}{path}", data, {**headers, **key}, method=method
    )
    return opener(request.host).open(request, timeout=TIME_S)


def read_json(options: argparse.Namespace, answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError as error:
        raise Trouble(
            f"{options.url} is no dispatcher: it answers {answer[:50]!r}, which is not JSON"
        ) from error


def address(url: str) -> str:
    """Return the endpoint's address; HTTP where no protocol is named."""
    url = url if "://" in url else f"http://{url}"
    host: str | None = None
    with contextlib.suppress(ValueError):
        host = urllib.parse.urlsplit(url).hostname
    if not host or not url.startswith(("http://", "https://")):
        raise Trouble(f"the URL is {url!r}; expected an address such as {URL}")
    return url.rstrip("/")


def body(options: argparse.Namespace) -> dict[str, Any]:
    document = {
        "modelname": options.model,
        "payload": payload(options),
        "parameters": dict(map(parameter, options.parameter)),
        "modelversion": options.version,
    }
    return {name: value for name, value in document.items() if value or name == "payload"}


def payload(options: argparse.Namespace) -> Any:
    if options.example is not None:
        return example(options)
    if options.text is not None:
        return {options.field or "text": options.text}
    try:
        if options.img is not None:
            return {
                options.field or "img": base64.b64encode(Path(options.img).read_bytes()).decode()
            }
        if options.json.lstrip()[:1] in ("{", "["):
            return json.loads(options.json)
        return json.loads(
            sys.stdin.read().removeprefix("\ufeff")
            if options.json == "-"
            else text_of(Path(options.json))
        )
    except OSError as error:
        given = options.json if options.img is None else options.img
        raise Trouble(f"{given or '(nothing)'} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Trouble(f"--json is not JSON: {error}") from error


def example(options: argparse.Namespace) -> Any:
    """Return one of the model's own examples, which the endpoint lists."""
    path = f"/models/{urllib.parse.quote(options.model, safe='')}"
    found = read_json(options, call(options, path, None)).get("examples", [])
    if not 1 <= options.example <= len(found):
        raise Trouble(
            f"--example is {options.example}; expected a number from 1 to {len(found)}"
            if found
            else f"{options.model} has no example; send --img, --text or --json"
        )
    return found[options.example - 1]


def parameter(text: str, option: str = "--parameter", example: str = "top_k=5") -> tuple[str, Any]:
    """Read NAME=VALUE; a value that is JSON, such as a number, is taken as that."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Trouble(f"{option} is {text!r}; expected NAME=VALUE, such as {example}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def print_error(status: int, answer: bytes) -> int:
    sys.stderr.write("".join(f"{line}\n" for line in describe_error(status, answer)))
    return 1


def describe_error(status: int | str, answer: bytes) -> list[str]:
    try:
        error = json.loads(answer)["error"]
        lines = [f"{status} {error['code']}: {error['message']}"]
        lines += [f"hint: {error['hint']}"] if error.get("hint") else []
        return lines + ([f"request: {error['request_id']}"] if error.get("request_id") else [])
    except (ValueError, KeyError, TypeError):
        return [f"{status}: {answer[:500].decode(errors='replace')}"]
