"""Triton's own ports, opened without keys: models are asked, and nothing is changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import free_ports, running
from tests.support.models import onnx_models

NUMBERS = np.array([[1, 2, 3]], np.float32)  # the model adds one


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The open ports of a container with a model of two versions: HTTP, gRPC, metrics."""
    folder = tmp_path_factory.mktemp("open-ports")
    model = folder / "repository" / "plus_one"
    for version in ("1", "2"):
        onnx_models.plus_one(model / version / "model.onnx")
    (model / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 4\nversion_policy { all {} }\n'
    )
    free = free_ports(3)
    with running(
        folder,
        MODEL_REPOSITORY=str(folder / "repository"),
        TRITON_PUBLIC_HTTP_PORT=str(free[0]),
        TRITON_PUBLIC_GRPC_PORT=str(free[1]),
        TRITON_PUBLIC_METRICS_PORT=str(free[2]),
    ):
        yield [f"127.0.0.1:{port}" for port in free]


def test_open_grpc_asks_models_and_changes_nothing(ports: list[str]) -> None:
    with tritonclient.grpc.InferenceServerClient(ports[1]) as client:
        assert client.is_server_ready()
        x = tritonclient.grpc.InferInput("x", [1, 3], "FP32")
        x.set_data_from_numpy(NUMBERS)
        np.testing.assert_array_equal(client.infer("plus_one", [x]).as_numpy("y"), [[2, 3, 4]])
        assert client.get_model_metadata("plus_one").versions == ["1", "2"]
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


def status_of(place: str, method: str, path: str) -> int:
    """Ask the open HTTP port of Triton for a path as it is written."""
    with closing(HTTPConnection(place, timeout=10)) as connection:
        connection.request(method, path)
        return connection.getresponse().status


def test_open_http_asks_models_and_changes_nothing(ports: list[str]) -> None:
    bare = triton.InferenceServerClient(ports[0])
    assert "system_shared_memory" in bare.get_server_metadata()["extensions"]
    assert bare.get_system_shared_memory_status() == []
    assert {one["name"] for one in bare.get_model_repository_index()} == {"plus_one"}
    x = triton.InferInput("x", [1, 3], "FP32")
    x.set_data_from_numpy(NUMBERS)
    np.testing.assert_array_equal(bare.infer("plus_one", [x], "1").as_numpy("y"), [[2, 3, 4]])
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
        assert status_of(ports[0], "POST", path) == 403, path
    assert status_of(ports[0], "GET", ways[0]) == 405
    assert bare.is_model_ready("plus_one")


def test_open_metrics_are_triton_s_own(ports: list[str]) -> None:
    host, _, port = ports[2].partition(":")
    with socket.create_connection((host, int(port))) as page:
        page.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert page.recv(15) == b"HTTP/1.1 200 OK"
