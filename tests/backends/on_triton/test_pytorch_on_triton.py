"""The pytorch backend as a client of the real Triton sees it."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from backends.pytorch.torchscript import place_and_reason
from clients.triton.errors import first_line
from tests.support.models import torchscript_models
from tests.support.triton.calls import ask, ask_together
from tests.support.triton.process import Triton

HAS_TORCH = importlib.util.find_spec("torch") is not None

needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")

LEFT = np.array([[5, 7]], np.float32)
RIGHT = np.array([[1, 2]], np.float32)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_the_refusal_says_how_to_mend_it(triton: Triton) -> None:
    state, reason = triton.states()[torchscript_models.ABSENT]
    assert state == "UNAVAILABLE"
    for part in ("torch cannot be imported", "pip install torch", "NVIDIA", "ONNX"):
        assert part in reason


def test_a_configuration_without_tensors_is_refused(triton: Triton) -> None:
    reason = triton.states()[torchscript_models.BARE][1]
    assert "the configuration has no input or no output, but 'model.pt', a TorchScript" in reason


@needs_torch
def test_every_model_that_should_load_is_ready(triton: Triton) -> None:
    states = triton.states()
    assert {name: states[name] for name in torchscript_models.SERVED} == dict.fromkeys(
        torchscript_models.SERVED, ("READY", "")
    )


@needs_torch
@pytest.mark.parametrize("model", torchscript_models.REFUSED)
def test_refusal_says_what_is_wrong(triton: Triton, model: str) -> None:
    state, reason = triton.states()[model]
    assert state == "UNAVAILABLE"
    assert torchscript_models.REFUSED[model][1] in reason


@needs_torch
def test_an_unreadable_file_is_named(triton: Triton) -> None:
    assert "PyTorch cannot open" in triton.states()[torchscript_models.ABSENT][1]


@needs_torch
@pytest.mark.parametrize(
    ("model", "left", "right", "output"),
    [
        ("torch_indices", "input__0", "input__1", "output__0"),
        ("torch_order", "first", "second", "difference"),
        ("torch_dict", "a", "b", "y"),
    ],
)
def test_tensors_are_named_as_natively(
    triton: Triton, model: str, left: str, right: str, output: str
) -> None:
    answer = ask(triton, model, output, **{right: RIGHT, left: LEFT})
    assert answer.as_numpy(output).tolist() == [[4, 5]]


@needs_torch
def test_an_optional_tensor_of_a_dictionary_may_be_left_out(triton: Triton) -> None:
    assert ask(triton, "torch_dict", "y", a=LEFT).as_numpy("y").tolist() == LEFT.tolist()


@needs_torch
def test_a_failing_request_fails_alone(triton: Triton) -> None:
    """The others are run once more, and each has its own result, wherever the module keeps it."""
    requests = [{"index": np.array([[index]])} for index in (0, 7, 2)]
    good, bad, other = ask_together(triton, "torch_lookup", requests)
    assert isinstance(bad, InferenceServerException)
    assert good.as_numpy("value").tolist() == [[10]]
    assert other.as_numpy("value").tolist() == [[30]]


@needs_torch
def test_a_failure_is_told_with_its_reason_and_logged_once(triton: Triton) -> None:
    indices = (7, 8, 9)
    requests = [{"index": np.array([[index]])} for index in indices]
    for index, error in zip(indices, ask_together(triton, "torch_lookup", requests), strict=True):
        reason = f"index {index} is out of bounds for dimension 0 with size 3"
        assert first_line(error.message()) == f"RuntimeError: {reason}"
    assert triton.log().count("torch_lookup/1/model.pt' failed: The following operation") == 1
    assert "self.table[index]" in triton.log()


def test_a_reason_is_what_follows_the_traceback() -> None:
    """The texts are PyTorch 2.13's: of an exception, a failed assertion, and a traced module."""
    head = "The following operation failed in the TorchScript interpreter.\n"
    here = '  File "m.py", line 3, in forward\n    y = x\n        ~ <--- HERE\n    return y: z\n'
    traced = "\nTraceback of TorchScript, original code (most recent call last):\nm.py(9): f\n"
    for place, reason in (
        (head + here, "builtins.ValueError: too large\nsecond: line"),
        (head + here, "RuntimeError: AssertionError:"),
        (head + here + traced, "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ):
        assert place_and_reason(f"{place}{reason} \n") == (place, reason)
    plain = "CUDA out of memory.\nRuntimeError: twice"
    assert place_and_reason(plain) == ("", plain)


@needs_torch
def test_lists_of_strings_go_both_ways(triton: Triton) -> None:
    answer = ask(triton, "torch_words", text=np.array([b"a", "é".encode()], dtype=object))
    assert [word.decode() for word in answer.as_numpy("twice")] == ["aa", "éé"]
