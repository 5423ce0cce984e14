"""A container for the tests: it keeps the contract, but for the one fault that FAULT names.

What it does with a request is said by its custom attributes, or its JSON. It is a program of its
own, with the standard library alone. CAPACITY models fit into it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAULT", "")
CAPACITY = int(os.environ.get("CAPACITY", "99"))
PING = int(os.environ.get("PING", "200"))
LOADING_S = float(os.environ.get("LOADING_S", "0"))
MOST = int(os.environ.get("MOST_MB", "26")) * 2**20
SHOWN = {"GREETING", "MODEL_DIR", "MODEL_DIR_USE", "SAGEMAKER_MULTI_MODEL"}
WORDS = {"upper", "status", "sleep", "close", "parts"}
ending = threading.Event()
began = time.monotonic()
loaded: dict[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, text: str, *arguments: Any) -> None:
        say(text % arguments)

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        self.send_response(status)
        if not isinstance(body, bytes):
            body, headers["Content_Type"] = json.dumps(body).encode(), "application/json"
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, reason: str) -> None:
        long = f"{reason} {'at line 1 of server.py ' * 400}"
        self.answer(status, {"error": long if FAULT == "long errors" else reason})

    def do_GET(self) -> None:
        name = self.path.removeprefix("/models/")
        if self.path == "/ping":
            if FAULT == "slow ping":
                time.sleep(0.7)
            well = is_loaded() or FAULT == "constant ping"
            self.answer(PING if well else 503, b"" if PING == 200 else b"the weights are missing")
        elif self.path == "/models":
            models = [{"modelName": name, "modelUrl": url} for name, url in loaded.items()]
            self.answer(200, {"models": models})
        elif name in loaded:
            self.answer(200, {"modelName": name, "modelUrl": loaded[name]})
        else:
            self.answer(404)

    def do_DELETE(self) -> None:
        name = self.path.removeprefix("/models/")
        self.answer(200 if loaded.pop(name, None) or FAULT == "no 404" else 404)

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        if size > MOST - 2 * 2**20 and FAULT == "dies of size":
            os._exit(137)
        body = self.rfile.read(size)
        if FAULT == "unknown header" and "X-Request-Something" in self.headers:
            ending.wait(30)
        attributes = self.headers.get("X-Amzn-SageMaker-Custom-Attributes", "")
        word, _, value = attributes.partition("=")
        if FAULT == "short attributes" and len(attributes) > 255:
            self.refuse(431, "a header is too long")
        elif size > MOST:
            self.refuse(413, f"the body is larger than {MOST} bytes")
        elif self.path == "/models":
            self.load(**json.loads(body))
        elif self.path != "/invocations" and self.path.split("/")[2] not in loaded:
            self.answer(404, b"not loaded")
        elif word in WORDS:
            getattr(self, word)(body, value)
        else:
            self.invoke(body)

    def load(self, model_name: str, url: str) -> None:
        if model_name in loaded and FAULT != "no 409":
            self.answer(409)
        elif not Path(url).is_dir() or (Path(url) / "broken").exists():
            self.answer(400, b"the model is broken")
        elif len(loaded) >= CAPACITY:
            self.answer(500 if FAULT == "no 507" else 507, b"out of memory")
        else:
            loaded[model_name] = url
            self.answer(200)

    def invoke(self, body: bytes) -> None:
        """Answer what came; x in JSON may ask for more."""
        if not is_loaded():
            self.refuse(503, "there is no model")
            return
        try:
            x = json.loads(body)["x"] if LOADING_S else ""
        except (ValueError, KeyError, TypeError):
            if FAULT == "silent errors":
                self.close_connection = True
                return
            self.refuse(400, "the body has to be JSON with x")
            return
        if x == "stream":
            self.parts(body, "15")
            return
        if LOADING_S:
            time.sleep(1.5 if x == "slow" else 0.4 if FAULT == "one at a time" else 0.01)
        folder = loaded.get(self.path.split("/")[2]) if self.path != "/invocations" else None
        seen = {
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "size": len(body),
            "files": sorted(path.name for path in Path(folder).iterdir()) if folder else [],
            "variables": {name: os.environ[name] for name in os.environ if name in SHOWN},
        }
        self.answer(200, seen)

    def upper(self, body: bytes, _: str) -> None:
        self.answer(200, body.upper(), X_Amzn_SageMaker_Custom_Attributes="done")

    def status(self, _: bytes, value: str) -> None:
        self.answer(int(value), b"the reason " * 400)

    def sleep(self, _: bytes, value: str) -> None:
        time.sleep(float(value))
        self.answer(200, b"late")

    def close(self, *_: Any) -> None:
        self.close_connection = True

    def parts(self, _: bytes, value: str) -> None:
        """Send some pieces, one in each 0.2 s; break off before the last where it is negative."""
        self.send_response(200)
        self.send_header("Content-Type", "application/jsonlines")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        held = b""
        for number in range(abs(int(value))):
            held += b"part %d" % number
            if FAULT != "buffered stream":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(held), held))
                held = b""
            time.sleep(0.2)
        if int(value) < 0:
            self.close_connection = True
        else:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(held), held) * bool(held) + b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = False  # what is being answered is finished
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        say("a caller has gone away")


class OneAtATime(HTTPServer):
    request_queue_size = 128
    handle_error = Server.handle_error


def is_loaded() -> bool:
    return time.monotonic() - began >= LOADING_S


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    port = 0 if FAULT == "other port" else int(os.environ["SAGEMAKER_BIND_TO_PORT"])
    kind = OneAtATime if FAULT == "one at a time" else Server
    server = kind(("", port), Handler)

    def stop(*_: Any) -> None:
        say("SIGTERM")
        ending.set()
        if FAULT == "drops requests":
            sys.stdout.flush()
            os._exit(0)
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, signal.SIG_IGN if FAULT == "deaf" else stop)
    say("the container starts")
    server.serve_forever(0.05)
    server.server_close()  # waits for the requests
    sys.stdout.flush()
    os._exit(3 if FAULT == "exit code" else 0)


if __name__ == "__main__":
    main()
