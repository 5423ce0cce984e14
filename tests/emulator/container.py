"""A container for the tests: what it does with a request is said by its custom attributes.

It is a program of its own, with the standard library alone. CAPACITY models fit into it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CAPACITY = int(os.environ.get("CAPACITY", "99"))
PING = int(os.environ.get("PING", "200"))
SHOWN = {
    "GREETING",
    "MODEL_DIR",
    "MODEL_DIR_USE",
    "SAGEMAKER_MULTI_MODEL",
}
loaded: dict[str, str] = {}


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/ping":
            self.answer(PING, b"" if PING == 200 else b"the weights are missing")
        elif self.path == "/models":
            self.answer(200, b'{"models": []}')
        else:
            self.answer(404)

    def do_DELETE(self) -> None:
        found = loaded.pop(self.path.removeprefix("/models/"), None)
        self.answer(404 if found is None else 200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/models":
            self.load(**json.loads(body))
        elif self.path.startswith("/models/"):
            name = self.path.split("/")[2]
            if name in loaded:
                self.echo(body, folder=loaded[name], files=names_in(loaded[name]))
            else:
                self.answer(404, b"not loaded")
        else:
            word, _, value = self.headers.get("X-Amzn-SageMaker-Custom-Attributes", "").partition(
                "="
            )
            getattr(self, word or "echo")(body, **({"value": value} if value else {}))

    def load(self, model_name: str, url: str) -> None:
        if "broken" in names_in(url):
            self.answer(400, b"the model is broken")
        elif len(loaded) >= CAPACITY:
            self.answer(507, b"out of memory")
        else:
            loaded[model_name] = url
            self.answer(200)

    def echo(self, body: bytes, **more: Any) -> None:
        """Answer what came."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = {"path": self.path, "headers": headers, "size": len(body), **more}
        seen["variables"] = {name: os.environ[name] for name in os.environ if name in SHOWN}
        self.answer(200, json.dumps(seen).encode(), Content_Type="application/json")

    def upper(self, body: bytes) -> None:
        self.answer(200, body.upper(), X_Amzn_SageMaker_Custom_Attributes="done")

    def status(self, body: bytes, value: str) -> None:
        self.answer(int(value), b"the reason " * 400)

    def sleep(self, body: bytes, value: str) -> None:
        time.sleep(float(value))
        self.answer(200, b"late")

    def close(self, body: bytes) -> None:
        self.close_connection = True

    def stream(self, body: bytes, value: str) -> None:
        """Send some pieces, one in each 0.2 s; break off before the last where it is negative."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(abs(int(value))):
            self.wfile.write(b"6\r\npart %d\r\n" % number)
            time.sleep(0.2)
        if int(value) < 0:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")


if __name__ == "__main__":
    if os.environ.get("DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write("the container starts\n")
    sys.stdout.flush()
    port = int(os.environ.get("SAGEMAKER_BIND_TO_PORT", "8080"))
    ThreadingHTTPServer(("", port), Handler).serve_forever()
