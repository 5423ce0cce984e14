"""Fetches pictures by https, from the hosts that the settings allow.

No caller may reach through it what only the container reaches. A name is resolved once, and all its
addresses have to be public; the connection goes to one of them by number, so that the name cannot
mean another address by then (DNS rebinding). A redirect is checked as the first URL was. No proxy
is used: it would resolve the name itself.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv6Network, ip_address
from typing import Any, Final, cast
from urllib.parse import quote, urljoin, urlsplit

import certifi

from clients.errors import BadPayload, DeadlineExceeded, InferenceError, UnsupportedMedia
from clients.tensors.quoting import brief
from dispatcher import errors
from dispatcher.codecs.media import IMAGE_SIGNATURE
from dispatcher.s3.client import LATER
from dispatcher.settings.readers import HOST

URL_FIELD: Final = "img_url"
AGAIN: Final = "try again after Retry-After seconds; if it stays so, check the URL and the network"

PORT: Final = 443
MAX_URL: Final = 4096  # characters; one that is signed has some 1500
MAX_REDIRECTS: Final = 3
CONNECT_S: Final = 5.0
CHUNK: Final = 2**16
KEPT: Final = "%/:=&?~+!$,;'@()*[]"  # of a URL, as it is
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

GLOBAL_UNICAST: Final = IPv6Network("2000::/3")  # RFC 4291, 2.4: all that is assigned
NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052, 2.1: an IPv4 address behind it


@dataclass(frozen=True)
class PictureUrl:
    """An https URL whose host is allowed."""

    host: str
    port: int
    path: str
    query: str  # may hold a signature: it is neither shown nor logged

    @property
    def server(self) -> str:
        """The host, and its port if it is not the usual one."""
        return self.host if self.port == PORT else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"https://{self.server}{self.path}"


def read_url(text: object, hosts: Sequence[str]) -> PictureUrl:
    """Read a URL whose host is one of some, or below one such as `*.example.com`.

    Raises BadPayload: it is no URL of https, or has a user, or a number as its host.
    Raises ObjectForbidden: its host is not allowed.
    """
    url, plain = None, isinstance(text, str) and len(text) <= MAX_URL
    with suppress(ValueError):  # of the port, of brackets, or half of a surrogate pair
        parts = urlsplit(str(text) if plain else "")
        host, path = (parts.hostname or "").lower(), quote(parts.path or "/", KEPT)
        if parts.scheme == "https" and "@" not in parts.netloc and re.fullmatch(HOST, host):
            url = PictureUrl(host, parts.port or PORT, path, quote(parts.query, KEPT))
    if url is None:
        raise BadPayload(
            f"`{URL_FIELD}` is, or leads to, {brief(text)}",
            hint="expected https://HOST/PATH, without a user, and no number for the host",
        )
    for one in hosts:
        if url.server == one or (one.startswith("*.") and url.server.endswith(one[1:])):
            return url
    raise errors.ObjectForbidden(
        f"the host of {url} is not allowed", hint=f"IMAGE_URL_HOSTS has {', '.join(hosts)}"
    )


class TimedSocket(ssl.SSLSocket):
    """A connection whose reads end at one deadline, however slowly bytes come."""

    deadline: float  # by `time.monotonic()`

    def recv_into(self, *given: Any) -> int:
        """Read, as long as there is time."""
        self.settimeout(time_left(self.deadline))
        return super().recv_into(*given)


def time_left(deadline: float) -> float:
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left


@dataclass(frozen=True)
class WebPictures:
    """Fetches pictures, from any thread. Deadlines are on the clock of `time.monotonic()`."""

    hosts: tuple[str, ...]

    @cached_property
    def context(self) -> ssl.SSLContext:
        """What is trusted: the usual authorities, or those of SSL_CERT_FILE, as for OpenSSL."""
        # A slim image has none of its own.
        made = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
        made.sslsocket_class = TimedSocket
        return made

    def get(self, url: PictureUrl, deadline: float, most: int) -> bytes:
        """Return the picture at a URL, in one GET for it and each redirect; `most` is in bytes.

        Raises InferenceError: as `read_url` for a redirect, as `refuse_status`; or ObjectTooLarge,
        UnsupportedMedia, StorageFailed, StorageUnavailable (try again) or DeadlineExceeded.
        """
        here = url
        for _ in range(MAX_REDIRECTS + 1):
            with self.ask(here, deadline) as response:
                if response.status not in REDIRECTS:
                    refuse_status(here, response.status)
                    return b"".join(pieces_of(response, here, most))
                place = response.getheader("Location", "")
                here = read_url(urljoin(str(here), place), self.hosts)
        raise errors.ObjectForbidden(
            f"{url} leads to more than {MAX_REDIRECTS} other places", hint="send the last one's URL"
        )

    @contextmanager
    def ask(self, url: PictureUrl, deadline: float) -> Iterator[HTTPResponse]:
        """Provide the response to a GET; translate what goes wrong until its end."""
        try:
            with closing(HTTPSConnection(url.host, url.port, context=self.context)) as connection:
                connection.sock = self.connect(url, deadline)
                target = f"{url.path}?{url.query}" if url.query else url.path
                connection.request("GET", target, headers={"Accept": "image/*"})
                with connection.getresponse() as response:
                    yield response
        except InferenceError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"{url.server} took too long for {url}", hint=LATER) from None
        except ssl.SSLCertVerificationError as error:
            raise errors.StorageFailed(
                f"the certificate of {url.server} is not accepted: {error.verify_message}",
                hint="SSL_CERT_FILE names a file with the certificates of other authorities",
            ) from None
        except (OSError, HTTPException) as error:
            raise errors.StorageUnavailable(
                f"{url.server} cannot be reached, or broke off ({type(error).__name__})", hint=AGAIN
            ) from None

    def connect(self, url: PictureUrl, deadline: float) -> ssl.SSLSocket:
        """Connect to a public address of the URL's host, which shows a certificate for its name."""
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        if not all(map(is_public, addresses)):
            raise errors.ObjectForbidden(
                f"{url.server} has an address that is not public",
                hint="send the file itself, or put it into S3",
            )
        for address in addresses:
            with suppress(OSError):
                left = min(CONNECT_S, time_left(deadline))
                plain = socket.create_connection((address, url.port), left)
                break
        else:
            raise ConnectionError
        with closing(plain):  # which `wrap_socket` detaches
            plain.settimeout(time_left(deadline))
            wrapped = self.context.wrap_socket(plain, server_hostname=url.host)
        made = cast("TimedSocket", wrapped)  # see `context`
        made.deadline = deadline
        return made


