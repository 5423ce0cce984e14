"""Look for mistakes in one model folder: configuration, samples and labels."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backends.engine_choice import SAMPLES
from clients.errors import ClientDisabled
from clients.families.base.dispatch_toml import FILE, Keys, read_table
from clients.model_files.config_text import (
    Field,
    Message,
    NotProtobufText,
    ensemble_steps,
    parse_integer,
    read,
    read_folder,
)
from clients.model_files.crash_causes import TRUE, crash_causes
from clients.model_files.files import exists, text_of
from clients.model_files.findings import ConfigFindings, Findings
from clients.model_files.gpu_config import TENSORRT, gpu_settings, has_gpu
from clients.model_files.model_folders import (
    CONFIG,
    MODEL_FILES,
    PLAIN_MODELS,
    find_misplaced_configs,
    is_model,
)
from clients.model_files.response_cache import mixes_shapes
from clients.tensors.classes import labels_at
from clients.triton.configuration import config_dictionary, config_fault
from container.model_check import environment, samples
from container.model_check import file as file_check
from container.model_check.file import FileCheck
from container.model_check.versions import FROM_PYTORCH, VersionCheck, version_folders
from container.trouble import Trouble
from dispatcher.settings import ADAPT, PROJECT

EMBEDDED = {"onnxruntime", "openvino", "python"}  # what the Triton of the wheel can run
OTHERS = {"dali", "ensemble", "fil", "identity", "tensorflow", "tensorrt", "vllm"}
BUILT_IN = PROJECT / "model_repository"


@dataclass(frozen=True)
class ModelCheck:
    """Checks one model folder."""

    folder: Path
    name: str
    findings: Findings

    def run(self) -> None:
        """Note all that is wrong."""
        if not is_model(self.folder):  # a plain file, which is served as version 1
            for name in PLAIN_MODELS:
                if (self.folder / name).is_file():
                    self.files().contents(self.folder / name, "")
            self.samples()
            return
        file = self.folder / CONFIG
        for path in find_misplaced_configs(self.folder):
            self.findings.error(
                path,
                "is in a version folder, where Triton does not read it",
                f"move it up into {self.folder.name}/",
            )
        for fault in crash_causes(self.folder):
            self.findings.error(file, fault.what, fault.fix, key=fault.key, line=fault.line)
        if not file.is_file():
            self.versions().run(Message(), "")
            return
        try:
            text = text_of(file)
        except UnicodeDecodeError as error:
            self.findings.error(file, f"cannot be read ({error})", "write it as UTF-8 text")
            return
        message = self.readable(file, text)
        if message is not None:
            config = ConfigFindings(self.findings, file, text)
            self.named(config, message)
            self.batching(config, message)
            self.answering(config, message)
            self.caching(config, message)
            self.labels(config, message)
            self.gpu(config, text)
            self.steps(config, message)
            self.engine(config, message)
            self.environments(config, message)
            self.versions().run(message, text)

    def files(self) -> FileCheck:
        return FileCheck(self.folder, self.findings)

    def versions(self) -> VersionCheck:
        return VersionCheck(self.folder, self.findings, self.files())

    def readable(self, config: Path, text: str) -> Message | None:
        """Return the configuration; nothing where Triton cannot read it."""
        if fault := config_fault(text):
            line, reason, fix = fault
            self.findings.error(config, f"cannot be read: {reason}", fix, line=line)
            return None
        try:
            return read(text)
        except NotProtobufText as error:
            self.findings.warning(
                config, f"cannot be looked into: {error}", "write it more plainly"
            )
            return None

    def named(self, config: ConfigFindings, message: Message) -> None:
        for name in message.all("name"):
            if name.value != self.name:
                what = f'is "{name.value}", but the folder is {self.name!r}; Triton refuses that'
                config.error(
                    "name", [name], what, f'write name: "{self.name}", or rename the folder'
                )
        fields = [*message.all("backend"), *message.all("platform")]
        backend = message.text("backend") or message.text("platform")
        if backend in EMBEDDED | {"", "ensemble", "onnxruntime_onnx"}:
            return
        if backend in TENSORRT.values and not has_gpu():
            return  # `gpu_settings` says more
        known = backend in OTHERS | MODEL_FILES.keys()
        near = difflib.get_close_matches(backend, EMBEDDED | OTHERS, 1, cutoff=0.5)
        why = "only NVIDIA's image of Triton can run" if known else "Triton does not bring"
        fix = "build on that image" if known or not near else f'write backend: "{near[0]}"'
        if backend in {"pytorch", "pytorch_libtorch"}:
            fix = FROM_PYTORCH
        config.warning(fields[0].name, fields, f'is "{backend}", which {why}', fix)

    def batching(self, config: ConfigFindings, message: Message) -> None:
        """Warn of a dynamic batcher that never comes into effect."""
        most = message.readable_number("max_batch_size")
        stated = bool(message.all("max_batch_size") or message.all("input"))  # else it is found out
        scheduled = message.all("dynamic_batching")
        if scheduled and stated and most == 0:
            what = "has no effect where max_batch_size is 0"
            fix = "set max_batch_size to 1 or more, or leave dynamic_batching out"
            config.warning("dynamic_batching", scheduled, what, fix)
        for tensor in message.messages("input") if scheduled and most > 1 else ():
            ragged = tensor.text("allow_ragged_batch").lower() in TRUE
            if message.text("backend") == "python" and is_file(tensor) and not ragged:
                name = tensor.text("name")
                what = f"never runs two files of `{name}` together, for they differ in length"
                fix = "write allow_ragged_batch: true at that input"
                config.warning("dynamic_batching", scheduled, what, fix)

    def answering(self, config: ConfigFindings, message: Message) -> None:
        """Note answers that a family cannot pass on, and ids of sequences that are too short."""
        decoupled = list_switches(message, "model_transaction_policy", "decoupled")
        try:
            family = str(read_table(self.folder / FILE).get("family", Keys.family))
        except ClientDisabled:  # there is none, or it is reported elsewhere
            family = Keys.family
        if decoupled and family != Keys.family:
            what = f"makes any number of answers to a request; family {family!r} gives one"
            fix = f"leave `family` out of {FILE}, or write a class that asks by self.stream()"
            config.error("model_transaction_policy.decoupled", decoupled, what, fix)
        for batching in message.messages("sequence_batching"):
            for tensor in batching.messages("control_input"):
                for control in tensor.messages("control"):
                    short = [one for one in control.all("data_type") if "32" in str(one.value)]
                    if short and control.text("kind") == "CONTROL_SEQUENCE_CORRID":
                        what = f"is {short[0].value}, too short for sessions, and for API keys"
                        key = "sequence_batching.control_input.control.data_type"
                        config.warning(key, short, what, "write TYPE_UINT64")

    def gpu(self, config: ConfigFindings, text: str) -> None:
        """Warn of what asks for a GPU where there is none, unless Triton refuses it anywhere."""
        file = self.findings.shown(config.file)
        refused_anywhere = {(one.key, one.line) for one in self.findings.found if one.file == file}
        adapts = os.environ.get("GPU_CONFIGS") == ADAPT  # as the server does then
        for one in gpu_settings(text) if not has_gpu() else ():
            if (one.key, one.line) not in refused_anywhere and not (adapts and one.change):
                config.warning(one.key, [one.field], one.rule.what, one.rule.fix)

    def caching(self, config: ConfigFindings, message: Message) -> None:
        """Warn where Triton's response cache would mix up requests: the server leaves it out."""
        enabled = list_switches(message, "response_cache", "enable")
        if enabled and mixes_shapes(message):
            config.warning(
                "response_cache",
                enabled,
                "has no effect: it compares the bytes of inputs, not their shapes, and more than "
                "one size of an input varies, or the configuration does not say its sizes",
                "write `dims` and `max_batch_size` of which one size varies at most, the batch "
                "included, or leave it out",
            )

    def steps(self, config: ConfigFindings, message: Message) -> None:
        """Warn of an ensemble's models whose answers it cannot pass on."""
        for field in [
            field for step in ensemble_steps(message) for field in step.all("model_name")
        ]:
            model = read_folder(self.folder.parent / str(field.value))
            if list_switches(model, "model_transaction_policy", "decoupled"):
                config.warning(
                    "ensemble_scheduling.step.model_name",
                    [field],
                    f'is "{field.value}", which is decoupled: /invocations and /infer refuse the '
                    "ensemble",
                    f"ask it by POST /v2/models/{self.name}/generate_stream",
                )

    def engine(self, config: ConfigFindings, message: Message) -> None:
        """Note what the engines refuse or ignore, and files that are no samples."""
        if not (its := file_check.backend(message, version_folders(self.folder))):
            return
        known = config_dictionary(config.text)
        for error in file_check.find_refusals(known, its):
            (key,) = re.findall(r"parameter '([^']+)'", error.what)[:1] or [""]
            config.error("", entries(message, key), error.what.removesuffix("."), error.fix)
        for key, what, fix in file_check.unread(known, its):
            config.warning("", entries(message, key), what, fix)
        self.samples()

    def environments(self, config: ConfigFindings, message: Message) -> None:
        for field in entries(message, environment.KEY):
            environment.check_environment(self.folder, config, field)

    def samples(self) -> None:
        """Note files that the comparison of engines cannot use as samples."""
        folder = self.folder / SAMPLES
        if not folder.is_dir():
            return
        strange, count = [], 0
        for path, name in samples.files_of(folder):
            try:
                found = len(list(samples.of_file(path, name)))
            except Trouble as error:
                what = f"keeps the model on ONNX Runtime, without a comparison: {error.__cause__}"
                self.findings.warning(path, what, "mend it, or take it out of the folder")
                continue
            count += found
            if not found:
                strange.append(name)
        if strange or not count:
            what = f"what are no samples: {', '.join(strange[:5])}" if strange else "no sample"
            self.findings.warning(folder, f"holds {what}", samples.EXPECTED)

    def labels(self, config: ConfigFindings, message: Message) -> None:
        """Compare each file of labels with the size of its output."""
        for output in message.messages("output"):
            for field in output.all("label_filename"):
                file = self.folder / str(field.value).lstrip("/")
                if not exists(file):
                    what = f'is "{field.value}", which is not there'
                    fix = f"put it into {self.folder.name}/, a label in each line"
                    config.error("label_filename", [field], what, fix)
                if not exists(file) or file.is_dir():
                    continue  # a folder was reported as a cause of a crash
                count = len(labels_at(file))
                dims = [parse_integer(dim) for dim in output.texts("dims")]
                classes = next((dim for dim in reversed(dims) if dim != 1), -1)
                if 0 < classes != count:
                    self.findings.error(
                        file,
                        f"has {count} lines, but the output `{output.text('name')}` has "
                        f"{classes} classes",
                        f"give it {classes} lines, in the order in which the model was trained",
                    )


def list_switches(message: Message, group: str, key: str) -> list[Field]:
    """Return the fields of groups that switch something on."""
    fields = [one for found in message.messages(group) for one in found.all(key)]
    return [one for one in fields if str(one.value).lower() in TRUE]


def is_file(tensor: Message) -> bool:
    """Whether a tensor is made for the bytes of a file."""
    return tensor.text("data_type") == "TYPE_UINT8" and tensor.texts("dims") == ["-1"]


def entries(message: Message, key: str) -> list[Field]:
    """Return the entries of `parameters` with a key."""
    fields = message.all("parameters")
    return [
        one for one in fields if isinstance(one.value, Message) and one.value.text("key") == key
    ]


def links(folder: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield links that are broken or lead out of `root`, with the reason."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not environment.is_interpreter(path):
            target = path.resolve()
            if not target.exists():
                yield path, f"is a link to {path.readlink()}, which is not there"
            elif not target.is_relative_to(root):
                yield path, f"is a link that leads out of the folder, to {target}"
