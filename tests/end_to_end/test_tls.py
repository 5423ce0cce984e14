"""TLS and client certificates on NGINX's port: openssl's certificates, curl, requests and gRPC."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from container.certificates import Certificates
from dispatcher.settings import SettingError, read_settings
from tests.conftest import PATIENCE_S, PROJECT, Endpoint, free_ports, running, wait_for
from tests.support.front import front, key_lines
from tests.support.models import onnx_models
from tests.support.telemetry import parse_page, value

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
SLOW = {"modelname": "sleeps", "payload": {"seconds": [2.5]}}
DOUBLE = {"modelname": "double", "payload": {"numbers": [1]}}


def openssl(*words: Any) -> str:
    command = ["openssl", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def authority(folder: Path, name: str) -> None:
    subject = ("-subj", f"/CN={name}", "-days", 30)
    openssl("req", "-x509", *KEY, "-nodes", "-keyout", folder / f"{name}.key", "-out",
            folder / f"{name}.crt", *subject)  # fmt: skip


def certificate(folder: Path, name: str, by: str, days: int = 30, *more: str) -> None:
    """Make NAME.crt and NAME.key for localhost, signed by an authority."""
    ask, extra = folder / f"{name}.csr", folder / "extra"
    extra.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    openssl("req", "-new", *KEY, *(more or ("-nodes",)), "-keyout", folder / f"{name}.key",
            "-out", ask, "-subj", f"/CN={name}")  # fmt: skip
    openssl("x509", "-req", "-in", ask, "-CA", folder / f"{by}.crt", "-CAkey",
            folder / f"{by}.key", "-CAcreateserial", "-days", days, "-extfile", extra, "-out",
            folder / f"{name}.crt")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "stranger"):
        authority(folder, name)
    for name, by in (("first", "ca"), ("second", "ca"), ("caller", "ca"), ("other", "stranger")):
        certificate(folder, name, by)
    certificate(folder, "ended", "ca", -1)
    certificate(folder, "locked", "ca", 30, "-passout", "pass:secret")
    return folder


def put(folder: Path, made: Path, server: str, key: str = "") -> None:
    """Put files into a folder as the kubelet does, which turns a link to another folder."""
    version = folder / f"..{time.monotonic_ns()}"
    version.mkdir()
    for name, source in {
        "tls.crt": f"{server}.crt", "tls.key": f"{key or server}.key", "ca.crt": "ca.crt"
    }.items():  # fmt: skip
        shutil.copy(made / source, version / name)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").rename(folder / "..data")


def settings_of(folder: Path) -> dict[str, str]:
    files = {"TLS_CERTIFICATE": "tls.crt", "TLS_KEY": "tls.key", "TLS_CLIENT_CA": "ca.crt"}
    return {variable: str(folder / name) for variable, name in files.items()}


@pytest.fixture(scope="module")
def mounted(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mounted")
    put(folder, made, "first")
    return folder


@pytest.fixture(scope="module")
def house(mounted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("house"), **settings_of(mounted)) as endpoint:
        yield endpoint


def curl(house: Endpoint, made: Path, path: str, who: str = "", *more: str) -> tuple[int, Any]:
    own = ("--cert", made / f"{who}.crt", "--key", made / f"{who}.key") if who else ()
    url = path if "://" in path else f"https://localhost:{house.port}{path}"
    command = ["curl", "-s", "-w", "\n%{http_code}", "--cacert", made / "ca.crt", *own, *more, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body or "null")


def test_who_shows_a_certificate_of_the_authority_may_ask(house: Endpoint, made: Path) -> None:
    sent = ("--data", json.dumps(DOUBLE))
    status, answer = curl(house, made, "/invocations", "caller", *sent)
    assert (status, answer["result"]) == (200, [2])
    for forged in ("X-SSL-Client-Verify: SUCCESS", "X-SSL-Client-S-DN: CN=caller",
                   "X-Forwarded-Client-Cert: Hash=1", "ssl_client_verify: SUCCESS"):  # fmt: skip
        for path in ("/invocations", "/models", "/v2/models/double/infer", "/page/../models",
                     "/page/%2e%2e/models", "/ping/..%2fmodels", "//models"):  # fmt: skip
            status, answer = curl(house, made, path, "", "--path-as-is", "-H", forged)
            assert status == 401
            assert "there is no client certificate" in str(answer)
    for path in ("/infer/..", "/infer/%2e%2e", "/models/..", "/models/%2e%2e"):
        status, answer = curl(house, made, path, "", "--path-as-is", *sent)
        assert (status, "double" in str(answer)) == (404, False)
    status, answer = curl(house, made, "/invocations", "other", *sent)
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert "is not accepted: FAILED:" in answer["error"]["message"]
    status, answer = curl(house, made, "/endpoints/a/invocations", "", *sent)
    assert (status, answer["OriginalStatusCode"]) == (424, 401)
    assert "there is no client certificate" in answer["Message"]


def test_load_balancers_need_no_certificate_and_old_protocols_are_refused(
    house: Endpoint, made: Path
) -> None:
    for path in ("/ping", "/v2/health/live", "/execution-parameters"):
        assert curl(house, made, path)[0] == 200
    assert curl(house, made, "/ping", "", "--tls-max", "1.1")[0] == 0
    assert curl(house, made, "/ping", "", "--http2", "-w", "%{http_version}\n200")[0] == 200
    status, answer = curl(house, made, f"http://localhost:{house.port}/ping")
    assert (status, answer["error"]["hint"]) == (400, "ask by https://")
    _, answer = curl(house, made, f"http://localhost:{house.port}/models?no_certificate")
    assert "without TLS" in answer["error"]["message"]


def shown(house: Endpoint) -> str:
    command = ["openssl", "s_client", "-connect", f"localhost:{house.port}"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    return done.stdout.partition("subject=CN = ")[2].split()[0]


def test_files_that_change_are_taken_up_without_a_failed_request(
    house: Endpoint, made: Path, mounted: Path
) -> None:
    url, over = f"https://localhost:{house.port}/invocations", threading.Event()
    own = {"verify": str(made / "ca.crt"), "cert": (made / "caller.crt", made / "caller.key")}
    own["cert"] = tuple(map(str, own["cert"]))  # type: ignore[assignment]
    found: list[Any] = []

    def load(*, keeps: bool) -> None:
        with requests.Session() as session:
            while not over.is_set():
                ask = session.post if keeps else requests.post
                try:
                    found.append(ask(url, json=DOUBLE, timeout=PATIENCE_S, **own).status_code)  # type: ignore[arg-type]
                except requests.RequestException as error:
                    # NGINX, as any server, may close a kept connection while a request comes.
                    if not keeps or "RemoteDisconnected" not in str(error):
                        found.append(error)

    slow: list[int] = []
    threads = [threading.Thread(target=load, kwargs={"keeps": n % 2 == 0}) for n in range(4)]
    threads += [threading.Thread(
        target=lambda: slow.append(requests.post(url, json=SLOW, **own).status_code))]  # type: ignore[arg-type] # fmt: skip
    for one in threads:
        one.start()
    try:
        put(mounted, made, "second")
        wait_for(lambda: shown(house) == "second", "the second certificate")
        put(mounted, made, "first", "second")  # a key of another certificate
        wait_for(lambda: "stay in force" in house.log.read_text(), "the fault in the log")
        assert shown(house) == "second"
        put(mounted, made, "first")
        wait_for(lambda: shown(house) == "first", "the first certificate")
    finally:
        over.set()
        for one in threads:
            one.join()
    assert slow == [200]
    assert len(found) > 50
    assert set(found) == {200}


@pytest.mark.parametrize(
    ("server", "key", "authority", "said"),
    [
        ("ended.crt", "ended.key", "", "^TLS_CERTIFICATE is .*: it has ended on .* GMT; expected"),
        ("first.key", "first.key", "", "^TLS_CERTIFICATE is .* expected: a certificate in PEM"),
        ("first.crt", "second.key", "", "^TLS_KEY is .* key values mismatch.* the key of TLS_CERT"),
        ("locked.crt", "locked.key", "", "^TLS_KEY is .*: it needs a passphrase; expected"),
        ("first.crt", "nowhere", "", "^TLS_KEY is .*: No such file or directory; expected"),
        ("first.crt", "", "", "^TLS_KEY is .*first.crt': "),
        ("first.crt", "first.key", "first.key", "^TLS_CLIENT_CA is .* certificates of authorities"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_stops_the_start_with_a_sentence(
    tmp_path: Path, made: Path, server: str, key: str, authority: str, said: str
) -> None:
    given = {"TLS_CERTIFICATE": server, "TLS_KEY": key, "TLS_CLIENT_CA": authority}
    settings = read_settings({name: str(made / one) for name, one in given.items() if one})
    with pytest.raises(SettingError, match=said):
        Certificates(settings, tmp_path, print)
    with pytest.raises(SettingError, match="TLS_CERTIFICATE too"):
        read_settings({"TLS_KEY": "/key"})


@pytest.mark.slow
def test_keys_and_certificates_hold_on_triton_s_own_port(
    made: Path, mounted: Path, tmp_path: Path
) -> None:
    onnx_models.plus_one(tmp_path / "models" / "plus" / "1" / "model.onnx")
    key = key_lines("inference", shop="good")
    limited = key_lines("inference", few="limited").strip() + " models=plus\n"
    (tmp_path / "keys").write_text(key + limited + key_lines("management", ops="managing"))
    port = free_ports(1)[0]
    own = {"MODEL_REPOSITORY": str(tmp_path / "models"), "API_KEYS_FILE": str(tmp_path / "keys")}
    own |= {"TRITON_PUBLIC_GRPC_PORT": str(port), **settings_of(mounted)}
    with running(tmp_path, **own) as endpoint:
        assert f"POST https://127.0.0.1:{endpoint.port}/invocations" in endpoint.log.read_text()
        environment = {**os.environ, **own, "SAGEMAKER_BIND_TO_PORT": str(endpoint.port)}
        command = [sys.executable, "-m", "container.health"]
        assert subprocess.run(command, env=environment, cwd=PROJECT, check=False).returncode == 0
        status, _ = curl(endpoint, made, "/models", "caller", "-H", "x-api-key: good")
        assert (status, curl(endpoint, made, "/models", "caller")[0]) == (200, 401)
        page = requests.get(
            f"https://localhost:{endpoint.port}/metrics", headers={"x-api-key": "good"}, timeout=90,
            verify=str(made / "ca.crt"), cert=(str(made / "caller.crt"), str(made / "caller.key")),
        )  # fmt: skip
        metrics = parse_page(page.text)
        assert value(metrics, "dispatcher_tls_ok") == 1
        ends = value(metrics, "dispatcher_tls_certificate_end_timestamp_seconds")
        said = openssl("x509", "-noout", "-enddate", "-in", made / "first.crt").strip()
        assert said == time.strftime("notAfter=%b %e %H:%M:%S %Y GMT", time.gmtime(ends))

        x = grpc_client.InferInput("x", [1, 3], "FP32")
        x.set_data_from_numpy(np.array([[4, 5, 6]], np.float32))

        def channel(who: str) -> grpc_client.InferenceServerClient:
            pair = {"certificate_chain": made / f"{who}.crt", "private_key": made / f"{who}.key"}
            own = {name: one.read_bytes() for name, one in pair.items()} if who else {}
            tls = grpc.ssl_channel_credentials((made / "ca.crt").read_bytes(), **own)
            return grpc_client.InferenceServerClient(f"localhost:{port}", ssl=True, creds=tls)

        def ask(who: str, key: str) -> Any:
            with channel(who) as one:
                assert one.is_server_live()
                return one.infer("plus", [x], headers={"x-api-key": key} if key else None)

        assert ask("caller", "good").as_numpy("y").tolist() == [[5, 6, 7]]
        with channel("caller") as one:  # a stream has its key as one call does
            came: queue.Queue[Any] = queue.Queue()
            one.start_stream(lambda result, error: came.put(error or result),
                             headers={"x-api-key": "good"})  # fmt: skip
            for _ in range(3):
                one.async_stream_infer("plus", [x])
            for _ in range(3):
                assert came.get(timeout=PATIENCE_S).as_numpy("y").tolist() == [[5, 6, 7]]
        for who, key in (("caller", ""), ("caller", "bad"), ("caller", "limited"),
                         ("caller", "managing"), ("", "good")):  # fmt: skip
            with pytest.raises(InferenceServerException) as caught:
                ask(who, key)
            assert caught.value.status() == str(grpc.StatusCode.UNAUTHENTICATED), (who, key)
