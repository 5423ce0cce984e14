"""Look into a model's file and at the parameters that its backend refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backends.completion import complete
from backends.config_check import check, refuse_ragged
from backends.engine_choice import ONNXRUNTIME
from backends.model_config import ModelConfigError, has_operator, needs_completion
from backends.onnxruntime.session import DEFAULT_FILE, OnnxFile
from clients.model_files.config_text import Message, read
from clients.triton.configuration import config_dictionary
from container.model_check.findings import ConfigFindings

PLATFORM = "onnxruntime_onnx"
KINDS = ("input", "output")
DESCRIBED = ("name", "data_type", "dims")  # what Triton wants of each tensor
LFS = b"version https://git-lfs"
PLAIN_WORDS = (b"[a-zA-Z0-9_]+",)  # skl2onnx's `tokenexp`, where its author chooses no other
PLAIN_WORDS_LOST = "loses all letters but a to z, such as ä and é, which scikit-learn keeps"
PLAIN_WORDS_FIX = (
    r'convert it with options={TfidfVectorizer: {"tokenexp": r"[\pL\pN_]{2,}"}}, and compare both'
)


def is_onnx(message: Message, versions: list[Path]) -> bool:
    """Whether the embedded Triton's own backend runs a model."""
    if said := message.text("backend") or message.text("platform"):
        return said in {ONNXRUNTIME, PLATFORM}
    name = message.text("default_model_filename")
    return name == DEFAULT_FILE or (
        not name and any((path / DEFAULT_FILE).exists() for path in versions)
    )


def check_file(config: ConfigFindings, file: Path) -> None:
    """Look into a model's file, as far as it can be read without running it."""
    with file.open("rb") as start:
        begin = start.read(256)
    error = config.findings.error
    if begin.startswith(LFS):
        error(file, "is a pointer of Git LFS, not the model", "run `git lfs pull`")
    elif (begin.lstrip()[:1] == b"<" and file.suffix != ".xml") or not begin:
        what = "is empty" if not begin else "is a page of HTML"
        error(file, f"{what}, not the model", "fetch it again")
    elif file.suffix == ".onnx" and begin.strip(b"\0"):
        check_graph(config, file)


def check_graph(config: ConfigFindings, file: Path) -> None:
    """Compare the configuration with the model's file."""
    message = read(config.text)
    try:
        found = OnnxFile(file)
    except ModelConfigError as error:
        fix = error.fix or "export it again"
        config.findings.error(file, f"cannot be served: {error.what.removesuffix('.')}", fix)
        return
    if has_operator(file, PLAIN_WORDS):
        config.findings.warning(file, PLAIN_WORDS_LOST, PLAIN_WORDS_FIX)
    tensors = [one for kind in KINDS for one in message.messages(kind)]
    if not all(one.all(key) for one in tensors for key in DESCRIBED):
        return
    try:
        warning = compare(config.text, found)
    except ModelConfigError as error:
        what = (error.what.partition(": ")[2] or error.what).removesuffix(".")
        fix = error.fix or "write it as the file has it, or leave input and output out"
        config.error("", [], f"does not fit the model: {what}", fix)
        return
    if warning:
        config.findings.warning(config.file if config.text else file, *warning)


def compare(text: str, opened: OnnxFile) -> tuple[str, str] | None:
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
