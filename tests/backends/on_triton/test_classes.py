"""The best classes of an output: those of Triton itself, where it does not end over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from clients.errors import ModelFailed, TensorsRefused
from clients.tensors.classes import classify, labels_at
from clients.triton.client import Triton
from tests.support.models import onnx_models, onnx_repository
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


@pytest.fixture
def labelled(triton: triton_process.Triton, folder: Path) -> Iterator[str]:
    """x [n, 3] -> y = x + 1, with labels; and the same in an ensemble, as z."""
    onnx_models.plus_one(folder / "ants" / "1" / "model.onnx")
    (folder / "ants" / "labels.txt").write_bytes(b"ant\n\nb\xe9e\r\n")
    config = 'backend: "onnxruntime"\nmax_batch_size: 4\n' + onnx_repository.X
    label = onnx_repository.tensor("output", "y", "FP32", "3", 'label_filename: "labels.txt"')
    (folder / "ants" / "config.pbtxt").write_text(config + label)
    (folder / "ants_chain" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "ants_chain" / "config.pbtxt").write_text(
        'platform: "ensemble"\nmax_batch_size: 4\n'
        + onnx_repository.X
        + onnx_repository.tensor("output", "z", "FP32", "3")
        + 'ensemble_scheduling { step [ { model_name: "ants" model_version: -1 '
        'input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } } ] }'
    )
    for name in ("ants", "ants_chain"):
        triton.client.load_model(name)
    yield "ants"
    for name in ("ants_chain", "ants"):
        triton.client.unload_model(name)


def triton_s_own(
    triton: triton_process.Triton, model: str, inputs: dict[str, Any], output: str, count: int
) -> list[Any]:
    sent = []
    for name, array in inputs.items():
        kind = grpc_client.InferInput(name, list(array.shape), grpc_client_type(array))
        kind.set_data_from_numpy(array)
        sent.append(kind)
    wanted = grpc_client.InferRequestedOutput(output, class_count=count)
    answer = triton.client.infer(model, sent, outputs=[wanted]).as_numpy(output)
    assert answer is not None
    return list(answer.tolist())


def grpc_client_type(array: np.ndarray[Any, Any]) -> str:
    kinds = {"f": "FP", "i": "INT", "u": "UINT"}
    return f"{kinds[array.dtype.kind]}{8 * array.itemsize}"


@pytest.mark.parametrize("model", ["ants", "ants_chain"])
def test_labels_are_those_of_triton(
    triton: triton_process.Triton, client: Triton, labelled: str, model: str
) -> None:
    """But for what Windows writes at the end of a line, which Triton takes for a part of them."""
    inputs = {"x": np.array([[0, 2, 1], [-5.5, 1e9, -1e-7]], np.float32)}
    output = "y" if model == labelled else "z"
    for count in (1, 2, 3, 9):
        (came,) = client.infer(model, inputs, classes={output: count}, timeout=30).values()
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
    inputs = {}
    for name in onnx_models.EVERY_TYPE:
        sample = onnx_models.EVERY_TYPE[name]
        dtype = onnx_models.helper.tensor_dtype_to_np_dtype(sample)
        greatest = 7.25 if dtype.kind == "f" else np.iinfo(dtype).max if dtype.kind in "iu" else 1
        inputs[f"in_{name}"] = np.array([[1, greatest]], dtype)
    only = f"out_{kind}"
    answer = client.infer("every_type", inputs, classes={only: 2}, timeout=30)
    sent = []
    for name, array in inputs.items():
        one = grpc_client.InferInput(name, [1, 2], name.removeprefix("in_"))
        one.set_data_from_numpy(array)
        sent.append(one)
    wanted = grpc_client.InferRequestedOutput(only, class_count=2)
    expected = triton.client.infer("every_type", sent, outputs=[wanted]).as_numpy(only)
    assert expected is not None
    assert answer[only].tolist() == expected.tolist()


def test_outputs_come_in_the_order_of_the_file_or_of_the_caller(client: Triton) -> None:
    """Triton hands a process their names as a set, whose order is another in each process."""
    inputs = {}
    for name, code in onnx_models.EVERY_TYPE.items():
        dtype = onnx_models.helper.tensor_dtype_to_np_dtype(code)
        inputs[f"in_{name}"] = np.ones((1, 2), dtype)
    in_file = [f"out_{name}" for name in onnx_models.EVERY_TYPE]
    assert list(client.infer("every_type", inputs, timeout=30)) == in_file
    backwards = in_file[::-1]
    assert list(client.infer("every_type", inputs, outputs=backwards, timeout=30)) == backwards


def test_a_model_that_answers_other_than_it_says_harms_nobody(
    triton: triton_process.Triton, client: Triton, folder: Path
) -> None:
    """Triton itself would end with SIGFPE: the output is configured as numbers, and texts come."""
    write_liar(folder / "liar")
    triton.client.load_model("liar")
    x = {"x": np.zeros((1, 3), np.float32)}
    assert client.infer("liar", x, timeout=30)["y"].tolist() == [[b"abc"] * 3]
    with pytest.raises(ModelFailed, match=r"that is object \[1, 3\]"):
        client.infer("liar", x, classes={"y": 2}, timeout=30)
    assert client.infer("liar", x, timeout=30)["y"].shape == (1, 3)
    with chained(triton, folder, "liar") as chain:
        with pytest.raises(ModelFailed) as failed:
            client.infer(chain, x, timeout=30)
        assert failed.value.message.endswith("'BYTES', but model 'liar' expects 'FP32'")
        with pytest.raises(TensorsRefused, match=r"Expected \[1,3\], got \[2,3\]"):
            client.infer(chain, {"x": np.zeros((2, 3), np.float32)}, timeout=30)
        with pytest.raises(TensorsRefused) as refused:
            client.infer(chain, {"x": np.zeros((1, 3))}, timeout=30)
        assert refused.value.message.endswith(f"'FP64', but model '{chain}' expects 'FP32'")
    triton.client.unload_model("liar")


def test_a_model_that_answers_without_its_output_has_failed(
    triton: triton_process.Triton, client: Triton, folder: Path
) -> None:
    write_liar(folder / "mute", TEXTS.replace('"y"', '"q"'))
    triton.client.load_model("mute")
    x = {"x": np.zeros((1, 3), np.float32)}
    for asked in ({"outputs": ["y"]}, {"classes": {"y": 2}}, {}):
        with pytest.raises(ModelFailed, match="without its output 'y'; it gave"):
            client.infer("mute", x, **asked, timeout=30)  # type: ignore[arg-type]
    assert "mute" in client.take_failing()
    with chained(triton, folder, "mute") as chain:
        with pytest.raises(ModelFailed, match="missing required input"):
            client.infer(chain, x, timeout=30)
        with pytest.raises(TensorsRefused, match="missing required input"):
            client.infer(chain, {}, timeout=30)
    triton.client.unload_model("mute")


@contextmanager
def chained(triton: triton_process.Triton, folder: Path, name: str) -> Iterator[str]:
    """An ensemble of a model that is loaded, twice: the second is given what the first answers."""
    chain = f"{name}_chain"
    (folder / chain / "1").mkdir(parents=True)
    first, second = (
        f'{{ model_name: "{name}" model_version: -1 input_map {{ key: "x" value: "{x}" }} '
        f'output_map {{ key: "y" value: "{y}" }} }}'
        for x, y in (("x", "between"), ("between", "y"))
    )
    (folder / chain / "config.pbtxt").write_text(
        'platform: "ensemble"\n'
        + onnx_repository.tensor("input", "x", "FP32", "-1, 3")
        + onnx_repository.tensor("output", "y", "FP32", "-1, 3")
        + f"ensemble_scheduling {{ step [ {first}, {second} ] }}"
    )
    triton.client.load_model(chain)
    yield chain
    triton.client.unload_model(chain)


def write_liar(folder: Path, code: str = TEXTS) -> None:
    """Write a model that answers texts where its configuration says numbers."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(
        'backend: "python"\n'
        + onnx_repository.tensor("input", "x", "FP32", "1, 3")
        + onnx_repository.tensor("output", "y", "FP32", "1, 3")
    )


