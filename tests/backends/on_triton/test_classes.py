"""The best classes of an output: those of Triton itself, where it does not end over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import np_to_triton_dtype

from clients.errors import ModelFailed, TensorsRefused
from clients.triton.client import Triton
from tests.support.models import onnx_models, onnx_repository
from tests.support.models.onnx_repository import gives, rows, takes, tensor
from tests.support.triton import process as triton_process

TEXTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[b"abc"] * 3], object))])
            for _ in requests
        ]
"""


@pytest.fixture
def folder(triton: triton_process.Triton) -> Path:
    return triton.log_file.parent / "models"


@pytest.fixture
def client(triton: triton_process.Triton, folder: Path) -> Triton:
    return Triton(f"127.0.0.1:{triton.ports[0]}", repository=folder)


@contextmanager
def loaded(triton: triton_process.Triton, *models: str) -> Iterator[None]:
    for name in models:
        triton.client.load_model(name)
    yield
    for name in reversed(models):
        triton.client.unload_model(name)


def write_chain(folder: Path, model: str, tensors: Sequence[str], sides: str) -> str:
    """Write an ensemble that runs a model between each two tensors, and return its name."""
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{x}" }} '
        f'output_map {{ key: "y" value: "{y}" }} }}'
        for x, y in pairwise(tensors)
    )
    chain = f"{model}_chain"
    (folder / chain / "1").mkdir(parents=True)
    text = f'platform: "ensemble"\n{sides}ensemble_scheduling {{ step [ {steps} ] }}'
    (folder / chain / "config.pbtxt").write_text(text)
    return chain


@pytest.fixture(scope="module")
def _labelled(triton: triton_process.Triton) -> Iterator[None]:
    """x [n, 3] -> y = x + 1, with labels; and the same in an ensemble, as z."""
    folder = triton.log_file.parent / "models"
    onnx_models.plus_one(folder / "ants" / "1" / "model.onnx")
    (folder / "ants" / "labels.txt").write_bytes(b"ant\n\nb\xe9e\r\n")
    begin = rows(4) + onnx_repository.X
    label = tensor("output", "y", "FP32", "3", 'label_filename: "labels.txt"')
    (folder / "ants" / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{begin}{label}')
    chain = write_chain(folder, "ants", "xz", begin + gives("z", "3"))
    with loaded(triton, "ants", chain):
        yield


def triton_s_own(
    triton: triton_process.Triton, model: str, inputs: dict[str, Any], output: str, count: int
) -> list[Any]:
    sent = []
    for name, array in inputs.items():
        one = grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        sent.append(one.set_data_from_numpy(array))
    wanted = grpc_client.InferRequestedOutput(output, class_count=count)
    answer = triton.client.infer(model, sent, outputs=[wanted]).as_numpy(output)
    return list(answer.tolist())


@pytest.mark.usefixtures("_labelled")
@pytest.mark.parametrize(("model", "output"), [("ants", "y"), ("ants_chain", "z")])
def test_labels_are_those_of_triton(
    triton: triton_process.Triton, client: Triton, model: str, output: str
) -> None:
    """But for what Windows writes at the end of a line, which Triton takes for a part of them."""
    inputs = {"x": np.array([[0, 2, 1], [-5.5, 1e9, -1e-7]], np.float32)}
    for count in (1, 2, 3, 9):
        (came,) = client.infer(model, inputs, classes={output: count}, timeout=60).values()
        theirs = triton_s_own(triton, model, inputs, output, count)
        assert came.tolist() == [[one.removesuffix(b"\r") for one in row] for row in theirs]
    assert theirs[0][1] == b"2.000000:2:b\xe9e\r"
    assert came.tolist() == [
        [b"3.000000:1", b"2.000000:2:b\xe9e", b"1.000000:0:ant"],
        [b"1000000000.000000:1", b"1.000000:2:b\xe9e", b"-4.500000:0:ant"],
    ]


@pytest.mark.parametrize("kind", [k for k in onnx_models.EVERY_TYPE if k not in {"BOOL", "FP16"}])
def test_numbers_of_every_type_are_written_as_triton_does(
    triton: triton_process.Triton, client: Triton, kind: str
) -> None:
    inputs, only = onnx_models.in_every_type(), f"out_{kind}"
    answer = client.infer("every_type", inputs, classes={only: 2}, timeout=60)
    assert answer[only].tolist() == triton_s_own(triton, "every_type", inputs, only, 2)


def test_outputs_come_in_the_order_of_the_file_or_of_the_caller(client: Triton) -> None:
    """Triton hands a process their names as a set, whose order is another in each process."""
    inputs = onnx_models.in_every_type()
    in_file = [f"out_{name}" for name in onnx_models.EVERY_TYPE]
    assert list(client.infer("every_type", inputs, timeout=60)) == in_file
    backwards = in_file[::-1]
    assert list(client.infer("every_type", inputs, outputs=backwards, timeout=60)) == backwards


def test_a_model_that_answers_other_than_it_says_harms_nobody(
    triton: triton_process.Triton, client: Triton, folder: Path
) -> None:
    """Triton itself would end with SIGFPE: the output is configured as numbers, and texts come."""
    chain = write_liar(folder, "liar", TEXTS)
    x = {"x": np.zeros((1, 3), np.float32)}
    with loaded(triton, "liar", chain):
        assert client.infer("liar", x, timeout=60)["y"].tolist() == [[b"abc"] * 3]
        with pytest.raises(ModelFailed, match=r"that is object \[1, 3\]"):
            client.infer("liar", x, classes={"y": 2}, timeout=60)
        assert client.infer("liar", x, timeout=60)["y"].shape == (1, 3)
        with pytest.raises(ModelFailed) as failed:
            client.infer(chain, x, timeout=60)
        assert failed.value.message.endswith("'BYTES', but model 'liar' expects 'FP32'")
        with pytest.raises(TensorsRefused, match=r"Expected \[1,3\], got \[2,3\]"):
            client.infer(chain, {"x": np.zeros((2, 3), np.float32)}, timeout=60)
        with pytest.raises(TensorsRefused) as refused:
            client.infer(chain, {"x": np.zeros((1, 3))}, timeout=60)
        assert refused.value.message.endswith(f"'FP64', but model '{chain}' expects 'FP32'")


def test_a_model_that_answers_without_its_output_has_failed(
    triton: triton_process.Triton, client: Triton, folder: Path
) -> None:
    chain = write_liar(folder, "mute", TEXTS.replace('"y"', '"q"'))
    x = {"x": np.zeros((1, 3), np.float32)}
    with loaded(triton, "mute", chain):
        for asked in ({"outputs": ["y"]}, {"classes": {"y": 2}}, {}):
            with pytest.raises(ModelFailed, match="without its output 'y'; it gave"):
                client.infer("mute", x, **asked, timeout=60)  # type: ignore[arg-type]
        assert "mute" in client.take_failing()
        with pytest.raises(ModelFailed, match="missing required input"):
            client.infer(chain, x, timeout=60)
        with pytest.raises(TensorsRefused, match="missing required input"):
            client.infer(chain, {}, timeout=60)


def write_liar(folder: Path, name: str, code: str) -> str:
    """Write a model that answers other than it says, and return a chain of it with itself."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(code)
    sides = 'backend: "python"\n' + takes("x", "1, 3") + gives("y", "1, 3")
    (folder / name / "config.pbtxt").write_text(sides)
    between = ["x", "between", "y"]
    return write_chain(folder, name, between, takes("x", "-1, 3") + gives("y", "-1, 3"))
