"""The folder of models that Triton reads: a folder or a link for each model.

The models of MODEL_REPOSITORY and MODEL_DIR are links. For a model that is loaded from elsewhere a
folder of links is made, with a configuration under the new name and a copy of its dispatch.toml.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from clients.errors import UnknownModel
from clients.families.base.dispatch_toml import COPIED
from clients.families.base.dispatch_toml import FILE as CLIENT_FILE
from clients.model_files.model_folders import (
    CONFIG,
    NAME,
    PLAIN_MODELS,
    available,
    has_versions,
    link,
    read_links,
    text_for_triton,
    unservable,
)
from dispatcher.errors import BadModel
from dispatcher.locks import Locked, hold_lock
from dispatcher.models.model_files import is_readable_folder, read_client_file, read_config
from dispatcher.settings import ASIDE, MODELS, Settings

log = logging.getLogger(__name__)

URL_FILE = "model.url"  # beside the links of a model from elsewhere: the folder that it came from


@dataclass
class RepositoryFolder:
    """The folder that Triton reads."""

    repository: Path
    roots: tuple[Path, ...]  # below which a model from elsewhere must be; empty means anywhere
    # Returns a `config.pbtxt` for the same model under another name.
    renamed_config: Callable[[str, str], str]
    _: KW_ONLY
    # Returns the folders in MODEL_DIR and MODEL_REPOSITORY that are models, by name.
    folders: Callable[[], Mapping[str, Path]] = dict

    @contextmanager
    def placed(self, source: Path, name: str, url: str) -> Iterator[bool]:
        """Add a model's folder and lock it; yield whether the name was free.

        The folder appears complete, by a rename: other processes list the repository meanwhile.
        """
        folder, made = self.repository / name, self.aside()
        if self.was_deleted(name):
            try:  # neither call touches what another caller has put there meanwhile
                folder.unlink() if folder.is_symlink() else folder.rmdir()
            except OSError:
                if self.was_deleted(name):
                    self.remove(name)
        if os.path.lexists(folder):
            yield False
            return
        made.mkdir()
        try:
            self.link(source, made, name)
            (made / URL_FILE).write_text(url, encoding="utf-8")
            with (made / URL_FILE).open(encoding="utf-8") as address:
                fcntl.flock(address, fcntl.LOCK_EX)
                if (made / CLIENT_FILE).is_file():
                    (made / COPIED).write_text(str(source / CLIENT_FILE), encoding="utf-8")
                yield rename_if_absent(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def held(self, name: str, until: float = 0.0) -> Iterator[bool]:
        """Lock the folder of a model from elsewhere; yield whether that succeeded.

        The process that loads or unloads the model holds the lock. It ends with the process.
        """
        place = self.repository / name / URL_FILE
        with ExitStack() as until_done:
            try:
                address = until_done.enter_context(
                    hold_lock(place, fcntl.LOCK_EX, until, os.O_RDONLY)
                )
                # The folder may have been replaced while the lock was awaited.
                is_held = os.path.samestat(os.fstat(address), place.stat())
            except (OSError, Locked):  # there is no such folder, or another process has it
                is_held = False
            yield is_held

    def remove(self, name: str) -> None:
        """Remove a model's folder from the repository, by a rename."""
        gone = self.aside()
        with suppress(FileNotFoundError):  # another caller was faster
            (self.repository / name).rename(gone)
        if gone.is_symlink():
            gone.unlink()
        shutil.rmtree(gone, ignore_errors=True)

    def was_deleted(self, name: str) -> bool:
        """Check whether only links are left of a model whose own folder was deleted."""
        place = self.repository / name
        if place.is_symlink():
            return not os.path.lexists(place.parent / place.readlink())
        try:
            left = list(place.iterdir())
        except OSError:
            return False
        if not left:  # the link was moved aside, see links.py
            return (self.repository.with_name(ASIDE) / name).is_symlink()
        return all(path.is_symlink() and not path.exists() for path in left)

    def aside(self) -> Path:
        """Return a new path outside the repository, on the same disk."""
        return self.repository.with_name(f"{ASIDE}-{uuid.uuid4().hex}")

    def is_own(self, name: str) -> bool:
        """Check whether a model belongs to the repository itself."""
        folder = self.repository / name
        address = folder / URL_FILE
        # A model from elsewhere may come or go between two checks, but not both.
        return not address.exists() and os.path.lexists(folder) and not address.exists()

    def own_folders(self) -> dict[str, Path]:
        linked = {path.name: path for path in self.repository.glob("*") if has_files(path)}
        return {**self.folders(), **linked}

    def take_in(self, name: str) -> bool:
        """Update a model's link or links; return whether the model is new.

        The folder may have got a `dispatch.toml` or another configuration since it was linked.
        """
        place, made = self.repository / name, self.aside()
        is_new = not (NAME.fullmatch(name) and has_files(place))
        folder = self.folders().get(name)
        if folder is None or (place / URL_FILE).exists():
            return False
        if reason := unservable(name, folder):
            named = NAME.fullmatch(name)
            raise BadModel(
                f"{folder} is not served: {reason}",
                hint=f"mend it, then POST /load_model/{name} again" if named else "rename it",
            )
        link(folder, made)
        try:
            before = read_links(place)
            if before == read_links(made) or (before is None and not is_new):
                return False
            self.remove(name)  # also what is left of a deleted model
            made.rename(place)
        except OSError:
            if not has_files(place):
                raise
            return False  # another caller was faster
        finally:
            if made.is_symlink():
                made.unlink()
            shutil.rmtree(made, ignore_errors=True)
        return is_new

    def refresh(self) -> None:
        """Update the folders of links, to find new `dispatch.toml` files.

        A model that is linked as a whole needs no update.
        """
        for name in self.folders():
            place = self.repository / name
            if NAME.fullmatch(name) and has_files(place) and not place.is_symlink():
                with suppress(BadModel, OSError):  # loading the model says what is wrong
                    self.take_in(name)

    def allowed(self, url: str) -> Path:
        """Return the folder that `url` names."""
        path = Path(url.removeprefix("file://"))
        if not is_readable_folder(path):
            raise BadModel(
                f"`url` is {url[:200]!r}", hint="expected the absolute path of a readable folder"
            )
        if self.roots:
            self.refuse_outside(path, url)
            for one in path.rglob("*"):
                self.refuse_outside(one, url)
        return path.resolve()

    def refuse_outside(self, path: Path, url: str) -> None:
        try:
            target = path.resolve()
        except (OSError, RuntimeError) as error:  # a link to itself
            raise BadModel(f"{path} cannot be followed: {error}") from error
        if not any(target.is_relative_to(root.resolve()) for root in self.roots):
            raise BadModel(
                f"`url` {url[:200]!r} leads out of the folders that models may come from",
                hint=f"MODEL_URL_ROOTS allows {', '.join(map(str, self.roots))}",
            )

    def link(self, source: Path, folder: Path, name: str) -> None:
        """Fill the folder in the repository of a model from elsewhere, under another name."""
        if (source / CONFIG).is_file():
            text = self.renamed_config(read_config(source), name)
            text = text_for_triton(text, source)
            (folder / CONFIG).write_text(text, encoding="utf-8")
        if not has_versions(source):
            (folder / "1").symlink_to(source)
        for path in source.iterdir():
            if path.name == CLIENT_FILE and path.is_file():
                (folder / CLIENT_FILE).write_bytes(read_client_file(path))
            elif path.name not in {CONFIG, URL_FILE, COPIED, *PLAIN_MODELS}:
                (folder / path.name).symlink_to(path)


