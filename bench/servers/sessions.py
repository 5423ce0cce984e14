"""The engines and precisions that run a model, for the limit and for rivals."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime

from backends.engine_choice import AUTO, BF16, EXACT, EnginePreference, precisions, processor
from backends.openvino.session import computing_in


class Engine(StrEnum):
    """A library and the precision of its arithmetic, as the tables name them."""

    ONNXRUNTIME = "ONNX Runtime fp32"
    OPENVINO_F32 = "OpenVINO f32"
    OPENVINO_BF16 = "OpenVINO bf16"


PRECISIONS = (EXACT, AUTO)
"""What the server's MODEL_PRECISION can be."""


def engines_at(precision: str) -> tuple[Engine, ...]:
    """Return the engines among which the limit is the best, by precision."""
    if precision == AUTO and has_bf16():
        return (Engine.OPENVINO_BF16,)
    return (Engine.ONNXRUNTIME, Engine.OPENVINO_F32)


def has_bf16() -> bool:
    """Whether this CPU computes bf16 itself: elsewhere it is slower than f32."""
    return BF16 in precisions(EnginePreference(precision=AUTO), processor())


def open_session(file: Path, engine: Engine, *, threads: int, streams: int = 1) -> Any:
    """Open a model as a session with ONNX Runtime's interface, for any thread.

    OpenVINO has threads for `streams` runs at a time; ONNX Runtime runs in the threads that call.
    """
    if engine is Engine.ONNXRUNTIME:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return OpenVino(file, engine, threads, streams)


class OpenVino:
    """A model in OpenVINO with the interface of an ONNX Runtime session.

    What a run returns is overwritten by the next run of the same thread.
    """

    def __init__(self, file: Path, engine: Engine, threads: int, streams: int) -> None:
        # A rival's environment may lack it.
        import openvino  # noqa: PLC0415

        core = openvino.Core()
        self._compiled = core.compile_model(
            core.read_model(file),
            "CPU",
            {
                **computing_in("bf16" if engine is Engine.OPENVINO_BF16 else "f32"),
                "NUM_STREAMS": streams,
                "INFERENCE_NUM_THREADS": threads * streams,
                # Each of several processes would pin its threads to the same cores.
                "ENABLE_CPU_PINNING": False,
            },
        )
        self._of_thread = threading.local()

    def run(
        self, outputs: Sequence[str], inputs: Mapping[str, npt.NDArray[Any]]
    ) -> list[npt.NDArray[Any]]:
        """Return some outputs."""
        if not hasattr(self._of_thread, "request"):
            self._of_thread.request = self._compiled.create_infer_request()
        answer = self._of_thread.request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [answer[name] for name in outputs]
