"""Triton's own gRPC, where a setting opens it: models are asked, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.conftest import free_ports, running
from tests.support.models import onnx_models

NUMBERS = np.array([[1, 2, 3]], np.float32)  # the model adds one


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("open")
    model = folder / "repository" / "plus_one"
    onnx_models.plus_one(model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')
    port = str(free_ports(1)[0])
    settings = {"MODEL_REPOSITORY": str(folder / "repository"), "TRITON_PUBLIC_GRPC_PORT": port}
    with running(folder, **settings):
        yield f"127.0.0.1:{port}"


def test_open_grpc_asks_models_and_changes_nothing(address: str) -> None:
    with tritonclient.grpc.InferenceServerClient(address) as client:
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
