"""Triton's own ports, where settings open them: models are asked, and nothing is changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.conftest import Endpoint, free_ports, running
from tests.support.models import onnx_models
from tests.support.telemetry import scraped

NUMBERS = np.array([[1, 2, 3]], np.float32)  # the model adds one


class Ports(NamedTuple):
    """Where the container's own port and Triton's are."""

    endpoint: Endpoint
    http: str
    grpc: str
    metrics: str


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("open")
    model = folder / "repository" / "plus_one"
    onnx_models.plus_one(model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')
    numbers = free_ports(3)
    names = ("HTTP", "GRPC", "METRICS")
    opened = {f"TRITON_PUBLIC_{name}_PORT": str(n) for name, n in zip(names, numbers, strict=True)}
    with running(folder, MODEL_REPOSITORY=str(folder / "repository"), **opened) as endpoint:
        yield Ports(endpoint, *(f"127.0.0.1:{number}" for number in numbers))


def test_open_grpc_asks_models_and_changes_nothing(ports: Ports) -> None:
    with tritonclient.grpc.InferenceServerClient(ports.grpc) as client:
        assert client.is_server_ready()
        x = tritonclient.grpc.InferInput("x", [1, 3], "FP32")
        x.set_data_from_numpy(NUMBERS)
        np.testing.assert_array_equal(client.infer("plus_one", [x]).as_numpy("y"), [[2, 3, 4]])
        assert client.get_model_metadata("plus_one").versions == ["1"]
        for refused in (
            lambda: client.unload_model("plus_one"),
            lambda: client.load_model("plus_one"),
            lambda: client.register_system_shared_memory("r", "/r", 16),
            lambda: client.update_log_settings({"log_verbose_level": 1}),
        ):
            with pytest.raises(InferenceServerException) as caught:
                refused()
            assert caught.value.status() == str(grpc.StatusCode.PERMISSION_DENIED)
        assert client.is_model_ready("plus_one")


def status_of(ports: Ports, method: str, path: str) -> int:
    """Ask the open HTTP port of Triton for a path as it is written."""
    with closing(HTTPConnection(ports.http, timeout=10)) as connection:
        connection.request(method, path)
        return connection.getresponse().status


def test_open_http_asks_models_and_changes_nothing(ports: Ports) -> None:
    bare = tritonclient.http.InferenceServerClient(ports.http)
    assert "system_shared_memory" in bare.get_server_metadata()["extensions"]
    assert bare.get_system_shared_memory_status() == []
    assert {one["name"] for one in bare.get_model_repository_index()} == {"plus_one"}
    x = tritonclient.http.InferInput("x", [1, 3], "FP32").set_data_from_numpy(NUMBERS)
    np.testing.assert_array_equal(bare.infer("plus_one", [x]).as_numpy("y"), [[2, 3, 4]])
    program = b"raise SystemExit"
    for refused in (
        lambda: bare.unload_model("plus_one"),
        lambda: bare.load_model("plus_one"),
        lambda: bare.load_model("sly", config="{}", files={"file:1/model.py": program}),
        lambda: bare.register_system_shared_memory("r", "/r", 16),
        lambda: bare.update_log_settings({"log_verbose_level": 1}),
    ):
        with pytest.raises(InferenceServerException) as caught:
            refused()
        assert (caught.value.status(), "not open here" in caught.value.message()) == ("403", True)
    where = "repository/models/plus_one/unload"
    ways = (f"/v2/{where}", f"//v2/{where}", f"/v2/health/../{where}", f"/v2/%72{where[1:]}")
    for path in (*ways, f"/v2/{where}?/infer", f"/v2/models/a/../../{where}"):
        assert status_of(ports, "POST", path) == 403, path
    assert status_of(ports, "GET", ways[0]) == 405
    assert bare.is_model_ready("plus_one")


def test_open_metrics_are_triton_s_own(ports: Ports) -> None:
    host, _, port = ports.metrics.partition(":")
    with socket.create_connection((host, int(port))) as page:
        page.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert page.recv(15) == b"HTTP/1.1 200 OK"


def test_what_triton_refuses_on_its_own_port_is_no_refusal_of_nginx(ports: Ports) -> None:
    def refusals() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        found = scraped(ports.endpoint)
        return {one: n for one, n in found.items() if one[0].startswith("dispatcher_proxy_ref")}

    before = refusals()
    assert status_of(ports, "GET", "/v2/models/nosuch") in {400, 404}
    assert ports.endpoint.call("/ping").status == 200
    assert refusals() == before
    assert '"path": "/v2/models/nosuch"' in ports.endpoint.log.read_text()
