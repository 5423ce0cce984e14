"""A TCP proxy that stalls or cuts what it passes on, and a server that always says one thing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.conftest import PATIENCE_S

HttpAnswer = tuple[int, dict[str, str], bytes]  # status, headers, body
HttpRequest = tuple[str, str, dict[str, str], bytes]  # method, path, headers, body


@contextmanager
def proxy(port: int, after: int, *, cut: bool) -> Iterator[str]:
    """Pass connections on to a port; return the proxy's URL.

    Args:
        port: on loopback.
        after: bytes of an answer that are passed on.
        cut: whether the connection is closed after these; else nothing more comes.

    """
    over = threading.Event()

    def answer(caller: socket.socket, server: socket.socket) -> None:
        copy(server, caller, after)
        if not cut:
            over.wait(PATIENCE_S)
        for one in (caller, server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # the other thread waits for it
            one.close()

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                caller, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=copy, args=(caller, server), daemon=True).start()
                threading.Thread(target=answer, args=(caller, server), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


def copy(source: socket.socket, target: socket.socket, left: int = 2**40) -> None:
    """Pass on so many bytes, or what comes until one side has closed."""
    with suppress(OSError):
        while left and (data := source.recv(min(left, 2**16))):
            target.sendall(data)
            left -= len(data)


@contextmanager
def always(status: int, body: str, headers: dict[str, str] | None = None) -> Iterator[str]:
    """Answer every request alike; return the server's URL."""
    with http_server(lambda: (status, headers or {}, body.encode()), []) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def http_server(answer: Callable[[], HttpAnswer], came: list[HttpRequest]) -> Iterator[int]:
    """Answer requests as a test says, and note them; return the server's port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            came.append((self.command, self.path, dict(self.headers), body))
            status, headers, content = answer()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            with suppress(OSError):  # who asked has given up
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815  the names that the server looks for

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()
