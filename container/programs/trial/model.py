"""Completes a model's configuration in a child process, in place of the model's own file.

To complete a configuration Triton's Python backend imports the model in a process of its own, and
waits for the answer without end: a model whose import ends the process, or hangs, would take one of
Triton's few threads for loads for ever. So the stub imports this file, which asks the model in a
child, and says of one that ended how it ended and what it wrote last.

TRIAL_MODEL is the model's file and TRIAL_BACKEND the folder of its backend, or DEFAULT, as Triton
names both to its stub. It runs in the Python of the model's environment, 3.8 or newer.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

LAST_WORDS = 2000  # bytes of what a process wrote, for its error
# In the traceback of a process that crashed.
NOISE = re.compile(r"<frozen |importlib/__init__|^Extension modules|/trial/model\.py|<no Python")
LOOK_S = 0.2


class TritonPythonModel:
    """What the stub takes for the model."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Return what the model makes of its configuration.

        Raises Exception: what the model raises; RuntimeError where its process ended.
        """
        answer, written, child = start(config)
        found, words, status = follow(answer, written, child)
        if not found:
            raise RuntimeError(how_it_ended(status, words))
        result = json.loads(found)
        if "raised" in result:  # under its own name, which Triton puts before the text
            # Half a surrogate pair, as of a file's name that is not UTF-8, would end the stub.
            text = result["text"].encode(errors="backslashreplace").decode()
            raise type(result["raised"], (Exception,), {})(text)
        config._model_config = result["config"]  # noqa: SLF001  what the stub reads
        return config


def start(config: Any) -> tuple[int, int, int]:
    """Start the child; return where its answer and its output are read, and its process id."""
    answer, sink = os.pipe()
    written, output = os.pipe()
    child = os.fork()
    if child:
        os.close(sink)
        os.close(output)
        return answer, written, child
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(2)
    try:
        with os.fdopen(sink, "w", encoding="utf-8") as file:
            file.write(json.dumps(ask(config)))
        sys.stdout.flush()
    finally:
        os._exit(0)


def ask(config: Any) -> dict[str, Any]:
    """Return the completed configuration, or what the model raised."""
    try:
        model = load(Path(os.environ["TRIAL_MODEL"])).TritonPythonModel
        if hasattr(model, "auto_complete_config"):
            config = model.auto_complete_config(config)
    except BaseException as error:  # SystemExit too
        frames = traceback.extract_tb(error.__traceback__)[1:]
        places = [f"  {one.filename}({one.lineno}): {one.name}" for one in reversed(frames)]
        text = "\n".join([f"{error}\n", "At:", *places])
        return {"raised": type(error).__name__, "text": text}
    if not isinstance(config, pb_utils.ModelConfig):
        text = "auto_complete_config must return a pb_utils.ModelConfig"
        return {"raised": "TypeError", "text": text}
    return {"config": config._model_config}  # noqa: SLF001


def load(file: Path) -> Any:
    """Import a model as the stub would."""
    path, name = [str(file.parent), str(file.parents[1])], f"{file.parent.name}.{file.stem}"
    if (backend := os.environ["TRIAL_BACKEND"]) != "DEFAULT":
        path, name = [backend], "model"
    here = sys.path.index(str(Path(__file__).parent))
    sys.path[here : here + 1] = path
    del sys.modules["model"]  # this file
    return importlib.import_module(name)


def follow(answer: int, written: int, child: int) -> tuple[bytes, bytes, int]:
    """Pass on what the child writes; return its answer, its last words, and how it ended."""
    found, words, ended, status = b"", b"", 0, 0
    while True:
        ready, _, _ = select.select([answer, written], [], [], 0 if ended else LOOK_S)
        pieces = {file: os.read(file, 2**16) for file in ready}
        found += pieces.get(answer, b"")
        if piece := pieces.get(written, b""):
            os.write(2, piece)
            words = (words + piece)[-LAST_WORDS:]
        if ended and not any(pieces.values()):  # a process that it left may keep the pipes open
            return found, words, status
        if not ended:
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and not any(pieces.values()) and ready:  # it has closed both
                ended, status = os.waitpid(child, 0)


def how_it_ended(status: int, words: bytes) -> str:
    """Return how a process ended, and what it wrote last, in one line."""
    how = f"exit code {os.WEXITSTATUS(status)}"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        if number == signal.SIGKILL:
            how += ", as where memory or the time for the load runs out"
    lines = map(str.strip, words.decode(errors="replace").splitlines())
    said = " | ".join(line for line in lines if line and not NOISE.search(line)) or "nothing"
    return f"its process ended while the model was imported ({how}); it wrote last: {said}"
