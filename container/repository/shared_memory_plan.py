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
)
from clients.model_files.config_text import (
    Message,
    NotProtobufText,
    parse_integer,
    read,
    read_folder,
)
from clients.model_files.files import text_of

OURS = ("onnxruntime", "onnxruntime_onnx")

ON_CPU = ("KIND_AUTO", "KIND_CPU")
INSTANCES = 2
"""How many Triton starts of such a model on a CPU where the configuration does not say.

`SetDefaultInstanceCount` in model_config_utils.cc of triton-inference-server/core.
"""


@dataclass(frozen=True)
class ModelShare:
    """What one model gets.

    Where its configuration is changed, it has one instance, and batches of `batch` at most, 0 where
    it has none.
    """

    tensors: int  # bytes that one run may have, in and out; 0 where there is no room
    region: int = 0  # bytes that each of its instances takes; 0 where it is not known
    batch: int | None = None


@dataclass(frozen=True)
class SharedMemoryPlan:
    """Shares of shared memory by model; a model without one has no limit."""

    size: int = AMPLE
    shares: Mapping[str, ModelShare] = field(default_factory=dict)

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


def find_ours(repository: Path) -> dict[str, Message]:
    """Return the configurations of the models that our backend runs, by name.

    Triton finds the backend by the model's file where none is named.
    """
    found = {}
    for folder in sorted(repository.iterdir()):
        message = read_folder(folder)
        backend = message.text("backend") or message.text("platform")
        if backend in OURS or (not backend and any(folder.glob("*/model.onnx"))):
            found[folder.name] = message
    return found


def share_out(models: Mapping[str, Message], size: int) -> SharedMemoryPlan:
    """Divide `size` bytes among models, given by name and configuration."""
    shares, left = {}, size
    varying, fixed = {}, []
    for name, message in models.items():
        if item := item_of(message):
            fixed.append((item.region(1), name, item))
        else:
            varying[name] = instances(message)
    if size >= AMPLE:
        for _, name, item in fixed:
            batch = max(1, models[name].readable_number("max_batch_size"))
            left -= instances(models[name]) * item.region(batch)
        left = max(left, size // 4)
    else:
        for _, name, item in sorted(fixed, key=lambda one: one[0]):
            shares[name], taken = share_of(models[name], item, size)
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
    configured, count = message.readable_number("max_batch_size"), instances(message)
    part = int(size * PART_OF_A_MODEL)
    warmups = [one.readable_number("batch_size") for one in message.messages("model_warmup")]
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
    return sum(
        max(0, group.readable_number("count"))
        or (INSTANCES if group.text("kind", "KIND_AUTO") in ON_CPU else 1)
        for group in message.messages("instance_group") or [Message()]
    )


def item_of(message: Message) -> ItemBytes | None:
    """Return the bytes of one item; None where they vary or are not listed."""
    try:
        inputs, outputs = (
            [
                (tensor.text("data_type"), [parse_integer(text) for text in tensor.texts("dims")])
                for tensor in message.messages(kind)
            ]
            for kind in ("input", "output")
        )
    except NotProtobufText:
        return None  # Triton says what is wrong with it
    return ItemBytes.of(inputs, outputs)


def change_config(text: str, batch: int) -> str:
    """Return a configuration with one instance, another batch size, and the rest."""
    message = read(text)
    kind = next((g.text("kind") for g in message.messages("instance_group")), "") or "KIND_AUTO"
    schedulers = message.messages("dynamic_batching")
    fields = [*message.all("max_batch_size"), *message.all("instance_group")]
    fields += [one for each in schedulers for one in each.all("preferred_batch_size")]
    # Each in its place: a separator may follow, which must not stand alone.
    for start, end, name in sorted({(f.start, f.end, f.name) for f in fields}, reverse=True):
        value = batch if name == "max_batch_size" else "[]"
        text = f"{text[:start]}{name}: {value}{text[end:]}"
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