def test_of_equal_scores_the_first_are_best_and_what_is_no_number_comes_last() -> None:
    scores = np.array([[2, np.nan, 3, 2], [np.inf, 0, 0, -np.inf]], np.float32)
    assert classify(scores, 4, [b"a"], batched=True).tolist() == [
        [b"3.000000:2", b"2.000000:0:a", b"2.000000:3", b"null:1"],
        [b"null:0:a", b"0.000000:1", b"0.000000:2", b"null:3"],
    ]
    assert classify(np.array([[1], [2]], np.int8), 1, [], batched=False).tolist() == [b"2:1"]
    assert classify(np.zeros((0, 3), np.float32), 2, [], batched=True).shape == (0, 2)
    assert classify(np.zeros((2, 0), np.float32), 2, [], batched=True).shape == (2, 0)
    with pytest.raises(ModelFailed, match="bool"):
        classify(np.array([True]), 1, [], batched=False)
    with pytest.raises(ModelFailed, match=r"float32 \[\]"):
        classify(np.float32(1)[...], 1, [], batched=True)
    with pytest.raises(TensorsRefused, match="100,002 classes"):
        classify(np.zeros((2, 50_001), np.float32), 2**31 - 1, [], batched=True)


def test_labels_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert list(labels_at(tmp_path / "labels.txt")) == []
    (tmp_path / "labels.txt").write_text("a\nb")
    assert list(labels_at(tmp_path / "labels.txt")) == [b"a", b"b"]


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_labels_may_begin_with_a_byte_order_mark(tmp_path: Path, coding: str) -> None:
    (tmp_path / "labels.txt").write_bytes("a\r\nö\r\n".encode(coding))
    assert list(labels_at(tmp_path / "labels.txt")) == [b"a", b"\xc3\xb6"]
