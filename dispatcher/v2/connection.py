"""Asks Triton's HTTP port."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from flask import g

from clients.errors import DeadlineExceeded, ModelUnavailable
from clients.triton.errors import http_error
from dispatcher.errors import NotHere, time_used_up
from dispatcher.settings import Settings
from dispatcher.settings.remote_triton import TritonMetadata, tls_context


class TritonHttp:
    """Asks Triton over HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sent_along = TritonMetadata(settings.triton_metadata)
        is_tls = (settings.triton_http_url or "").startswith("https:")
        self.tls = tls_context(settings) if is_tls else None

    def read(self, path: str) -> bytes:
        """Get a document that Triton has."""
        return self.call("GET", path, deadline=g.record.since + self.settings.client_timeout)

    def call(self, method: str, path: str, body: bytes | None = None, *, deadline: float) -> bytes:
        """Return what Triton answers.

        Raises InferenceError: by Triton's status; or Triton did not answer, or not in time.
        """
        return self.rest(*self.begin(method, path, body, deadline), deadline)

    def rest(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        deadline: float,
    ) -> bytes:
        """Return the body of a response; close its connection."""
        with closing(connection), triton_errors(deadline):
            return response.read()

    def begin(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Ask Triton; return its response, whose body is still to be read, if its status is 200."""
        if (left := deadline - time.monotonic()) <= 0:
            raise time_used_up()
        connection = self.connection(left)
        with ExitStack() as otherwise:
            otherwise.callback(connection.close)
            with triton_errors(deadline):
                sent = {**dict(self.sent_along()), **trace_headers()}
                connection.request(method, path, body, sent)
                response = connection.getresponse()
                came = response.read() if response.status != HTTPStatus.OK else b""
            if response.status != HTTPStatus.OK:
                raise http_error(response.status, came, g.record.version)
            otherwise.pop_all()
        return connection, response

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection to Triton's HTTP port."""
        url = self.settings.triton_http_url
        if not url:
            if self.settings.triton_url:
                raise NotHere(
                    "Triton is elsewhere, and its HTTP port is not known here",
                    hint="set TRITON_HTTP_URL, or use POST /infer/{model}, which goes over gRPC",
                )
            port = self.settings.triton_ports["http"]
            return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        host = urlsplit(url).netloc
        if self.tls is None:
            return http.client.HTTPConnection(host, timeout=timeout)
        return http.client.HTTPSConnection(host, timeout=timeout, context=self.tls)


@contextmanager
def triton_errors(deadline: float) -> Iterator[None]:
    """Turn errors of the connection to Triton into those of the contract."""
    left = deadline - time.monotonic()
    try:
        yield
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"Triton did not answer within {left:.3f} s, what was left of the time for this "
            "request",
            hint="send fewer or smaller tensors in one request",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ModelUnavailable(
            "Triton does not answer", hint="it may be starting: try again in a few seconds"
        ) from error


def path_of(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{version}" if version else path


def trace_headers() -> dict[str, str]:
    """Return what Triton is sent about the trace of the current request."""
    timings = g.record.timings
    return dict(timings.headers) if timings else {}
