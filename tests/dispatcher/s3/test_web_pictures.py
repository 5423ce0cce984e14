"""Pictures that requests name by their URL, from a real server of https; and attacks by URL."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.s3.web_pictures import is_public
from dispatcher.settings import SettingError, read_settings
from tests.dispatcher.s3.conftest import Colour, MakeClient, png
from tests.support.application import serve_built_in
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error, resnet

SITE = "https://pictures.example.com"
PUBLIC = "93.184.216.34"
RED = {"pixel": [255, 0, 0], "others": []}


@dataclass
class Web:
    """The names and addresses of a made-up internet; its connections lead to the test's server."""

    port: int = 0
    late_s: float = 0.0  # so much later it is for the client
    names: dict[str, list[list[str]]] = field(default_factory=dict)  # what each is, one by one
    resolved: list[str] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)  # the header Host, and the target

    def resolve(self, host: str, port: int, **_: Any) -> Any:
        self.resolved.append(host)
        if host == "gone.example.com":
            raise socket.gaierror
        found = self.names[host].pop(0) if self.names.get(host) else [PUBLIC]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    def connect(self, address: tuple[str, int], timeout: float) -> socket.socket:
        self.connected.append(address[0])
        if address[0] == "1.0.0.1":
            raise ConnectionRefusedError
        made = socket.socket()
        made.settimeout(timeout)
        made.connect(("127.0.0.1", self.port))
        return made


class Handler(BaseHTTPRequestHandler):
    """Answers as a path says: `/STATUS/LOCATION`, or a name of what goes wrong."""

    web: Web

    def do_GET(self) -> None:
        self.web.asked.append((self.headers["Host"], self.path))
        path = self.path.partition("?")[0]
        status, _, place = path.removeprefix("/").partition("/")
        if path == "/slow-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            self.go_on(b"x")
            return
        self.send_response(int(status) if status.isdigit() else 200)
        lengths = {"/red.png": len(png("red")), "/half": len(png("red")), "/large": 2**20 + 1}
        for name, value in (("Location", place), ("Content-Length", lengths.get(path))):
            if value:
                self.send_header(name, str(value))
        self.end_headers()
        cut = 40 if path == "/half" else None
        self.wfile.write(b"<html>secret</html>" if path == "/html" else png("red")[:cut])
        if path in ("/endless", "/slow-body"):
            self.go_on(bytes(2**20) if path == "/endless" else b"x")

    def go_on(self, piece: bytes) -> None:
        """Send a piece again and again, until the other side has closed."""
        self.web.late_s = 0.0 if len(piece) > 1 else 3600.0
        with suppress(OSError):
            while not threading.Event().wait(0.02):
                self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for the names below example.com."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-subj", "/CN=test", "-addext",
         "subjectAltName=DNS:*.example.com", "-keyout", folder / "key", "-out", folder / "cert"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "both.pem").write_text((folder / "key").read_text() + (folder / "cert").read_text())
    return folder / "both.pem"


@pytest.fixture
def web(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    made = Web()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("", (Handler,), {"web": made})) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        made.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + made.late_s)
        monkeypatch.setattr("dispatcher.s3.web_pictures.time", clock)
        monkeypatch.setattr(socket, "getaddrinfo", made.resolve)
        monkeypatch.setattr(socket, "create_connection", made.connect)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        yield made
        server.shutdown()


@pytest.fixture
def make_one(built_in: Registry, tmp_path: Path) -> MakeClient:
    def made(**given: str) -> FlaskClient:
        environment = Environment(FakeTriton({"resnet": resnet}), tmp_path)
        return serve_built_in(built_in, environment, read_settings(given), Colour)

    return made


@pytest.fixture
def client(make_one: MakeClient) -> FlaskClient:
    hosts = "*.example.com, example.org:8443"
    return make_one(IMAGE_URL_HOSTS=hosts, MODEL_SERVER_MAX_BODY_MB="1")


def ask(client: FlaskClient, url: Any) -> Any:
    return client.post("/infer/colour", json={"img_url": url})


