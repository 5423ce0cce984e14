"""Look for what may keep Triton from loading a model."""

from __future__ import annotations

import difflib
from pathlib import Path

from clients.model_files.config_text import Message, NotProtobufText, read
from clients.model_files.crash_causes import crash_causes
from clients.model_files.files import explain_denial, text_of
from clients.model_files.gpu_config import TENSORRT, gpu_settings, has_gpu
from clients.model_files.model_folders import (
    CONFIG,
    MODEL_FILES,
    PLAIN_MODELS,
    TO_ONNX,
    find_misplaced_configs,
    is_model,
    models_in,
)
from clients.triton.configuration import config_fault
from container.model_check.file import check_file
from container.model_check.findings import ConfigFindings, Findings
from container.model_check.versions import check_versions
from dispatcher.settings import PROJECT

EMBEDDED = {"onnxruntime", "python"}  # what the Triton of the wheel can run
OTHERS = {"dali", "ensemble", "fil", "identity", "tensorflow", "tensorrt", "vllm"}
BUILT_IN = PROJECT / "model_repository"


def check_folder(root: Path) -> Findings:
    """Return what may keep Triton from loading the models of a folder."""
    findings = Findings(root)
    for name, folder in models_in(root):
        try:
            check_loading(name, folder, findings)
        except OSError as error:
            file = Path(error.filename or folder)
            findings.error(file, f"cannot be read ({error.strerror}){explain_denial(file)}", "")
    return findings


def check_loading(name: str, folder: Path, findings: Findings) -> Message | None:
    """Note what may keep Triton from loading the model in a folder.

    Return its configuration; nothing where Triton cannot read it.
    """
    file = folder / CONFIG
    if not is_model(folder):  # a plain file, which is served as version 1
        for plain in filter(Path.is_file, (folder / one for one in PLAIN_MODELS)):
            check_file(ConfigFindings(findings, file, ""), plain)
        return Message()
    for path in find_misplaced_configs(folder):
        findings.error(
            path,
            "is in a version folder, where Triton does not read it",
            f"move it up into {folder.name}/",
        )
    for cause in crash_causes(folder):
        findings.error(file, cause.what, cause.fix, key=cause.key, line=cause.line)
    try:
        config = ConfigFindings(findings, file, text_of(file) if file.is_file() else "")
    except UnicodeDecodeError as error:
        findings.error(file, f"cannot be read ({error})", "write it as UTF-8 text")
        return None
    message = read_config(config)
    if message is not None:
        check_names(config, message, name)
        check_gpu(config)
        check_versions(config, message)
    return message


def read_config(config: ConfigFindings) -> Message | None:
    """Return the configuration; nothing where Triton cannot read it."""
    if fault := config_fault(config.text):
        line, reason, fix = fault
        config.findings.error(config.file, f"cannot be read: {reason}", fix, line=line)
        return None
    try:
        return read(config.text)
    except NotProtobufText as error:
        config.warning("", [], f"cannot be looked into: {error}", "write it more plainly")
        return None


def check_names(config: ConfigFindings, message: Message, folder: str) -> None:
    """Note a name that is not the folder's, and a backend that is not everywhere."""
    for name in message.all("name"):
        if name.value != folder:
            what = f'is "{name.value}", but the folder is {folder!r}; Triton refuses that'
            config.error("name", [name], what, f'write name: "{folder}", or rename the folder')
    fields = [*message.all("backend"), *message.all("platform")]
    its = message.text("backend") or message.text("platform")
    if its in EMBEDDED | {"", "ensemble", "onnxruntime_onnx"}:
        return
    if its in TENSORRT.values and not has_gpu():
        return  # `gpu_settings` says more
    known = its in OTHERS | MODEL_FILES.keys()
    near = difflib.get_close_matches(its, EMBEDDED | OTHERS, 1, cutoff=0.5)
    why = "only NVIDIA's image of Triton can run" if known else "Triton does not bring"
    fix = "build on that image" if known or not near else f'write backend: "{near[0]}"'
    if other := TO_ONNX.get(MODEL_FILES.get(its, "")):
        fix += f", or {other}"
    config.warning(fields[0].name, fields, f'is "{its}", which {why}', fix)


def check_gpu(config: ConfigFindings) -> None:
    """Warn of what asks for a GPU where there is none, unless Triton refuses it anywhere."""
    file = config.findings.shown(config.file)
    refused_anywhere = {(one.key, one.line) for one in config.findings.found if one.file == file}
    for one in gpu_settings(config.text) if not has_gpu() else ():
        if (one.key, one.line) not in refused_anywhere:
            config.warning(one.key, [one.field], one.rule.what, one.rule.fix)
