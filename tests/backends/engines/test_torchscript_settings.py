"""Parameters of the configuration as settings of TorchScript, without Triton."""

from __future__ import annotations

from typing import Any

import pytest

from backends.model_config import ModelConfigError
from backends.pytorch.torchscript_settings import (
    configured_signature,
    input_order,
    output_indices,
    torch_settings,
)


def config(count: int = 1, **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "instance_group": [{"count": count, "kind": "KIND_CPU"}],
        "parameters": {
            key.replace("__", "."): {"string_value": text} for key, text in parameters.items()
        },
    }


class TestTorchScript:
    def test_native_spellings(self) -> None:
        settings, warnings = torch_settings(
            config(
                2,
                INTRA_OP_THREAD_COUNT="3",
                INFERENCE_MODE="false",
                DISABLE_OPTIMIZED_EXECUTION="true",
                DISABLE_CUDNN="true",
                ENABLE_CACHE_CLEANING="true",
                ENABLE_JIT_PROFILING="false",
                ENABLE_WEIGHT_SHARING="true",
            ),
            cpus=8,
        )
        assert (settings.intra_op_threads, settings.inter_op_threads) == (3, 4)
        assert not settings.inference_mode
        assert not settings.optimized_execution
        assert not settings.cudnn
        assert settings.cache_cleaning
        assert (settings.jit_profiling, settings.jit_executor) == (False, None)
        assert "ENABLE_WEIGHT_SHARING" in warnings[0]

    @pytest.mark.parametrize("key", ["INTER_OP_THREAD_COUNT", "INFERENCE_MODE", "DISABLE_CUDNN"])
    def test_a_bad_value_names_its_key(self, key: str) -> None:
        with pytest.raises(ModelConfigError, match=f"parameter '{key}' is 'two', but expected is"):
            torch_settings(config(**{key: "two"}), cpus=1)

    @pytest.mark.parametrize(
        ("names", "order"),
        [
            (["b", "a"], ["a", "b"]),
            (["input__1", "input__0"], ["input__0", "input__1"]),
            (["z", "y"], ["z", "y"]),
            (["a", "z"], ["a", "z"]),
        ],
    )
    def test_inputs_are_matched_as_natively(self, names: list[str], order: list[str]) -> None:
        assert input_order(names, ["a", "b"]) == order

    @pytest.mark.parametrize("names", [["a"], ["x__0", "x__2"], ["x__1", "x__1"]])
    def test_inputs_that_cannot_be_matched_are_refused(self, names: list[str]) -> None:
        with pytest.raises(
            ModelConfigError, match=f"the configuration has the inputs '{names[0]}'"
        ):
            input_order(names, ["a", "b"])

    def test_outputs_are_numbered_by_name_or_order(self) -> None:
        assert output_indices(["out__1", "out__0"]) == {"out__1": 1, "out__0": 0}
        assert output_indices(["a", "out__0"]) == {"a": 0, "out__0": 1}

    @pytest.mark.parametrize(
        ("data_type", "message"),
        [("TYPE_UINT32", "PyTorch expects one of"), ("TYPE_STRING", "expects one dimension")],
    )
    def test_types_that_pytorch_lacks_are_refused(self, data_type: str, message: str) -> None:
        tensor = {"name": "x", "data_type": data_type, "dims": [1]}
        with pytest.raises(ModelConfigError, match=f"input 'x' is {data_type}.*{message}"):
            configured_signature({"max_batch_size": 2, "input": [tensor], "output": []})
