"""The side of Lambda's runtime API that the platform has, for one function at a time.

It gives events to the real runtime client (`awslambdaric`), as Lambda and its emulator do:
`GET …/invocation/next`, then `POST …/invocation/ID/response` or `…/error`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:front"


class Function:
    """A function whose process waits for events."""

    def __init__(self) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()

    def invoke(self, event: dict[str, Any], timeout: float = 60) -> Any:
        """Return the handler's answer to an event."""
        self.events.put(event)
        kind, answer = self.answers.get(timeout=timeout)
        assert kind == "response", answer
        return answer


@contextmanager
def deployed(folder: Path, handler: str, **variables: str) -> Iterator[Function]:
    """Run a handler, `module.name` in `folder`, as Lambda does."""
    function = Function()

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            event = function.events.get()
            self.send_response(200)
            self.send_header("Lambda-Runtime-Aws-Request-Id", str(uuid.uuid4()))
            self.send_header("Lambda-Runtime-Deadline-Ms", str(round(time.time() * 1e3) + 29_000))
            self.send_header("Lambda-Runtime-Invoked-Function-Arn", ARN)
            self.reply(json.dumps(event).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(202)
            self.reply(b"{}")
            function.answers.put((self.path.rpartition("/")[2], json.loads(body)))

        def reply(self, body: bytes) -> None:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  the function is killed
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{server.server_port}",
        "LAMBDA_TASK_ROOT": str(folder),
        "AWS_LAMBDA_FUNCTION_NAME": "front",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        **variables,
    }
    with (folder / "function.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", handler],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        yield function
    finally:
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