def test_a_picture_is_fetched_as_if_it_had_been_sent(
    client: FlaskClient, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    came = ask(client, f"{SITE}/red.png?signature=s3cret&größe=1")
    assert (came.json or {})["result"] == RED
    assert web.asked == [("pictures.example.com", "/red.png?signature=s3cret&gr%C3%B6%C3%9Fe=1")]
    sent = {"img": base64.b64encode(png("red")).decode()}
    listed = [{"img_url": f"{SITE}/red.png"}, sent]
    came = client.post("/invocations", json={"modelname": "resnet", "payload": listed}).json
    assert came["result"][0] == came["result"][1]
    missing = ask(client, "https://www.example.com/404/x?signature=s3cret")
    assert_error(
        missing, 404, "object_not_found", "answers 404 for https://www.example.com/404/x |"
    )
    assert "s3cret" not in missing.text + caplog.text
    stored = client.post("/infer/colour", json={"img_url": f"{SITE}/red.png", "output": {}})
    assert_error(stored, 400, "bad_payload", "`output` names no object")


@pytest.mark.parametrize(
    "url",
    [
        *("http://pictures.example.com/red.png", "file:///etc/passwd", "pictures.example.com", 7),
        *("https://pictures.example.com@evil.example.net/", "https://me:word@www.example.com/"),
        *("https://evil.example.net\\@www.example.com/", "https://2130706433/", "https:///x"),
        *("https://0177.0.0.1/", "https://0x7f.0x1/", "https://127.0.0.1/", "https://[::1]/"),
        *(
            "https://localhost/",
            "https://www.example.com:x/",
            f"https://www.example.com/{'x' * 4096}",
        ),
    ],
)
def test_what_is_no_plain_url_is_refused(client: FlaskClient, web: Web, url: Any) -> None:
    assert_error(ask(client, url), 400, "bad_payload", "expected https://HOST/PATH")
    assert not web.resolved


@pytest.mark.parametrize(
    "host", ["example.com", "notexample.com", "a.example.com:8443", "example.org"]
)
def test_a_host_has_to_be_in_the_list(client: FlaskClient, web: Web, host: str) -> None:
    words = (f"https://{host}/x", "IMAGE_URL_HOSTS has *.example.com, example.org:8443")
    assert_error(ask(client, f"https://{host}/x"), 403, "object_forbidden", *words)
    assert not web.resolved


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *((one, False) for one in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "::1")),
        *((one, False) for one in ("0.0.0.0", "169.254.169.254", "100.64.0.1", "224.0.0.1")),
        *((one, False) for one in ("240.0.0.1", "::", "fe80::1%eth0", "fd00:ec2::254", "ff02::1")),
        *((one, False) for one in ("fec0::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:a01:203")),
        *((one, False) for one in ("64:ff9b::7f00:1", "2002:7f00:1::", "2001::1")),
        *((one, True) for one in (PUBLIC, "2606:4700::1", "::ffff:5db8:d822")),
        ("64:ff9b::5db8:d822", True),
    ],
)  # fmt: skip
def test_an_address_is_public_or_not(address: str, *, public: bool) -> None:
    assert is_public(address) == public


def test_the_address_that_was_checked_is_connected_to(client: FlaskClient, web: Web) -> None:
    """By its second answer the name's server (DNS rebinding) leads to this host."""
    # The first refuses connections.
    web.names["one.example.com"] = [["1.0.0.1", PUBLIC], ["127.0.0.1"], ["10.0.0.1"]]
    assert ask(client, "https://one.example.com/red.png").status_code == 200
    assert (web.resolved, web.connected) == (["one.example.com"], ["1.0.0.1", PUBLIC])
    words = ("one.example.com has an address that is not public",)
    again = ask(client, "https://one.example.com/red.png")
    assert_error(again, 403, "object_forbidden", *words)
    web.names["two.example.com"] = [[PUBLIC, "::ffff:169.254.169.254"]]
    assert_error(ask(client, "https://two.example.com/"), 403, "object_forbidden", "not public")
    inside = ask(client, f"{SITE}/302/https://one.example.com/red.png")
    assert_error(inside, 403, "object_forbidden", *words)
    assert web.connected == ["1.0.0.1", PUBLIC, PUBLIC]


