"""The models of one S3 prefix of MODEL_REPOSITORY: a folder in RUN_DIR represents the prefix.

It has a link for each model that was fetched, to its copy in MODEL_CACHE; and a folder for each
other one, with its `dispatch.toml` alone, where its aliases are read.
"""

from __future__ import annotations

import json
import math
import shutil
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from clients.errors import UnknownModel
from clients.families.base.dispatch_toml import FILE as CLIENT_FILE
from dispatcher.errors import StorageUnavailable
from dispatcher.s3.client import S3, Location
from dispatcher.s3.model_cache import MIB, RECORD, ModelCache, StoredModel
from dispatcher.settings import ASIDE, MODELS, Settings

SOURCE = ".s3"  # in the folder: the URL of the prefix
AT_A_TIME = 4
ATTEMPTS = 3
MOST_CLIENT_FILE = 2**20


class RemoteModels:
    """The models of one S3 prefix, which a folder represents that has its URL."""

    def __init__(self, folder: Path, cache: ModelCache) -> None:
        self.folder, self.cache = folder, cache
        source = Location.of((folder / SOURCE).read_text(encoding="utf-8")) or Location("")
        prefix = source.key.rstrip("/")
        self.source = Location(source.bucket, f"{prefix}/" if prefix else "")

    @classmethod
    def made(cls, folder: Path, url: str, cache: ModelCache) -> RemoteModels:
        """Return the models of a prefix whose folder is yet to be made."""
        folder.mkdir()
        (folder / SOURCE).write_text(url, encoding="utf-8")
        return cls(folder, cache)

    def names(self) -> dict[str, Path]:
        """Return the models that are known, fetched or not, and their folders or links."""
        return {path.name: path for path in self.folder.iterdir() if path.name != SOURCE}

    def is_fetched(self, name: str) -> bool:
        place = self.folder / name
        return place.is_symlink() and place.is_dir()

    def refresh(self, deadline: float = math.inf) -> dict[str, StoredModel]:
        """List the prefix; make a folder for each new model, and forget those that are gone."""
        cache, listed = self.cache, self.cache.models(self.source, deadline)
        cache.named |= {cache.folder / model.folder for model in listed.values()}
        known = self.names()
        for name, model in listed.items():
            if name not in known:
                made = self.aside()
                made.mkdir()
                record = json.dumps(model.record)  # its place, for GET /models
                (made / RECORD).write_text(record, encoding="utf-8")
                if client_file := model.objects.get(CLIENT_FILE):
                    text = cache.s3.get(client_file.location, deadline, MOST_CLIENT_FILE)
                    (made / CLIENT_FILE).write_bytes(text)
                with suppress(OSError):  # another web worker was faster
                    made.rename(self.folder / name)
                shutil.rmtree(made, ignore_errors=True)
        for name in known.keys() - listed.keys():
            if not known[name].is_symlink():  # one that was fetched may be loaded
                shutil.rmtree(known[name], ignore_errors=True)
        return listed

    def fetch(self, name: str, deadline: float = math.inf) -> None:
        """Fetch the newest version of a model, and link it.

        Raises InferenceError: as `ModelCache.fetch`.
        """
        for attempt in range(ATTEMPTS):
            listed = self.cache.models(self.source, deadline, name)
            if name not in listed:
                raise UnknownModel(f"{self.source}{name}/ has no model any more")
            try:
                self.take(listed[name], deadline)
            except StorageUnavailable:  # such as an object that has changed since it was listed
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return

    def take(self, model: StoredModel, deadline: float = math.inf) -> None:
        """Fetch a model as it was listed, and link it."""
        cache = self.cache
        links = (path for path in self.folder.parent.glob("*/*") if path.is_symlink())
        cache.named |= {link.resolve() for link in links}
        copy = cache.fetch(model, deadline)
        place, link = self.folder / model.name, self.aside()
        link.symlink_to(copy)
        if place.is_symlink():
            cache.named -= {place.resolve()} - {copy}
        else:
            shutil.rmtree(place, ignore_errors=True)
        link.rename(place)

    def aside(self) -> Path:
        """Return a new path on the same disk, in RUN_DIR."""
        return self.folder.parent.with_name(f"{ASIDE}-{uuid.uuid4().hex}")

    def fetch_all(self, models: Iterable[StoredModel]) -> None:
        """Fetch models as they were listed, some at a time."""

        def fetch(model: StoredModel) -> None:
            try:
                self.take(model)
            except StorageUnavailable:
                self.fetch(model.name)

        pool, is_done = ThreadPoolExecutor(AT_A_TIME), False
        try:
            list(pool.map(fetch, models))
            is_done = True
        finally:
            self.cache.stopped = not is_done
            pool.shutdown(cancel_futures=True)


def remote_models(settings: Settings, say: Callable[[str], None]) -> list[RemoteModels]:
    """Return the S3 prefixes of MODEL_REPOSITORY, in a program that `serve` starts."""
    places = [*(settings.run_dir / MODELS).glob(f"*/{SOURCE}")] if settings.run_dir else []
    if not places:
        return []
    cache = cache_of(settings, say)
    return [RemoteModels(one.parent, cache) for one in places]


def cache_of(settings: Settings, say: Callable[[str], None]) -> ModelCache:
    most = settings.model_cache_mb * MIB
    return ModelCache(S3.of(settings), settings.model_cache, most, say)
