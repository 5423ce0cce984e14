"""What `manifest.toml` has: the sources of weights, one class per `kind`."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from weights import registries
from weights.errors import WeightsError

Say = Callable[[str], None]

MANIFEST = Path(__file__).with_name("manifest.toml")


@dataclass(frozen=True)
class Tools:
    """What a source works with; tests hand in others.

    `pack` fetches an npm package (NAME@VERSION) into a folder and returns its tarball there;
    `convert` turns what was unpacked into the bytes of a checked ONNX model, by the name of the
    converter.
    """

    pack: Callable[[str, Path], Path]
    convert: Callable[[str, Path], bytes]


@dataclass(frozen=True, kw_only=True)
class WeightsSource(ABC):
    """Where the weights of a model come from; the fields are those of the manifest.

    `remedy` says what the user can do when the source cannot be used.
    """

    kind: ClassVar[str]
    remedy: ClassVar[str]

    weights: str
    licence: str
    notice: str = ""

    @property
    @abstractmethod
    def origin(self) -> str:
        """Say what is fetched and how it is converted; else what was made is out of date."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name the source for people, on part of a line."""

    @abstractmethod
    def make(self, folder: Path, tools: Tools, say: Say) -> bytes:
        """Fetch and convert, using the empty `folder` for files in between; return model.onnx."""


@dataclass(frozen=True, kw_only=True)
class ShippedSource(WeightsSource):
    """A file that is part of the repository: there is nothing to fetch."""

    kind = "shipped"
    remedy = "bring the shipped file back: git checkout -- model_repository"
    title = "the file shipped with the repository"

    sha256: str

    @property
    def origin(self) -> str:
        return f"shipped sha256:{self.sha256}"

    def make(self, folder: Path, tools: Tools, say: Say) -> bytes:  # noqa: ARG002 - see WeightsSource
        raise WeightsError("the file is not there, or is not the one that was shipped")


@dataclass(frozen=True, kw_only=True)
class NpmSource(WeightsSource):
    """A TensorFlow.js model in an npm package."""

    kind = "npm"
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

    @property
    def origin(self) -> str:
        pinned = f"npm:{self.package}@{self.version} sha256:{self.sha256}"
        return f"{pinned} {self.converter}/{self.converter_version}"

    @property
    def title(self) -> str:
        return f"npm package {self.package}@{self.version}"

    def make(self, folder: Path, tools: Tools, say: Say) -> bytes:
        say(f"fetching {self.title} ({self.megabytes} MB)")
        tarball = tools.pack(f"{self.package}@{self.version}", folder)
        registries.verify(tarball, self.sha256)
        say("its sha256 is the pinned one; unpacking and converting")
        unpacked = registries.unpack(tarball, folder / "unpacked")
        return tools.convert(self.converter, unpacked / self.folder)


KINDS: dict[str, type[WeightsSource]] = {one.kind: one for one in (ShippedSource, NpmSource)}


def load(path: Path = MANIFEST) -> dict[str, WeightsSource]:
    """Return where the weights of each model come from, by its name, in the manifest's order.

    Raises WeightsError naming the model and the key that is missing or unknown.
    """
    sources: dict[str, WeightsSource] = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        try:
            sources[name] = KINDS[table.pop("kind")](**table)
        except (KeyError, TypeError) as error:
            raise WeightsError(f"{path.name}: {name}: {error}") from error
    return sources
