"""Shares out /dev/shm among the models of the embedded Triton.

Triton passes tensors to its Python backends through /dev/shm. A container has 64 MB of it unless it
is started with more. Every model instance has a region there, which grows with its inputs and
outputs, and never shrinks. When no memory is left, even requests that would fit alone fail, and
Triton does not stop cleanly. So a small /dev/shm is divided among the models before the start:

- A model whose tensors have fixed shapes gets what its largest batches need. If that exceeds one
  model's part of the whole, a copy of its configuration gives it one instance, and batches that
  fit, of at least one item. Triton then forms no larger batches, and the web workers send none,
  because they read the limit from Triton.
- Models with variable shapes share the rest. `backends/machine/shared_memory.py`
  refuses what is too large for a model's share, and the web workers then halve the batch.

A model that is loaded later takes its share of what is free at that time; see that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from backends.machine.shared_memory import (
    AMPLE,
    BEGINNING,
    HALVED,
    MIB,
    PART_OF_A_MODEL,
    SHARES,
    ItemBytes,
    is_scarce,
)
from clients.model_files.config_text import Message, NotProtobufText, parse_integer, read
from clients.model_files.files import text_of

OURS = ("onnxruntime", "onnxruntime_onnx")

ON_CPU = ("KIND_AUTO", "KIND_CPU")
INSTANCES = {"onnxruntime": 2, "onnxruntime_onnx": 2}
"""How many Triton starts of a model on a CPU where the configuration does not say; 1 of others.

