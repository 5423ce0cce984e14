"""Look for what an author should mend in a model that Triton may load all the same."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from backends import engine_choice
from backends.engine_choice import ENGINE, PRECISION
from backends.model_config import ModelConfigError
from backends.onnxruntime.execution_providers import CPU, execution_providers
from backends.onnxruntime.session_settings import session_settings
from backends.openvino.session import STREAMS, THREADS
from backends.schedule import schedule_runs
from clients.errors import ClientDisabled
from clients.families.base.dispatch_toml import FILE, Keys, read_table
from clients.model_files.config_text import Field, Message, parse_integer
from clients.model_files.files import exists, text_of
from clients.model_files.model_folders import CONFIG, NAME, NAMED, version_folders
from clients.model_files.response_cache import CACHE, FIX, WHY, mixes_shapes
from clients.tensors.classes import labels_at
from clients.triton.configuration import config_dictionary
from container.model_check.file import is_onnx
from container.model_check.findings import ConfigFindings, Findings
from container.model_check.model import check_loading

READ = (ENGINE, PRECISION, THREADS, STREAMS)
"""The parameters that say how a model is run on the CPU; ONNX Runtime has more."""
ALIKE = 0.8
INTERPRETER = re.compile(r"bin/python[\d.]*")


def check_model(name: str, folder: Path, findings: Findings) -> None:
    """Note what keeps one model from being served, and what else its author should mend."""
    if not findings.links_replaced:
        check_links(folder, findings)
    if not NAME.fullmatch(name):
        findings.error(folder, f"is not served: {NAMED}", "rename the folder")
    if (message := check_loading(name, folder, findings)) is None:
        return
    if message.fields:
        config = ConfigFindings(findings, folder / CONFIG, text_of(folder / CONFIG))
        check_labels(config, message)
        check_batching(config, message)
        check_answers(config, message)
        check_cache(config, message)
        check_parameters(config, message)
    versions = version_folders(folder)
    if folder / "0" in versions:
        findings.warning(
            folder / "0",
            "cannot be asked for by its number: callers name versions from 1",
            "rename it, unless no caller names it",
        )


def check_links(folder: Path, findings: Findings) -> None:
    """Note links that are broken or lead out of the folder of all models."""
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink() or is_interpreter(path):
            continue
        target, what = path.resolve(), ""
        if not target.exists():
            what = f"is a link to {path.readlink()}, which is not there"
        elif not target.is_relative_to(findings.root):
            what = f"is a link that leads out of the folder, to {target}"
        if what:
            findings.error(
                path,
                what,
                "put the files themselves there, as `dispatcher pack` does; `cp -rL` follows links",
            )


def is_interpreter(path: Path) -> bool:
    """Whether a path is the interpreter of a virtual environment, a link that may lead out."""
    environment = path.parent.parent
    name = path.relative_to(environment).as_posix()
    is_named_so = bool(INTERPRETER.fullmatch(name)) and (environment / "pyvenv.cfg").is_file()
    return is_named_so and path.exists()


def check_batching(config: ConfigFindings, message: Message) -> None:
    """Warn of a dynamic batcher that never comes into effect."""
    most = message.readable_number("max_batch_size")
    stated = bool(message.all("max_batch_size") or message.all("input"))  # else it is found out
    scheduled = message.all("dynamic_batching")
    if scheduled and stated and most == 0:
        what = "has no effect where max_batch_size is 0"
        fix = "set max_batch_size to 1 or more, or leave dynamic_batching out"
        config.warning("dynamic_batching", scheduled, what, fix)


def check_answers(config: ConfigFindings, message: Message) -> None:
    """Note answers that a family cannot pass on."""
    decoupled = message.switches("model_transaction_policy", "decoupled")
    try:
        family = str(read_table(config.file.with_name(FILE)).get("family", Keys.family))
    except ClientDisabled:  # there is none, or it is reported elsewhere
        family = Keys.family
    if decoupled and family != Keys.family:
        what = f"makes any number of answers to a request; family {family!r} gives one"
        fix = f"leave `family` out of {FILE}, or write a class that asks by self.stream()"
        config.error("model_transaction_policy.decoupled", decoupled, what, fix)


def check_cache(config: ConfigFindings, message: Message) -> None:
    """Warn where Triton's response cache would mix up requests: the server leaves it out."""
    if (enabled := message.switches(*CACHE)) and mixes_shapes(message):
        config.warning(CACHE[0], enabled, f"has no effect: {WHY}", FIX)


def check_labels(config: ConfigFindings, message: Message) -> None:
    """Compare each file of labels with the size of its output."""
    folder = config.file.parent
    for output in message.messages("output"):
        for field in output.all("label_filename"):
            file = folder / str(field.value).lstrip("/")
            if not exists(file):
                what = f'is "{field.value}", which is not there'
                fix = f"put it into {folder.name}/, a label in each line"
                config.error("label_filename", [field], what, fix)
            elif not file.is_dir():  # a folder was reported as a cause of a crash
                count = len(labels_at(file))
                dims = [parse_integer(dim) for dim in output.texts("dims")]
                classes = next((dim for dim in reversed(dims) if dim != 1), -1)
                if 0 < classes != count:
                    config.findings.error(
                        file,
                        f"has {count} lines, but the output `{output.text('name')}` has "
                        f"{classes} classes",
                        f"give it {classes} lines, in the order in which the model was trained",
                    )


def find_refusals(config: Mapping[str, Any]) -> Iterator[ModelConfigError]:
    """Yield what the backend refuses of a configuration at the load on a CPU."""
    steps: list[Callable[[], object]] = [
        partial(engine_choice.preference, config, {}),
        partial(execution_providers, config, "CPU", 0, [CPU]),
        partial(session_settings, config),
        partial(schedule_runs, config, None, 0),
    ]
    for step in steps:
        try:
            step()
        except ModelConfigError as error:
            yield error


def check_parameters(config: ConfigFindings, message: Message) -> None:
    """Note parameters that an engine refuses, and warn of those without effect."""
    if not is_onnx(message, version_folders(config.file.parent)):
        return
    for refusal in find_refusals(config_dictionary(config.text)):
        (key,) = re.findall(r"parameter '([^']+)'", refusal.what)[:1] or [""]
        fields = [field for field, own in keyed(message) if own == key]
        config.error("", fields, refusal.what.removesuffix("."), refusal.fix)
    names = {name.lower(): name for name in READ}
    for field, key in keyed(message):
        near = difflib.get_close_matches(key.lower(), names, 1, cutoff=ALIKE)
        if near and key not in READ:
            what, fix = "is read by no backend", f"did you mean '{names[near[0]]}'?"
            config.warning("", [field], f"parameter '{key}' {what}", fix)


def keyed(message: Message) -> Iterator[tuple[Field, str]]:
    for field in message.all("parameters"):
        if isinstance(field.value, Message):
            yield field, field.value.text("key")