def is_public(address: str) -> bool:
    """Whether an address is of the internet: none of a host, a network, a cloud or a group.

    Of an address of IPv6 that stands for one of IPv4, the latter counts.
    """
    parsed = ip_address(address)
    if parsed.version == 4:
        return parsed.is_global and not parsed.is_multicast
    behind = IPv4Address(int(parsed) % 2**32) if parsed in NAT64 else None
    if inner := parsed.ipv4_mapped or parsed.sixtofour or behind:
        return is_public(str(inner))
    return parsed.is_global and parsed in GLOBAL_UNICAST


def refuse_status(url: PictureUrl, status: int) -> None:
    said = f"{url.server} answers {status} for {url}"
    if status in {404, 410}:
        raise errors.ObjectNotFound(said, hint="check the URL")
    if status in {401, 403}:
        raise errors.ObjectForbidden(said, hint="a URL that is signed may have expired")
    if status == 429 or status >= 500:
        raise errors.StorageUnavailable(said, hint=AGAIN)
    if status != 200:
        raise errors.StorageFailed(said, hint="expected 200 with a picture")


def pieces_of(response: HTTPResponse, url: PictureUrl, most: int) -> Iterator[bytes]:
    """Yield the body of a response, if it begins like a picture and is no larger than `most`."""
    came = 0
    while came + (response.length or 0) <= most:
        piece = response.read(CHUNK)
        if not came and not IMAGE_SIGNATURE.match(piece):
            raise UnsupportedMedia(
                f"what {url} has is no picture", hint="expected a JPEG, PNG, WebP, BMP or GIF"
            )
        if not piece:
            if response.length:
                raise ConnectionError
            return
        yield piece
        came += len(piece)
    raise errors.ObjectTooLarge(
        f"{url} has more than {most // 2**20} MiB",
        hint="use a smaller picture, or raise MODEL_SERVER_MAX_BODY_MB",
    )
