"""Looks for mistakes in one model folder: its configuration, its versions, its files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.repository.config_text import Message, NotReadable, line_of, read, whole
from clients.repository.crash_causes import Fault, crash_causes
from clients.repository.files import is_litter, text_of
from clients.repository.model_folders import CONFIG, PLAIN_MODELS, is_model
from clients.tensors.classes import labels_at
from clients.triton.configuration import config_dictionary, config_fault
from container.triton_backends.engine_choice import SAMPLES
from container.triton_backends.openvino.session import DEFAULT_FILES as OPENVINO_FILES
from dispatcher.settings import PROJECT
from tool.checks import file as file_check
from tool.checks.file import FileCheck
from tool.checks.findings import Findings
from tool.checks.refused import of_asked_models, refused, steps
from tool.engines import samples
from tool.trouble import Trouble

# What a backend looks for in a version folder, where the configuration names nothing else.
# https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
FILES = {
    "onnxruntime": "model.onnx",
    "pytorch": "model.pt",
    "python": "model.py",
    "tensorrt": "model.plan",
    "openvino": "model.xml",
    "onnxruntime_onnx": "model.onnx",
    "pytorch_libtorch": "model.pt",
    "tensorrt_plan": "model.plan",
    "tensorflow_savedmodel": "model.savedmodel",
    "tensorflow_graphdef": "model.graphdef",
}
EMBEDDED = {"onnxruntime", "openvino", "pytorch", "python"}  # what the Triton of the wheel can run
OTHERS = {"dali", "ensemble", "fil", "identity", "tensorflow", "tensorrt", "vllm"}
BUILT_IN = PROJECT / "model_repository"
VERSION = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True)
class ModelCheck:
    """Checks one model folder.

    Args:
        folder: with the versions in it.
        name: under which it would be served.
        findings: takes what is wrong.

    """

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
        config = self.folder / CONFIG
        for version in folders(self.folder):
            if (version / CONFIG).is_file():
                self.findings.error(
                    version / CONFIG,
                    "lies in a version folder, where nobody reads it",
                    f"move it up into {self.folder.name}/",
                )
        for fault in crash_causes(self.folder):
            self.findings.error(config, fault.what, fault.fix, key=fault.key, line=fault.line)
        if not config.is_file():
            self.versions(Message(), "")
            return
        try:
            text = text_of(config)
        except (OSError, UnicodeDecodeError) as error:
            self.findings.error(config, f"cannot be read ({error})", "write it as UTF-8 text")
            return
        message = self.readable(config, text)
        if message is not None:
            self.named(config, text, message)
            self.batching(config, text, message)
            self.answering(config, text, message)
            self.labels(config, text, message)
            inputs = config_dictionary(text).get("input", [])
            self.refused(refused(message, self.folder, inputs), text)
            self.steps(config, text, message)
            self.engine(config, text, message)
            self.versions(message, text)

    def files(self) -> FileCheck:
        return FileCheck(self.folder, self.findings, self.refused)

    def readable(self, config: Path, text: str) -> Message | None:
        """Return the configuration; nothing where Triton cannot read it."""
        if fault := config_fault(text):
            line, reason, fix = fault
            self.findings.error(config, f"cannot be read: {reason}", fix, line=line)
            return None
        try:
            return read(text)
        except NotReadable as error:
            self.findings.warning(
                config, f"cannot be looked into: {error}", "write it more plainly"
            )
            return None

    def named(self, config: Path, text: str, message: Message) -> None:
        for name in message.all("name"):
            if name.value != self.name:
                self.findings.error(
                    config,
                    f'is "{name.value}", but the folder is {self.name!r}; Triton refuses that',
                    f'write name: "{self.name}", or rename the folder',
                    key="name",
                    line=line_of(text, name),
                )
        fields = [*message.all("backend"), *message.all("platform")]
        backend = message.text("backend") or message.text("platform")
        if backend in EMBEDDED and not message.text("backend"):
            self.findings.error(
                config,
                f'is "{backend}", which is the name of a backend; Triton refuses that',
                f'write backend: "{backend}"',
                key="platform",
                line=line_of(text, *fields),
            )
        if backend in EMBEDDED | {"", "ensemble", "onnxruntime_onnx", "pytorch_libtorch"}:
            return
        known = backend in OTHERS | FILES.keys()
        near = difflib.get_close_matches(backend, EMBEDDED | OTHERS, 1, cutoff=0.5)
        self.findings.warning(
            config,
            f'is "{backend}", which '
            + ("only NVIDIA's image of Triton can run" if known else "Triton does not bring"),
            "build on that image" if known or not near else f'write backend: "{near[0]}"',
            key=fields[0].name,
            line=line_of(text, *fields),
        )

    def batching(self, config: Path, text: str, message: Message) -> None:
        """Note batch settings that cannot work, or that never come into effect."""
        most = message.readable_number("max_batch_size")
        scheduled = message.all("dynamic_batching")
        if most < 0:
            self.findings.error(
                config,
                f"is {most}",
                "write 0 where the model does not batch",
                key="max_batch_size",
                line=line_of(text, *message.all("max_batch_size")),
            )
        stated = bool(message.all("max_batch_size") or message.all("input"))  # else it is found out
        sizes = [
            size
            for batching in message.messages("dynamic_batching")
            for size in batching.all("preferred_batch_size")
        ]
        for size in sizes:
            if stated and not 1 <= whole(str(size.value)) <= most:
                self.findings.error(
                    config,
                    f"is {size.value}, but max_batch_size is {most}; Triton refuses that",
                    f"write sizes from 1 to {most}" if most else "leave it out",
                    key="dynamic_batching.preferred_batch_size",
                    line=line_of(text, size),
                )
        if scheduled and stated and most == 0 and not sizes:
            self.findings.warning(
                config,
                "has no effect where max_batch_size is 0",
                "set max_batch_size to 1 or more, or leave dynamic_batching out",
                key="dynamic_batching",
                line=line_of(text, *scheduled),
            )
        for group in message.messages("instance_group"):
            for count_field in group.all("count"):
                if whole(str(count_field.value)) < 1:
                    self.findings.error(
                        config,
                        f"is {count_field.value}",
                        "write 1 or more",
                        key="instance_group.count",
                        line=line_of(text, count_field),
                    )

    def answering(self, config: Path, text: str, message: Message) -> None:
        """Note what Triton loads, but nobody can ask here: one request has one answer."""
        decoupled = [
            one
            for policy in message.messages("model_transaction_policy")
            for one in policy.all("decoupled")
            if str(one.value).lower() in {"true", "1"}
        ]
        for key, fields, what in (
            ("model_transaction_policy.decoupled", decoupled, "any number of answers to a request"),
            (
                "sequence_batching",
                message.all("sequence_batching"),
                "answers that depend on the requests before",
            ),
        ):
            if fields:
                self.findings.warning(
                    config,
                    f"makes {what}: requests for this model are refused",
                    "leave it out, where the model answers each request by itself",
                    key=key,
                    line=line_of(text, *fields),
                )

    def refused(self, found: Iterable[Fault], text: str) -> None:
        for key, field, what, fix in found:
            self.findings.error(
                self.folder / CONFIG,
                f"{what}; Triton refuses that",
                fix,
                key=key,
                line=line_of(text, field),
            )

    def steps(self, config: Path, text: str, message: Message) -> None:
        """Note models that an ensemble asks and that are not there, or that it does not fit."""
        if self.folder == self.findings.root:  # nobody knows what will be beside it
            return
        known = {}
        for field in [field for step in steps(message) for field in step.all("model_name")]:
            name = str(field.value)
            if model := configured(self.folder.parent / name):
                known[name] = model
            if name == self.name:
                self.findings.error(
                    config,
                    "is the ensemble itself; Triton refuses that",
                    "name another model",
                    key="ensemble_scheduling.step.model_name",
                    line=line_of(text, field),
                )
            elif not any(exists(folder / name) for folder in (self.folder.parent, BUILT_IN)):
                self.findings.error(
                    config,
                    f'is "{name}", which is not there',
                    "put that model beside this one",
                    key="ensemble_scheduling.step.model_name",
                    line=line_of(text, field),
                )
        self.refused(of_asked_models(message, known), text)

    def engine(self, config: Path, text: str, message: Message) -> None:
        """Note what the engines refuse at the load, or pass over, and what are no samples."""
        if not (its := file_check.backend(message, version_folders(self.folder))):
            return
        known = config_dictionary(text)
        for error in file_check.refused(known, its):
            (key,) = re.findall(r"parameter '([^']+)'", error.what)[:1] or [""]
            what = error.what.removesuffix(".")
            self.findings.error(config, what, error.fix, line=parameter_line(text, message, key))
        for key, what, fix in file_check.unread(known, its):
            self.findings.warning(config, what, fix, line=parameter_line(text, message, key))
        self.samples()

    def samples(self) -> None:
        """Note what a trial of engines cannot take for a sample; it has none at all then."""
        folder = self.folder / SAMPLES
        if not folder.is_dir():
            return
        strange, count = [], 0
        for path, name in samples.files_of(folder):
            try:
                found = len(list(samples.of_file(path, name)))
            except Trouble as error:
                what = (
                    f"keeps the model on ONNX Runtime, for no trial can be made: {error.__cause__}"
                )
                self.findings.warning(path, what, "mend it, or take it out of the folder")
                continue
            count += found
            if not found:
                strange.append(name)
        if strange or not count:
            what = f"what are no samples: {', '.join(strange[:5])}" if strange else "no sample"
            self.findings.warning(folder, f"holds {what}", samples.EXPECTED)

    def labels(self, config: Path, text: str, message: Message) -> None:
        """Compare each file of labels with the size of its output."""
        for output in message.messages("output"):
            for field in output.all("label_filename"):
                file, line = self.folder / str(field.value).lstrip("/"), line_of(text, field)
                if not exists(file):
                    self.findings.error(
                        config,
                        f'is "{field.value}", which is not there',
                        f"put it into {self.folder.name}/, a label in each line",
                        key="label_filename",
                        line=line,
                    )
                    continue
                if file.is_dir():
                    continue  # it was reported as a cause of a crash
                count = len(labels_at(file))
                dims = [whole(dim) for dim in output.texts("dims")]
                classes = next((dim for dim in reversed(dims) if dim != 1), -1)
                if 0 < classes != count:
                    self.findings.error(
                        file,
                        f"has {count} lines, but the output `{output.text('name')}` has "
                        f"{classes} classes",
                        f"give it {classes} lines, in the order in which the model was trained",
                    )

    def versions(self, message: Message, text: str) -> None:
        """Look for the model's file in each version that is served."""
        versions = version_folders(self.folder)
        free = max((int(path.name) for path in versions), default=0) + 1
        for path in folders(self.folder):
            if path not in versions and (path.name.isdigit() or looks_like_a_version(path.name)):
                self.findings.error(
                    path,
                    "is no version: Triton passes over what is no number, or begins with a zero",
                    f"rename it to {free}",
                )
            elif path.name == "0":
                self.findings.warning(
                    path,
                    "cannot be asked for by its number: callers name versions from 1",
                    f"rename it to {free}, unless nobody names it",
                )
        plain = any((self.folder / name).is_file() for name in PLAIN_MODELS)
        if not (versions or plain):
            self.findings.error(
                self.folder,
                "has no version folder",
                f"put the model's file into {self.folder.name}/1/",
            )
        self.policy(message, text, [int(path.name) for path in versions] or [1] * plain)
        backend = message.text("backend") or message.text("platform")
        wanted = message.text("default_model_filename") or FILES.get(backend, "")
        if message.text("platform") == "ensemble":
            return
        for version in served(message, versions) or [self.folder] * (plain and not versions):
            self.version(version, wanted, text)

    def policy(self, message: Message, text: str, versions: list[int]) -> None:
        """Note versions that are to be served, but are not there."""
        config = self.folder / CONFIG
        for policy in message.messages("version_policy"):
            for latest in policy.all("latest"):
                value = latest.value
                if isinstance(value, Message) and value.readable_number("num_versions") < 1:
                    self.findings.error(
                        config,
                        "is 0: no version is served",
                        "write 1 or more",
                        key="version_policy.latest.num_versions",
                        line=line_of(text, latest),
                    )
            for place in policy.all("specific"):
                specific = place.value if isinstance(place.value, Message) else Message()
                if not specific.all("versions"):
                    self.findings.error(
                        config,
                        "is missing: no version is served",
                        f"write it; there are {', '.join(map(str, versions)) or 'none'}",
                        key="version_policy.specific.versions",
                        line=line_of(text, place),
                    )
                for field in specific.all("versions"):
                    if whole(str(field.value)) not in versions:
                        self.findings.error(
                            config,
                            f"names {field.value}, which is not there",
                            f"there are {', '.join(map(str, versions)) or 'none'}",
                            key="version_policy.specific.versions",
                            line=line_of(text, field),
                        )

    def version(self, version: Path, wanted: str, text: str) -> None:
        """Look for the model's file in one version, and into it."""
        if not wanted:  # Triton finds the backend by the name of the file
            wanted = next((n for n in dict.fromkeys(FILES.values()) if (version / n).exists()), "")
        file = version / wanted
        names = OPENVINO_FILES if wanted == OPENVINO_FILES[0] else (wanted,)
        if not exists(file) and (others := [name for name in names if exists(version / name)]):
            file = version / others[0]
            self.findings.warning(
                self.folder / CONFIG,
                f"names no file, for which NVIDIA's image takes {wanted} alone",
                f'write default_model_filename: "{file.name}"',
            )
        if not wanted or not exists(file):
            there = sorted(path.name for path in version.iterdir() if path.name != CONFIG)
            what = " or ".join(names if wanted else dict.fromkeys(FILES.values()))
            suffixes = {Path(name).suffix: name for name in names}
            alike = [name for name in there if Path(name).suffix in suffixes]
            self.findings.error(
                version,
                f"has no {what}" + (f"; it has {', '.join(there[:5])}" if there else ""),
                f"rename {alike[0]} to {suffixes[Path(alike[0]).suffix]}, or name it with "
                "default_model_filename"
                if wanted and alike
                else "put the model's file there",
            )
            return
        if file.is_file():
            self.files().contents(file, text)


