"""Silero's models of speech, served, answer as their package does."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.conftest import PROJECT, Endpoint, running
from tests.support.asking import FORM, form_of
from tests.support.packages import unpacked
from tests.support.speech import RATE, as_file, speak

pytestmark = pytest.mark.slow
SILERO = "silero-vad==6.2.3"
CHUNK, CONTEXT = 512, 64
PAGES = {name: PROJECT / "docs" / "tasks" / f"{name}.md" for name in ("sound", "sequences")}
ONE = """family = "sound"
window = 576
hop = 512
before = 64
state = { state = "stateN" }
constants = { sr = 16000 }
"""
# The package's own program; PyTorch, which it imports beside it, is not needed.
ASK_PACKAGE = """
import json, sys, unittest.mock
sys.modules["torch"] = unittest.mock.MagicMock()
import numpy as np
from silero_vad.sequence_vad import SileroVADSequence, get_speech_timestamps_sequence
samples = np.load(sys.argv[1]).astype(np.float32) / 32768
model = SileroVADSequence(sys.argv[2])
parts = get_speech_timestamps_sequence(samples, model, return_seconds=True, time_resolution=3)
print(json.dumps([parts, model.audio_forward(samples).tolist()]))
"""


def block(page: str, beginning: str) -> str:
    """Return the file that a page shows."""
    text = PAGES[page].read_text()
    start = text.index(beginning) + len(beginning)
    return text[start : text.index("```", start)]


def ask_package(folder: Path, samples: Any) -> tuple[list[dict[str, float]], list[float]]:
    np.save(folder / "samples.npy", samples)
    package = unpacked(SILERO)
    model = package / "silero_vad/data/silero_vad_16k_sequence.onnx"
    command = [sys.executable, "-c", ASK_PACKAGE, str(folder / "samples.npy"), str(model)]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    parts, scores = json.loads(done.stdout)
    return parts, scores


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("sound")
    data = unpacked(SILERO) / "silero_vad/data"
    for name, file in (("vad", "_16k_sequence"), ("vad_one", ""), ("vad_chunks", "")):
        (folder / "models" / name / "1").mkdir(parents=True)
        shutil.copy(data / f"silero_vad{file}.onnx", folder / "models" / name / "1/model.onnx")
    models = folder / "models"
    (models / "vad/dispatch.toml").write_text(block("sound", "# vad/dispatch.toml\n"))
    (models / "vad_one/dispatch.toml").write_text(ONE)
    for name in ("vad", "vad_one"):
        (models / name / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 0\n')
    config = block("sequences", "# vad_chunks/config.pbtxt\n")
    (models / "vad_chunks/config.pbtxt").write_text(config)
    with running(folder, MODEL_REPOSITORY=str(models), PROBE_INTERVAL="60") as endpoint:
        yield endpoint


def test_ten_minutes_have_the_parts_of_the_package(endpoint: Endpoint, tmp_path: Path) -> None:
    samples = np.tile(speak(60), 10)
    parts, scores = ask_package(tmp_path, samples)
    assert len(parts) > 20
    said = {"Content-Type": "audio/flac"}
    came = endpoint.call("/infer/vad", as_file(samples), headers=said)
    assert came.json["result"] == {"seconds": 600.0, "speech": parts}
    came = endpoint.call("/infer/vad?answer=windows", as_file(samples), headers=said)
    windows = came.json["result"]["windows"]
    assert np.abs(np.array([one["score"] for one in windows]) - scores).max() < 1e-5
    assert windows[-1]["end"] == 600


def test_a_sound_comes_by_every_route(endpoint: Endpoint, tmp_path: Path) -> None:
    samples = speak(10)
    parts, _ = ask_package(tmp_path, samples)
    wav = as_file(samples, "WAV")
    payload = {"audio": base64.b64encode(wav).decode()}
    numbers = {"audio": (samples / 32768).tolist()}
    listed = [{"modelname": "vad", "payload": one} for one in (payload, numbers)]
    answers = [endpoint.call("/invocations", json.dumps(one)).json["result"] for one in listed]
    answers.append(endpoint.call("/infer/vad", wav, headers={"Content-Type": ""}).json["result"])
    form = endpoint.call("/infer/vad", form_of(wav, "audio/wav"), headers={"Content-Type": FORM})
    answers += form.json["result"]
    assert answers == [{"seconds": 10.0, "speech": parts}] * 4


def test_a_model_of_one_window_says_how_long_a_sound_may_be(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    samples = speak(5)
    _, scores = ask_package(tmp_path, samples)
    came = endpoint.call("/infer/vad_one", as_file(samples), headers={"Content-Type": "audio/flac"})
    windows = came.json["result"]["windows"]
    assert np.abs(np.array([one["score"] for one in windows]) - scores).max() < 1e-5
    silence = as_file(np.zeros(170 * RATE, np.int16))
    came = endpoint.call("/infer/vad_one", silence, headers={"Content-Type": "audio/flac"})
    assert (came.status, came.json["error"]["hint"]) == (
        400,
        "expected at most 160: send it in parts",
    )


def test_chunks_of_eight_callers_are_answered_exactly(endpoint: Endpoint) -> None:
    """By ONNX Runtime itself on the package's file, its state carried by hand."""
    file = unpacked(SILERO) / "silero_vad/data/silero_vad.onnx"
    session = onnxruntime.InferenceSession(file)

    def chunks(seed: int) -> Any:
        samples = np.r_[np.zeros(CONTEXT), speak(2.6, seed)[: 80 * CHUNK] / 32768]
        windows = np.lib.stride_tricks.sliding_window_view(samples, CONTEXT + CHUNK)[::CHUNK]
        return windows.astype(np.float32)

    def expected(windows: Any) -> list[float]:
        state, found = np.zeros((2, 1, 128), np.float32), []
        for one in windows:
            inputs = {"input": one[None], "state": state, "sr": np.array(RATE)}
            score, state = session.run(None, inputs)
            found.append(score.item())
        return found

    def served(windows: Any, identity: int) -> list[float]:
        found = []
        for place, one in enumerate(windows):
            shape = [1, CONTEXT + CHUNK]
            inputs = [{"name": "input", "shape": shape, "datatype": "FP32", "data": one.tolist()}]
            inputs += [{"name": "sr", "shape": [1], "datatype": "INT64", "data": [RATE]}]
            named = {"sequence_id": identity, "sequence_start": place == 0}
            body = {"inputs": inputs, "parameters": {**named, "sequence_end": place == 79}}
            came = endpoint.call("/infer/vad_chunks", json.dumps(body))
            assert came.status == 200, came.json
            found.append(came.json["outputs"][0]["data"][0])
        return found

    every = [chunks(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(served, every, range(1, 9)))
    for windows, came in zip(every, answers, strict=True):
        assert np.array(came, np.float32).tolist() == expected(windows)
