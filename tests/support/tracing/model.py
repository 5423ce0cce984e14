"""ResNet-50 in this project's backend, traced: as a `model.py` of the model's own.

Python in Triton's processes ignores PYTHONPATH, so that `sitecustomize` is imported here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(os.environ["TRIP_TRACING"])

import sitecustomize

from backends.onnxruntime.model import TritonPythonModel as OnnxModel

sitecustomize.begin()


class TritonPythonModel(OnnxModel):
    """One model instance; its configuration names this file, not the model's."""

    @staticmethod
    def model_file(folder: Path, _: str) -> Path:
        """Return the model's file in its version folder."""
        return OnnxModel.model_file(folder, "")
