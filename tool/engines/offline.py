"""Load models and clients as the container does, without a Triton."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backends.completion import complete
from backends.model_config import ModelConfigError, needs_completion
from backends.onnxruntime.session import OnnxFile, model_file
from clients.base import Environment
from clients.errors import ModelUnavailable, UnknownModel
from clients.model_files.config_text import read_folder
from clients.model_files.files import text_of
from clients.model_files.model_folders import CONFIG, find_served, version_folders
from clients.plugins.registry import Registry, load_clients
from clients.testing import OnnxModels
from clients.triton.configuration import config_dictionary, config_fault, config_signature
from clients.triton.server import Signature
from container.model_check.file import is_onnx
from container.repository.compose import compose
from container.trouble import Trouble
from dispatcher.settings import SettingError, Settings, read_settings


def settings_here(**others: str) -> Settings:
    """Return the settings as this environment has them, but for some.

    Raises Trouble: one of them is not allowed.
    """
    try:
        return read_settings({**os.environ, **others})
    except SettingError as error:
        raise Trouble(str(error)) from error


@contextmanager
def compose_links(
    settings: Settings, mounted: Path | None = None, built_in: Path | None = None
) -> Iterator[Path]:
    """Make a temporary repository of links, as `serve` does; of other folders where named."""
    with tempfile.TemporaryDirectory(prefix="dispatcher-") as folder:
        repository = Path(folder).resolve() / "repository"
        compose(
            repository,
            mounted or settings.mounted,
            *([built_in] if built_in else settings.folders),
            instead=settings.model_dir_use == "instead",
            say=lambda _: None,
        )
        yield repository


class NotRun(ModelUnavailable):
    """The model is of a kind that only Triton runs, or has a mistake that is reported elsewhere."""


class Offline(OnnxModels):
    """A model server that knows models by their configurations, and runs files by their engines."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.missing: set[str] = set()
        """Models that were asked and are not there."""
        self.not_run: set[str] = set()
        """Models that were asked and cannot be run here."""
        self._signatures: dict[tuple[str, str], Signature] = {}
        self._opened: dict[tuple[str, str], Any] = {}

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:  # noqa: ARG002
        if (model, version) not in self._signatures:
            self._signatures[model, version] = self.put_together(model, version)
        return self._signatures[model, version]

    def put_together(self, model: str, version: str) -> Signature:
        self.look_for(model)
        try:
            config = self.folder / model / CONFIG
            text = text_of(config) if config.is_file() else ""
            if config_fault(text):
                raise self.cannot_run(model, f"{config} cannot be read")
            known = config_dictionary(text)
            if needs_completion(known):
                known |= complete(
                    known, read_folder(config.parent), self.opened(model, version)
                ).fields
        except (ModelConfigError, UnicodeDecodeError) as error:
            raise self.cannot_run(model, str(error)) from error
        return config_signature(known)

    def _session(self, model: str, version: str) -> Any:
        """Return a model's file with what `OnnxModels` asks of a session."""
        self.look_for(model)
        if (model, version) not in self._opened:
            file = self.opened(model, version)
            self._opened[model, version] = SimpleNamespace(
                get_inputs=lambda: file.signature.inputs,
                get_outputs=lambda: file.signature.outputs,
                run=lambda names, inputs: [*file.run(inputs, names).values()],
            )
        return self._opened[model, version]

    def look_for(self, model: str) -> None:
        """Note a model that is not there.

        Raises UnknownModel: it is not.
        """
        if not (self.folder / model).is_dir():
            self.missing.add(model)
            raise UnknownModel(f"there is no model {model!r}")

    def cannot_run(self, model: str, reason: str) -> NotRun:
        """Note that a model cannot be run here; return the error."""
        self.not_run.add(model)
        return NotRun(f"{model}: {reason}")

    def opened(self, model: str, version: str) -> OnnxFile:
        """Return a model's file; the latest served version's, where none is named.

        Raises NotRun: there is no such file, or its engine cannot read it.
        """
        folder = self.folder / model
        config = read_folder(folder)
        versions = {path.name: path for path in find_served(config, version_folders(folder))}
        try:
            path = versions[version or next(reversed(versions), "")]
            if not is_onnx(config, [path]):
                raise self.cannot_run(model, "its backend runs in Triton alone")
            return OnnxFile(model_file(path, config.text("default_model_filename")))
        except (KeyError, ModelConfigError) as error:
            raise self.cannot_run(model, "it has no file that can be read") from error


def load_offline(
    repository: Path, folders: Iterable[Path], server: Offline | None = None
) -> Registry:
    """Make the clients without logging: the registry has the reasons too."""
    with silence():
        return load_clients(Environment(server or Offline(repository), repository), folders)


@contextmanager
def silence() -> Iterator[None]:
    """Log nothing meanwhile; what classes print is no answer of the command: to standard error."""
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(logging.NOTSET)
