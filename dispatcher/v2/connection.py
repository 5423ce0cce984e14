"""Asks Triton's HTTP port."""

from __future__ import annotations

import http.client
import time
from contextlib import closing
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from flask import g

from clients.errors import DeadlineExceeded, ModelUnavailable
from clients.triton.errors import http_error
from dispatcher.errors import NotHere
from dispatcher.settings import Settings
from dispatcher.settings.remote_triton import TritonMetadata, tls_context


class TritonHttp:
    """Asks Triton over HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sent_along = TritonMetadata(settings.triton_metadata)
        is_tls = (settings.triton_http_url or "").startswith("https:")
        self.tls = tls_context(settings) if is_tls else None

    def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return what Triton answers.

        Raises InferenceError: by Triton's status; or Triton did not answer, or not in time.
        """
        until = g.record.since + self.settings.client_timeout
        left = max(0.001, until - time.monotonic())
        try:
            with closing(self.connection(left)) as connection:
                connection.request(method, path, body, dict(self.sent_along()))
                response = connection.getresponse()
                came = response.read()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"Triton did not answer within {left:.3f} s, what was left of the time for this "
                "request",
                hint="try again in a few seconds",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ModelUnavailable(
                "Triton does not answer", hint="it may be starting: try again in a few seconds"
            ) from error
        if response.status != HTTPStatus.OK:
            raise http_error(response.status, came, g.record.version)
        return came

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection to Triton's HTTP port."""
        url = self.settings.triton_http_url
        if not url:
            if self.settings.triton_url:
                raise NotHere(
                    "Triton is elsewhere, and its HTTP port is not known here",
                    hint="set TRITON_HTTP_URL; to run models it is not needed",
                )
            port = self.settings.triton_ports["http"]
            return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        host = urlsplit(url).netloc
        if self.tls is None:
            return http.client.HTTPConnection(host, timeout=timeout)
        return http.client.HTTPSConnection(host, timeout=timeout, context=self.tls)


def path_of(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{version}" if version else path
