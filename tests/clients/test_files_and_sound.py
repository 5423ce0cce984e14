"""Classes and families for files and sound answer as the packages of their models do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PROJECT
from tests.support.packages import python_with, unpacked

MAGIKA = "magika==1.0.3"
PAGE = PROJECT / "docs" / "tasks" / "files.md"
ASK_MAGIKA = """
import json, sys, magika
model = magika.Magika()
found = [model.identify_path(path) for path in sys.argv[1:]]
print(json.dumps([[one.prediction.dl.label, one.prediction.score] for one in found]))
"""


def asked(python: Path, program: str, *arguments: object) -> Any:
    """Return what a program prints as JSON."""
    command = [str(python), "-c", program, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_the_page_s_class_for_any_file_answers_as_its_package(tmp_path: Path) -> None:
    standard = unpacked(MAGIKA) / "magika/models/standard_v3_3"
    (tmp_path / "magika" / "1").mkdir(parents=True)
    shutil.copy(standard / "model.onnx", tmp_path / "magika" / "1")
    shutil.copy(standard / "config.min.json", tmp_path / "magika")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
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
