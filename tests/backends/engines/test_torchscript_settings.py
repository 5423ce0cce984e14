"""Parameters of the configuration as settings of TorchScript, without Triton."""

from __future__ import annotations

import pytest

from backends.model_config import ModelConfigError
from backends.pytorch.torchscript_settings import (
    input_order,
    output_indices,
    read_signature,
    thread_counts,
    warn_of_unread,
)
from tests.backends.conftest import cpu_config


class TestTorchScript:
    def test_native_spellings(self) -> None:
        its = cpu_config(2, INTRA_OP_THREAD_COUNT="3", DISABLE_CUDNN="true")
        assert thread_counts(its, cpus=8) == (3, 4)
        (warning,) = warn_of_unread(its)
        assert "'DISABLE_CUDNN'" in warning

    def test_a_bad_value_names_its_key(self) -> None:
        with pytest.raises(ModelConfigError, match="parameter 'INTER_OP_THREAD_COUNT' is 'two'"):
            thread_counts(cpu_config(INTER_OP_THREAD_COUNT="two"), cpus=1)

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
            read_signature({"max_batch_size": 2, "input": [tensor], "output": []})
