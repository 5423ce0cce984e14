"""Look into a model's file and at the parameters that its backend refuses."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backends import engine_choice, parameters
from backends.completion import ModelFile, complete
from backends.config_check import check, refuse_ragged
from backends.engine_choice import ENGINE, ONNXRUNTIME, OPENVINO, PRECISION
from backends.model_config import ModelConfigError, has_operator, needs_completion
from backends.onnxruntime import session as onnxruntime
from backends.onnxruntime.execution_providers import CPU, execution_providers
from backends.onnxruntime.session_settings import own_settings, session_settings
from backends.openvino import session as openvino
from backends.openvino.properties import KEYS, properties
from clients.model_files.config_text import Message, read
from clients.model_files.findings import Findings
from clients.model_files.model_folders import CONFIG
from clients.triton.configuration import config_dictionary

PLATFORM = "onnxruntime_onnx"  # OpenVINO has none
READ = (ENGINE, PRECISION, *KEYS)
"""The parameters that say how a model is run on the CPU; ONNX Runtime has more."""
ALIKE = 0.8
KINDS = ("input", "output")
DESCRIBED = ("name", "data_type", "dims")  # what Triton wants of each tensor
LFS = b"version https://git-lfs"


def backend(message: Message, versions: list[Path]) -> str:
    """Return which of the two backends runs a model; empty for another."""
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

    Raises ModelConfigError: there is none.
    """
    name = message.text("default_model_filename")
    if backend(message, [version]) == OPENVINO:
        return openvino.model_file(version, name)
    return onnxruntime.model_file(version, name)


def open_model(file: Path, its: str) -> ModelFile | None:
    """Return a file opened by its backend's engine; None if not installed.

    Raises ModelConfigError: it cannot be read, or a tensor's type is not served.
    """
    if its != OPENVINO and file.suffix != ".xml":
        return onnxruntime.OnnxFile(file)
    return openvino.OpenVinoFile(file) if find_spec("openvino") else None


def find_refusals(config: Mapping[str, Any], its: str) -> Iterator[ModelConfigError]:
    """Yield what a backend refuses of a configuration at the load on a CPU."""
    steps: list[Callable[[], object]] = [partial(engine_choice.preference, config, {})]
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
            yield key, f"parameter '{key}' is read by no backend", f"did you mean '{name}'?"
    if its == OPENVINO and texts.get(ENGINE) == ONNXRUNTIME:
        what = f"parameter '{ENGINE}' has no effect beside backend: \"{OPENVINO}\""
        yield ENGINE, what, f'serve an ONNX model with backend: "{ONNXRUNTIME}", or leave it out'


LATIN = (b"[a-zA-Z0-9_]+",)
"""What skl2onnx writes in place of scikit-learn's pattern of a word."""


@dataclass(frozen=True)
class FileCheck:
    """Checks the files of one model."""

    folder: Path
    findings: Findings

    def contents(self, file: Path, text: str) -> None:
        """Look into the model's file, as far as it can be read without running it."""
        with file.open("rb") as start:
            begin = start.read(256)
        weights = file.with_suffix(openvino.WEIGHTS)
        if file.suffix == ".xml" and weights.is_file():
            with weights.open("rb") as start:
                if start.read(len(LFS)) == LFS:
                    file, begin = weights, LFS
        if begin.startswith(LFS):
            self.findings.error(
                file, "is a pointer of Git LFS, not the model", "run `git lfs pull`"
            )
        elif (begin.lstrip()[:1] == b"<" and file.suffix != ".xml") or not begin:
            what = "is empty" if not begin else "is a page of HTML"
            self.findings.error(file, f"{what}, not the model", "fetch it again")
        elif file.suffix in {".onnx", ".xml"} and begin.strip(b"\0"):
            self.graph(file, text)

    def graph(self, file: Path, text: str) -> None:
        """Compare the configuration with the model's file."""
        message = read(text)
        try:
            found = open_model(file, backend(message, [file.parent]))
        except ModelConfigError as error:
            fix = error.fix or "export it again"
            self.findings.error(file, f"cannot be served: {error.what.removesuffix('.')}", fix)
            return
        if has_operator(file, LATIN):
            self.findings.warning(
                file,
                f"its Tokenizer knows no letters but a to z: its pattern is {LATIN[0].decode()}; "
                "words with an umlaut, or in another script, are lost or cut",
                r"convert it with options={TfidfVectorizer: {'tokenexp': r'[\pL\pN_]{2,}'}}, and "
                "compare the answers with scikit-learn's",
            )
        tensors = [one for kind in KINDS for one in message.messages(kind)]
        if found is None or not all(one.all(key) for one in tensors for key in DESCRIBED):
            return
        try:
            warning = compare(text, found)
        except ModelConfigError as error:
            self.findings.error(
                self.folder / CONFIG,
                f"does not fit the model: {shorten_error(error)}",
                error.fix or "write it as the file has it, or leave input and output out",
            )
            return
        if warning:
            self.findings.warning(self.folder / CONFIG if text else file, *warning)


def shorten_error(error: ModelConfigError) -> str:
    """Return an error without the model's name at its beginning."""
    return (error.what.partition(": ")[2] or error.what).removesuffix(".")


def compare(text: str, opened: ModelFile) -> tuple[str, str] | None:
    """Compare a configuration with the file's tensors, as the backend does.

    Returns:
        what its author should look at, with the fix, if anything.

    Raises ModelConfigError: they do not fit.

    """
    config: dict[str, Any] = config_dictionary(text)
    refuse_ragged(config)
    warning = None
    if needs_completion(config):
        completion = complete(config, read(text), opened)
        config |= completion.fields
        warning = completion.warning
    check(config, opened.signature)
    return warning
