"""Opens a model's file as its backend does, and says which parameters the backend refuses."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clients.config_text import Message
from container.backends import parameters, verdict
from container.backends.completion import ModelFile
from container.backends.model_config import ModelConfigError
from container.backends.onnxruntime import session as onnxruntime
from container.backends.onnxruntime.execution_providers import CPU, execution_providers
from container.backends.onnxruntime.session_settings import own_settings, session_settings
from container.backends.openvino import session as openvino
from container.backends.openvino.properties import KEYS, properties
from container.backends.verdict import ENGINE, ONNXRUNTIME, OPENVINO, PRECISION

PLATFORM = "onnxruntime_onnx"  # OpenVINO has none
READ = (ENGINE, PRECISION, *KEYS)
"""The parameters that say how a model is run on the CPU; ONNX Runtime has more."""
ALIKE = 0.8


def backend(message: Message, versions: list[Path]) -> str:
    """Return which of the two runs a model, as Triton finds out; nothing for another backend."""
    if said := message.text("backend"):
        return said if said in {ONNXRUNTIME, OPENVINO} else ""
    if platform := message.text("platform"):
        return ONNXRUNTIME if platform == PLATFORM else ""
    name = message.text("default_model_filename")
    for file, its in (
        (onnxruntime.DEFAULT_FILE, ONNXRUNTIME),
        (openvino.DEFAULT_FILES[0], OPENVINO),
    ):
        if name == file or (not name and any((path / file).exists() for path in versions)):
            return its
    return ""


def model_file(message: Message, version: Path) -> Path:
    """Return the file of a version.

    Raises:
        ModelConfigError: there is none.

    """
    name = message.text("default_model_filename")
    if backend(message, [version]) == OPENVINO:
        return openvino.model_file(version, name)
    return onnxruntime.model_file(version, name)


def opened(file: Path, its: str) -> ModelFile | None:
    """Return a file as it is opened by the engine of a backend; None where that is not installed.

    Raises:
        ModelConfigError: it cannot be read, or a tensor's type is not served.

    """
    if its != OPENVINO and file.suffix != ".xml":
        return onnxruntime.ModelFile(file)
    return openvino.OpenVinoFile(file) if find_spec("openvino") else None


def refused(config: Mapping[str, Any], its: str) -> Iterator[ModelConfigError]:
    """Yield what a backend refuses of a configuration when it loads the model on a CPU."""
    steps: list[Callable[[], object]] = [partial(verdict.wish, config, {})]
    if its == OPENVINO:
        steps.append(partial(properties, config))
    else:
        steps += [
            partial(execution_providers, config, "CPU", 0, [CPU]),
            partial(session_settings, config),
        ]
        if parameters.texts(config).get(ENGINE) != ONNXRUNTIME and not own_settings(config):
            steps.append(partial(properties, config))
    seen = set()
    for step in steps:
        try:
            step()
        except ModelConfigError as error:
            if error.what not in seen:  # both engines read the number of threads
                yield error
            seen.add(error.what)


def unread(config: Mapping[str, Any], its: str) -> Iterator[tuple[str, str, str]]:
    """Yield parameters without effect: the key, what is wrong, and the fix."""
    texts = parameters.texts(config)
    names = {name.lower(): name for name in READ}
    for key in texts.keys() - set(READ):
        if near := difflib.get_close_matches(key.lower(), names, 1, cutoff=ALIKE):
            name = names[near[0]]
            yield key, f"parameter '{key}' is read by nobody", f"did you mean '{name}'?"
    if its == OPENVINO and texts.get(ENGINE) == ONNXRUNTIME:
        what = f"parameter '{ENGINE}' has no effect beside backend: \"{OPENVINO}\""
        yield ENGINE, what, f'serve an ONNX model with backend: "{ONNXRUNTIME}", or leave it out'
