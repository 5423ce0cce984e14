"""The models of a multi-model endpoint: loaded when first asked, unloaded to make room.

The service names a model by an opaque hash, and its folder by a path in the container.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath

from sagemaker_emulator.archive import unpack_archive
from sagemaker_emulator.emulate.contract import Refused, model_error, validation_error
from sagemaker_emulator.host.calls import Answer, NoAnswer, ask, ask_text
from sagemaker_emulator.host.containers import Container
from sagemaker_emulator.host.limits import Limits
from sagemaker_emulator.trouble import Trouble

PACKED = ".tar.gz"
say = logging.getLogger(__name__).info


@dataclass
class Loaded:
    """A model that the container has loaded."""

    target: str  # what callers name it by
    key: str  # the opaque name that the container knows
    folder: Path  # of its files, on this machine
    users: int = 0  # requests that it is answering


class Models:
    """Loads and unloads the models of one container.

    In `source` they are packed as `NAME.tar.gz`, or a folder each; the container sees `work`.
    """

    def __init__(self, source: Path, work: Path, container: Container, limits: Limits) -> None:
        self.source, self.work, self.container = source, work, container
        self.load_s = limits.load_s
        self.table: OrderedDict[str, Loaded] = OrderedDict()  # the least recently asked first
        self.guard = threading.Lock()  # of the table and of `loading`
        self.loading: dict[str, Future[Loaded]] = {}
        self.loader = ThreadPoolExecutor(1, "loads models")

    def close(self) -> None:
        self.loader.shutdown(wait=False, cancel_futures=True)

    def ask(
        self, endpoint: str, target: str, body: bytes, headers: Mapping[str, str], until: float
    ) -> Answer:
        """Ask a model; load it first, or raise Refused where it cannot be, or not in time."""
        again = True
        while True:
            model = self.loaded(endpoint, target, until)
            try:
                path = f"/models/{model.key}/invoke"
                answer = ask(self.container.address, "POST", path, body, headers, until=until)
            finally:
                with self.guard:
                    model.users -= 1
            if answer.status == HTTPStatus.NOT_FOUND and again:
                again = False  # the container may have been restarted
                say(f"{target}: the container has not loaded it (404); loading it once more")
                with self.guard:
                    if self.table.get(target) is model:
                        del self.table[target]
            elif answer.status != HTTPStatus.INSUFFICIENT_STORAGE or not self.unload_one(target):
                return answer
            answer.close()

    def loaded(self, endpoint: str, target: str, until: float) -> Loaded:
        """Return a loaded model, with one more user."""
        with self.guard:
            if model := self.table.get(target):
                self.table.move_to_end(target)
                model.users += 1
                return model
            future = self.loading.get(target)
            if future is None or future.done():
                future = self.loading[target] = self.loader.submit(self.load, endpoint, target)
        try:
            model = future.result(max(0.0, until - time.monotonic()))
        except FutureTimeoutError as error:
            raise Refused(
                "ModelNotReadyException",
                f"The model {target} is still being loaded; wait and try again",
            ) from error
        with self.guard:
            model.users += 1
        return model

    def load(self, endpoint: str, target: str) -> Loaded:
        """Unpack a model and load it."""
        key = hashlib.sha256(f"{self.source}/{target}".encode()).hexdigest()[:32]
        folder = self.work / key / "model"
        shutil.rmtree(folder.parent, ignore_errors=True)
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, folder.parent, ignore_errors=True)
            self.fetch(target, folder)
            model = Loaded(target, key, folder)
            self.post(endpoint, model)
            undo.pop_all()
        with self.guard:
            self.table[target] = model
        return model

    def fetch(self, target: str, folder: Path) -> None:
        """Put the files of a model into a folder; raise Refused where there are none to be read."""
        path = PurePosixPath(target.lstrip("/"))
        packed = self.source / path
        plain = packed.with_name(packed.name.removesuffix(PACKED))
        if ".." in path.parts or not (packed.is_file() or plain.is_dir()):
            names = ", ".join(sorted(one.name for one in self.source.iterdir())[:10])
            raise validation_error(
                f"Failed to download model data ({packed}). Please ensure that there is an object "
                f"located at the URL. The folder has: {names or 'nothing'}",
                ErrorCode="MODEL_DATA_NOT_FOUND",
            )
        folder.mkdir(parents=True)
        if packed.is_file():
            try:
                unpack_archive(packed, folder)
            except Trouble as error:
                raise validation_error(f"Failed to extract model data archive: {error}") from error
        else:
            shutil.copytree(plain, folder, dirs_exist_ok=True)

    def post(self, endpoint: str, model: Loaded) -> None:
        """Let the container load a model."""
        body = json.dumps(
            {"model_name": model.key, "url": self.container.path_of(model.folder)}
        ).encode()
        begin = time.monotonic()
        while True:
            until = time.monotonic() + self.load_s
            try:
                status, text = ask_text(
                    self.container.address, "POST", "/models", until=until, body=body
                )
            except NoAnswer as error:
                raise model_error(endpoint, 0, f"POST /models: {error}") from error
            if status in (HTTPStatus.OK, HTTPStatus.CONFLICT):  # 409: it is loaded already
                took = time.monotonic() - begin
                say(f"loaded {model.target} as {model.key} in {took:.1f} s")
                return
            say(f"{model.target}: POST /models is answered with {status}: {text[:200]}")
            if status != HTTPStatus.INSUFFICIENT_STORAGE or not self.unload_one(model.target):
                raise model_error(endpoint, status, text)

    def unload_one(self, but: str) -> bool:
        """Unload the model that was not asked for the longest time; False where there is none."""
        with self.guard:
            free = [one for one in self.table.values() if one.target != but and not one.users]
            if not free:
                return False
            model = self.table.pop(free[0].target)
        until = time.monotonic() + self.load_s
        try:
            status, text = ask_text(
                self.container.address, "DELETE", f"/models/{model.key}", until=until
            )
            fault = "" if status == HTTPStatus.OK else f"{status}: {text[:200]}"
        except NoAnswer as error:
            fault = str(error)
        if fault:
            fault = f", but DELETE /models/{model.key} is answered with {fault}"
        say(f"unloaded {model.target}{fault}")
        shutil.rmtree(model.folder.parent, ignore_errors=True)
        return True