def parameter_line(text: str, message: Message, key: str) -> int:
    """Return the line of a parameter; 0 where it is not among them."""
    fields = message.all("parameters")
    entries = [
        one for one in fields if isinstance(one.value, Message) and one.value.text("key") == key
    ]
    return line_of(text, *entries)


def folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_litter(path))


def version_folders(folder: Path) -> list[Path]:
    """Return the folders of a model that Triton takes for its versions."""
    return [path for path in folders(folder) if VERSION.fullmatch(path.name)]


def served(message: Message, versions: list[Path]) -> list[Path]:
    """Return the versions that Triton serves: the latest, where there is no policy."""
    versions = sorted(versions, key=lambda path: int(path.name))
    count = 1
    for policy in message.messages("version_policy"):
        if policy.all("all"):
            return versions
        for specific in policy.messages("specific"):
            wanted = {whole(version) for version in specific.texts("versions")}
            return [path for path in versions if int(path.name) in wanted]
        for latest in policy.messages("latest"):
            count = latest.readable_number("num_versions")
    return versions[-count:] if count > 0 else []


def configured(folder: Path) -> Message | None:
    """Return the configuration of another model, where it can be read."""
    try:
        return read(text_of(folder / CONFIG))
    except (OSError, ValueError):  # what is wrong with it is told there
        return None


def exists(path: Path) -> bool:
    """Whether something is there; Path's own method raises where a name is too long."""
    return os.path.exists(path)  # noqa: PTH110


def looks_like_a_version(name: str) -> bool:
    """Whether a folder seems to be meant as one, such as `v1`, `version_2` or `1.0`."""
    letters = name.lower().strip("0123456789._-")
    return letters in {"", "v", "ver", "version"} and any(one.isdigit() for one in name)


def links(folder: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the links in a folder that lead nowhere or out of `root`, and which of both."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            target = path.resolve()
            if not target.exists():
                yield path, f"is a link to {path.readlink()}, which is not there"
            elif not target.is_relative_to(root):
                yield path, f"is a link that leads out of the folder, to {target}"
