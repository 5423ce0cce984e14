"""What configurations ask of a GPU."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2

from clients.model_files.gpu_config import RULES, gpu_settings

ALL = """# for two cards
name: "big"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [
  { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] },
  { kind: KIND_CPU }
]
optimization { cuda { graphs: true } }
"""
CPU = 'backend: "onnxruntime"\ninstance_group { kind: KIND_AUTO count: 2 }\n'


def test_each_setting_is_found_with_its_line_and_its_fix() -> None:
    found = {one.key: one for one in gpu_settings(ALL)}
    assert {key: one.line for key, one in found.items()} == {
        "instance_group.kind": 7,
        "instance_group.gpus": 7,
    }
    assert "KIND_AUTO" in str(found["instance_group.kind"])


@pytest.mark.parametrize("text", [CPU, "", "instance_group {", "gpus: [0]"])
def test_what_asks_for_no_gpu_stays_as_it_is(text: str) -> None:
    assert gpu_settings(text) == []


@pytest.mark.parametrize("field", ['platform: "tensorrt_plan"', 'backend: "tensorrt"'])
def test_an_engine_of_tensorrt_says_what_is_missing(field: str) -> None:
    (found,) = gpu_settings(field)
    for words in ("TensorRT backend", "NVIDIA's image", "--gpus all", 'backend: "onnxruntime"'):
        assert words in str(found)


def test_each_key_is_one_of_triton_s_configuration() -> None:
    """Else a name that is written wrongly would never be found."""
    for key in RULES:
        message = model_config_pb2.ModelConfig.DESCRIPTOR
        for name in key.split("."):
            message = message.fields_by_name[name].message_type or message
