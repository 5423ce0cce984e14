"""Load models and clients as the container does, without a Triton."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Client, Environment
from clients.errors import (
    BadRequest,
    ClientDisabled,
    InferenceError,
    ModelUnavailable,
    UnknownModel,
)
from clients.plugins.family import Family
from clients.plugins.registry import Registry, load_clients
from clients.repository.config_text import Message
from clients.repository.files import text_of
from clients.repository.model_folders import CONFIG
from clients.request import Request
from clients.tensors.client import has_example
from clients.testing import OnnxModels
from clients.triton.configuration import config_dictionary, config_fault, config_signature
from clients.triton.server import Signature, Tensors
from container.repository.compose import compose
from container.triton_backends.completion import ModelFile, completed
from container.triton_backends.model_config import ModelConfigError, needs_completion
from dispatcher.settings import SettingError, Settings, read_settings
from tool.checks.file import backend, model_file, opened
from tool.checks.model import configured
from tool.checks.versions import served, version_folders
from tool.trouble import Trouble


def settings_here(**others: str) -> Settings:
    """Return the settings as this environment has them, but for some.

    Raises:
        Trouble: one of them is not allowed.

    """
    try:
        return read_settings({**os.environ, **others})
    except SettingError as error:
        raise Trouble(str(error)) from error


@contextmanager
def composed(
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


class Offline(OnnxModels):
    """A model server that knows models by their configurations and files."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self._signatures: dict[tuple[str, str], Signature] = {}

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:  # noqa: ARG002
        if (model, version) not in self._signatures:
            self._signatures[model, version] = self.put_together(model, version)
        return self._signatures[model, version]

    def put_together(self, model: str, version: str) -> Signature:
        """Return a model's inputs and outputs."""
        config = self.folder / model / CONFIG
        text = text_of(config) if config.is_file() else ""
        if config_fault(text):
            raise UnknownModel(f"{config} cannot be read")
        known = config_dictionary(text)
        if needs_completion(known):
            known |= completed(
                known, configured(config.parent) or Message(), self.opened(model, version)
            ).fields
        return config_signature(known)

    def infer(self, model: str, inputs: Tensors, **how: Any) -> dict[str, npt.NDArray[np.generic]]:  # noqa: ARG002
        raise ModelUnavailable("it is not asked")

    def opened(self, model: str, version: str) -> ModelFile:
        """Return a model's file; the latest served version's, where none is named.

        Raises:
            UnknownModel: there is no such file, or its engine cannot read it.

        """
        folder = self.folder / model
        config = configured(folder) or Message()
        versions = {path.name: path for path in served(config, version_folders(folder))}
        try:
            path = versions[version or next(reversed(versions), "")]
            found = opened(model_file(config, path), backend(config, [path]))
        except (KeyError, ModelConfigError) as error:
            raise UnknownModel(f"{model} has no file that can be read") from error
        if found is None:
            raise UnknownModel("there is no OpenVINO here that could read it")
        return found


def fits(client: Client) -> str:
    """Return why a client or its example does not fit its model; empty if it does."""
    if isinstance(client, Family):
        try:
            with Request(parameters=client.read_parameters({})).active():
                client.fitted()
                if has_example(client):
                    client.inference(client.example)
        except BadRequest as error:
            fix = error.hint or "write a payload that works"
            return client.mistake("example", f"is refused: {error.message}", fix).message
        except ClientDisabled as error:
            return error.message
        except (InferenceError, ModelConfigError, UnicodeDecodeError):
            pass  # the model is no ONNX file; other faults of it are reported elsewhere
    return ""


def load_offline(repository: Path, folders: Iterable[Path]) -> Registry:
    """Make the clients without logging: the registry has the reasons too."""
    logging.disable(logging.CRITICAL)
    try:
        return load_clients(Environment(Offline(repository), repository), folders)
    finally:
        logging.disable(logging.NOTSET)