@pytest.mark.parametrize(
    ("place", "answer", "word"),
    [
        ("http://pictures.example.com/red.png", (400, "bad_payload"), "leads to, 'http://"),
        ("https://127.0.0.1/", (400, "bad_payload"), "no number for the host"),
        ("//me@other.example.com/", (400, "bad_payload"), "without a user"),
        (
            "https://example.net/x",
            (403, "object_forbidden"),
            "https://example.net/x is not allowed",
        ),
        ("https://pictures.example.com:22/", (403, "object_forbidden"), "is not allowed"),
    ],
)
def test_a_redirect_is_checked_as_the_first_url(
    client: FlaskClient, web: Web, place: str, answer: tuple[int, str], word: str
) -> None:
    assert_error(ask(client, f"{SITE}/302/{place}"), *answer, word)
    assert len(web.asked) == 1


def test_a_few_redirects_are_followed(client: FlaskClient, web: Web) -> None:
    came = ask(client, f"{SITE}/301/https://b.example.com/302/https://c.example.com/red.png")
    assert (came.json or {})["result"] == RED
    assert [host for host, _ in web.asked] == [
        f"{one}.example.com" for one in ("pictures", "b", "c")
    ]
    loop = ask(client, "https://loop.example.com/302//302/")
    assert_error(loop, 403, "object_forbidden", "more than 3 other places")
    assert len(web.asked) == 3 + 4


@pytest.mark.parametrize(
    ("path", "answer", "word"),
    [
        ("endless", (413, "object_too_large"), "/endless has more than 1 MiB"),
        ("large", (413, "object_too_large"), "MODEL_SERVER_MAX_BODY_MB"),
        ("slow-body", (504, "deadline_exceeded"), "pictures.example.com took too long"),
        ("slow-head", (504, "deadline_exceeded"), "pictures.example.com took too long"),
        ("half", (503, "storage_unavailable"), "broke off"),
        ("html", (415, "unsupported_media"), "is no picture"),
        ("403", (403, "object_forbidden"), "answers 403"),
        ("429", (503, "storage_unavailable"), "answers 429"),
        ("204", (502, "storage_failed"), "answers 204"),
    ],
)
def test_what_a_server_may_do(
    client: FlaskClient, web: Web, path: str, answer: tuple[int, str], word: str
) -> None:
    came = ask(client, f"{SITE}/{path}")
    assert_error(came, *answer, word)
    assert "secret" not in came.text
    assert web.connected == [PUBLIC]


def test_a_certificate_is_for_the_name(
    client: FlaskClient, make_one: MakeClient, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ask(client, "https://a.b.example.com/red.png")
    assert_error(
        other, 502, "storage_failed", "the certificate of a.b.example.com", "SSL_CERT_FILE"
    )
    assert_error(ask(client, "https://gone.example.com/"), 503, "storage_unavailable", "gaierror")
    monkeypatch.delenv("SSL_CERT_FILE")
    unknown = ask(make_one(IMAGE_URL_HOSTS="*.example.com"), f"{SITE}/red.png")
    assert_error(unknown, 502, "storage_failed", "self-signed certificate")
    assert not web.asked


def test_without_hosts_nothing_is_fetched(make_one: MakeClient, web: Web) -> None:
    client = make_one()
    came = client.post("/infer/resnet", json={"img_url": f"{SITE}/red.png"})
    assert_error(came, 400, "bad_body", "`img_url`", "set IMAGE_URL_HOSTS")
    given = {"img": base64.b64encode(png("red")).decode(), "img_url": "the author's own"}
    came = client.post("/infer/colour", json={"payload": given})
    assert (came.json or {})["result"] == {**RED, "others": ["img_url"]}
    client = make_one(IMAGE_URL_HOSTS="*.example.com", S3_BUCKET_NAME="pictures")
    both = client.post("/infer/colour", json={"img_url": f"{SITE}/red.png", "s3_key": "x"})
    assert_error(both, 400, "bad_payload", "both img_url and s3_key came")
    assert not web.resolved
    for hosts in ("*", "https://a.example", "127.0.0.1", "a.*.example", "a.example;b.example"):
        with pytest.raises(SettingError, match="IMAGE_URL_HOSTS"):
            read_settings({"IMAGE_URL_HOSTS": hosts})