def models_on_disk(settings: Settings) -> Mapping[str, Path]:
    """Return the model folders in MODEL_DIR and MODEL_REPOSITORY now, by name."""
    if settings.run_dir is None or settings.triton_url:  # the repository is no folder of links
        return {}
    try:
        return available(
            settings.mounted,
            *repository_folders(settings.run_dir),
            instead=settings.model_dir_use == "instead",
        )
    except OSError as error:
        log.warning("cannot look for added models: %s", error)
        return {}


def repository_folders(run_dir: Path) -> list[Path]:
    """Return the folders of MODEL_REPOSITORY, in their order; for one in S3, its models' links."""
    places = sorted((run_dir / MODELS).iterdir(), key=lambda place: int(place.name))
    return [place.resolve() for place in places]


def has_files(folder: Path) -> bool:
    try:
        return any(path.exists() for path in folder.iterdir())
    except OSError:
        return False


def no_such_folder(asked: str, there: Iterable[str]) -> UnknownModel:
    return UnknownModel(
        f"the model repository has no folder {asked[:100]!r}",
        hint=f"it has {', '.join(sorted(there)) or 'none'}",
    )


def rename_if_absent(folder: Path, place: Path) -> bool:
    """Rename a folder unless the new name is taken; return whether it was free."""
    try:
        folder.rename(place)  # fails where the place has something in it
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    return True
