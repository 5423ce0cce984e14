"""Which engine runs a model, as a client of the real Triton sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.support.models import onnx_models, onnx_repository, openvino_models
from tests.support.models.onnx_repository import parameter
from tests.support.models.openvino_models import CLASSES, WIDTH
from tests.support.triton import process as triton_process
from tests.support.triton.calls import ask, configuration
from tests.support.triton.process import Triton

pytestmark = pytest.mark.slow
MIB = 2**20
ACCELERATED = (
    'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }\n'
)

Writer = Callable[[Path], None]

ONNX: dict[str, tuple[Writer, str]] = {
    "by_parameter": (openvino_models.two_layers, parameter("engine", "openvino")),
    "by_accelerator": (openvino_models.two_layers, ACCELERATED + onnx_repository.ONE),
    "pinned": (
        openvino_models.two_layers,
        parameter("engine", "onnxruntime") + onnx_repository.ONE,
    ),
    "own_setting": (
        openvino_models.two_layers,
        parameter("session.set_denormal_as_zero", "1") + ACCELERATED + onnx_repository.ONE,
    ),
    "texts": (onnx_models.words, parameter("engine", "openvino") + onnx_repository.ONE),
    "no_operator": (openvino_models.scaled, parameter("engine", "openvino") + onnx_repository.ONE),
    "long": (
        onnx_models.columns,
        "max_batch_size: 8\n" + parameter("engine", "openvino") + onnx_repository.ONE,
    ),
    "bare": (openvino_models.line, parameter("engine", "openvino")),
    "streams": (
        openvino_models.line,
        "max_batch_size: 8\n"
        + onnx_repository.X
        + onnx_repository.Y
        + onnx_repository.together(3)
        + parameter("engine", "openvino")
        + parameter("NUM_STREAMS", "2")
        + parameter("INFERENCE_NUM_THREADS", "2")
        + onnx_repository.ONE,
    ),
}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("engines_on_triton")
    for name, (write, config) in ONNX.items():
        write(folder / "models" / name / "1" / "model.onnx")
        text = f'backend: "onnxruntime"\n{config}'
        (folder / "models" / name / "config.pbtxt").write_text(text)
    # Few at a time, so that no comparison of engines takes too long on a slow machine.
    with triton_process.running(folder, ONNX, ["--model-load-thread-count=2"]) as server:
        yield server
    assert not triton_process.stubs(folder)


def rows(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, WIDTH)).astype(np.float32)


def said(triton: Triton, model: str) -> str:
    """Return what the log says of the engine of a model: each instance, and later of its runs."""
    begin = f"model '{model}': run by "
    lines = {
        line.partition(begin)[2].rstrip('"') for line in triton.log().splitlines() if begin in line
    }
    first = min(lines, key=len)
    assert all(line.startswith(first) for line in lines), lines
    return first


def test_every_model_that_should_load_is_ready(triton: Triton) -> None:
    assert triton.states() == dict.fromkeys(ONNX, ("READY", ""))


@pytest.mark.parametrize("model", ["by_parameter", "by_accelerator"])
def test_openvino_answers_as_onnx_runtime_does(triton: Triton, model: str) -> None:
    file = triton.log_file.parent / "models" / model / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert said(triton, model).startswith("OpenVINO in f32, ")
    assert "times as fast as ONNX Runtime in f32; worst difference on samples: `y`" in (
        said(triton, model)
    )
    for count in (1, 3):
        (expected,) = session.run(["y"], {"x": rows(count)})
        answer = ask(triton, model, x=rows(count)).as_numpy("y")
        assert answer.shape == (count, CLASSES)
        assert np.abs(answer - expected).max() < 1e-3 * np.ptp(expected)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("pinned", "(as its configuration says)"),
        ("own_setting", "(which alone knows session.set_denormal_as_zero)"),
        ("texts", "(it has tensors of text)"),
        ("no_operator", "(OpenVINO in f32 cannot: "),
    ],
)
def test_onnx_runtime_runs_the_others(triton: Triton, model: str, reason: str) -> None:
    assert said(triton, model).startswith(f"ONNX Runtime in f32 {reason}")


def test_what_openvino_does_not_run_is_answered(triton: Triton) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    assert ask(triton, "no_operator", x=x).as_numpy("y").tolist() == [[0, 2, 4]]
    assert ask(triton, "own_setting", x=rows(1)).as_numpy("y").shape == (1, CLASSES)
    words = np.array([[b"a", b"b"]], object)
    assert ask(triton, "texts", text=words).as_numpy("same").tolist() == [[b"a", b"b"]]


def test_the_weights_are_there_once_for_all_instances(triton: Triton) -> None:
    folder = triton.log_file.parent
    assert len(triton_process.stubs(folder, "by_parameter")) == 2
    made = sorted((folder / "ir").glob("*.xml"))
    assert len(made) == 5  # by_parameter, by_accelerator, long, bare, streams
    assert all(file.with_suffix(".bin").is_file() for file in made)
    maps = [
        Path("/proc", str(process), "maps").read_text()
        for process in triton_process.stubs(folder, "by_parameter")
    ]
    assert not any("/models/by_parameter/1/model.onnx" in one for one in maps)


def test_shared_memory_is_free_again(triton: Triton) -> None:
    """Of forty requests with 2 MiB each, and answers of as many, few are there at a time."""
    x = np.ones((1, MIB // 2), np.float32)
    for _ in range(40):
        answer = ask(triton, "long", x=x)
        assert answer.as_numpy("total").tolist() == [[MIB // 2]]
    assert triton_process.region_size(triton, "long") <= 24 * MIB


def test_a_configuration_is_completed_from_the_file(triton: Triton) -> None:
    config = configuration(triton, "bare")
    assert config["max_batch_size"] == 4
    assert "dynamic_batching" in config
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": ["3"]}]
    x = np.array([[1, 2, 3], [-1, 0.5, 4]], np.float32)
    answer = ask(triton, "bare", x=x).as_numpy("y")
    assert answer.tolist() == [[3, 6, 9], [-1, 3, 11]]


@pytest.mark.parametrize("model", ["bare", "streams"])
def test_nobody_gets_the_rows_of_others(triton: Triton, model: str) -> None:
    """Who shares a run, or has one beside it."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 5, 200).tolist()
    requests = [generator.integers(-99, 99, (size, 3)).astype(np.float32) for size in sizes]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda x: ask(triton, model, x=x), requests))
    for x, answer in zip(requests, answers, strict=True):
        assert answer.as_numpy("y").tolist() == (2 * x + [1, 2, 3]).tolist()