`SetDefaultInstanceCount` in model_config_utils.cc of triton-inference-server/core.
"""


@dataclass(frozen=True)
class ModelShare:
    """What one model gets.

    Args:
        tensors: bytes of tensors that one run may have, in and out; 0 where there is no room.
        region: bytes of shared memory that each of its instances takes; 0 where it is not known.
        batch: where the configuration is changed, the largest batch that it then has, 0 where it
            has none; there is one instance then.

    """

    tensors: int
    region: int = 0
    batch: int | None = None


@dataclass(frozen=True)
class SharedMemoryPlan:
    """Shares of shared memory by model; a model without one has no limit."""

    size: int = AMPLE
    shares: Mapping[str, ModelShare] = field(default_factory=dict)

    @property
    def is_scarce(self) -> bool:
        """Whether models have no more than their parts."""
        return is_scarce(self.size)

    def environment(self) -> dict[str, str]:
        """Return what the backends have to know."""
        models = {name: [share.tensors, share.region] for name, share in self.shares.items()}
        return {SHARES: json.dumps({"size": self.size, "models": models})}

    def options(self) -> list[str]:
        """Return the options Triton needs."""
        # Growing rounds up to this: by default to 1 MiB, which is much where there is little.
        return [] if self.size >= AMPLE else ["--backend-config=python,shm-growth-byte-size=65536"]

    def changes(self) -> Iterator[str]:
        """Yield a sentence for every model whose configuration is changed."""
        for name, share in self.shares.items():
            if share.batch is not None:
                batches = f", and batches of at most {share.batch}" if share.batch else ""
                yield (
                    f"{name}: one instance{batches}, because /dev/shm has {self.size // MIB} MB "
                    "(docker run --shm-size=1g gives enough)"
                )


def share_out(configurations: Mapping[str, str], size: int) -> SharedMemoryPlan:
    """Divide `size` bytes among models, given by name and `config.pbtxt`."""
    fixed: dict[str, tuple[Message, ItemBytes]] = {}
    varying: dict[str, int] = {}
    for name, text in configurations.items():
        try:
            message = read(text)
            if (message.text("backend") or message.text("platform")) not in OURS:
                continue
            if item := item_of(message):
                fixed[name] = message, item
            else:
                varying[name] = instances(message)
        except NotProtobufText:
            continue  # Triton says what is wrong with it
    shares, left = {}, size
    if size >= AMPLE:
        for message, item in fixed.values():
            left -= instances(message) * item.region(max(1, message.number("max_batch_size")))
        left = max(left, size // 4)
    else:
        for name, (message, item) in sorted(fixed.items(), key=lambda m: m[1][1].region(1)):
            shares[name], taken = share_of(message, item, size)
            if taken > left:
                shares[name], taken = ModelShare(0), 0
            left -= taken
    for name in varying:
        region = left // sum(varying.values())
        tensors = max(0, region - BEGINNING) // HALVED
        shares[name] = ModelShare(tensors, 0 if size >= AMPLE else region)
    return SharedMemoryPlan(size, shares)


def share_of(message: Message, item: ItemBytes, size: int) -> tuple[ModelShare, int]:
    """Return the share of a model of fixed shapes, and the bytes of its instances."""
    configured, count = message.number("max_batch_size"), instances(message)
    part = int(size * PART_OF_A_MODEL)
    warmups = [sample.number("batch_size", 1) for sample in message.messages("model_warmup")]
    least = max([1, *warmups])
    batch = max(least, configured)
    changed = count * item.region(batch) > part and (count > 1 or batch > least)
    if changed:
        count, batch = 1, item.batch(part, least, batch)
    share = ModelShare(
        (item.inputs + item.outputs) * batch,
        item.region(batch),
        min(batch, configured) if changed else None,
    )
    return share, count * share.region


def instances(message: Message) -> int:
    """Return how many instances of a model Triton starts where there is no GPU."""
    default = INSTANCES.get(message.text("backend") or message.text("platform"), 1)
    groups = message.messages("instance_group") or [Message()]
    return sum(
        max(0, group.number("count"))
        or (default if group.text("kind", "KIND_AUTO") in ON_CPU else 1)
        for group in groups
    )


def item_of(message: Message) -> ItemBytes | None:
    """Return the bytes of one item; None where they vary or are not listed."""
    inputs, outputs = (
        [
            (tensor.text("data_type"), [parse_integer(text) for text in tensor.texts("dims")])
            for tensor in message.messages(kind)
        ]
        for kind in ("input", "output")
    )
    return ItemBytes.of(inputs, outputs)


def change_config(text: str, batch: int) -> str:
    """Return a configuration with one instance, another batch size, and the rest."""
    message = read(text)
    kind = next((g.text("kind") for g in message.messages("instance_group")), "") or "KIND_AUTO"
    new = {
        **{(f.start, f.end): f"max_batch_size: {batch}" for f in message.all("max_batch_size")},
        **{(f.start, f.end): "" for f in message.all("instance_group")},
        **{
            (f.start, f.end): ""
            for scheduler in message.messages("dynamic_batching")
            for f in scheduler.all("preferred_batch_size")
        },
    }
    for (start, end), field_text in sorted(new.items(), reverse=True):
        text = text[:start] + field_text + text[end:]
    return f"{text}\ninstance_group [ {{ count: 1 kind: {kind} }} ]\n"


def lower(repository: Path, plan: SharedMemoryPlan) -> None:
    """Write the plan's configurations into a repository of links."""
    for name, share in plan.shares.items():
        if share.batch is None:
            continue
        link = repository / name
        config = link / "config.pbtxt"
        text = change_config(text_of(config), share.batch)
        if link.is_symlink():  # else it is a folder of links
            model = link.resolve()
            link.unlink()
            link.mkdir()
            for path in model.iterdir():
                (link / path.name).symlink_to(path)
        config.unlink()
        config.write_text(text, encoding="utf-8")


def configurations(repository: Path) -> dict[str, str]:
    """Return the text of every model's `config.pbtxt`, by the model's name.

    Where that names no backend it has the one that Triton finds by the model's file.
    """
    found = {}
    for model in sorted(repository.iterdir()):
        try:
            text = text_of(model / "config.pbtxt")
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError):
            continue  # Triton says what is wrong with it
        with suppress(NotProtobufText):
            message = read(text)
            named = message.text("backend") or message.text("platform")
            if not named and any(model.glob("*/model.onnx")):
                text += '\nbackend: "onnxruntime"'
        if text:
            found[model.name] = text
    return found
