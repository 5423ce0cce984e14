"""Loads and unloads models while the container runs, as SageMaker's multi-model endpoints ask.

A model comes as a folder somewhere on this machine. A folder for it is made in the repository that
Triton reads, of links, with a configuration under the new name and with its own copy of what
says how it is asked; then Triton is told.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelFailed,
    TooLargeAtOnce,
    UnknownModel,
)
from clients.plugins.dispatch_toml import COPIED, Copied, aliases, note_copied
from clients.plugins.dispatch_toml import FILE as CLIENT_FILE
from clients.repository.config_text import NotReadable, line_of, read
from clients.repository.deadly import deadly
from clients.repository.files import is_litter, locked, text_of
from clients.repository.model_folders import (
    CONFIG,
    NAME,
    NAMED,
    PLAIN_MODELS,
    has_versions,
    link,
    linked_by,
    unservable,
)
from clients.triton.server import ModelServer
from dispatcher.errors import AlreadyLoaded, BadModel, OutOfMemory
from dispatcher.observability.memory import free_memory
from dispatcher.settings import ASIDE, UNLOAD_S

MODEL = "config.pbtxt and 1/model.onnx, or a plain model.onnx"
SEEN_TO = frozenset({"LOADING", "READY", "UNLOADING"})  # by whoever does so, or by Triton
SAID_S = 2.0  # for Triton's word on a model, by one who has waited long already
LOOK_S = 0.05  # between two looks at whether another caller is done with a model
CLIENT_FILE_BYTES = 2**20  # far more than anybody writes
ADDRESS = "model.url"  # beside the links: where the model came from

# What a loaded model takes besides its file, measured with `make bench`: a process with ONNX
# Runtime, and its own copy of the weights while they are packed for the processor.
PROCESS_BYTES = 150 * 2**20
COPIES = 2


class Hosting:
    """Loads and unloads models.

    Args:
        server: where models run.
        repository: the folder that it reads.
        roots: folders below which a model must lie; none means anywhere.
        renamed_config: returns a `config.pbtxt` for the same model under another name.
        timeout: seconds that a load may take.
        wanted: the folder with a file for each model that Triton loads when it is started anew.
        unload_timeout: seconds that it may take to unload one.
        folders: returns the folders of MODEL_DIR and MODEL_REPOSITORY that are models now, by name.

    """

    def __init__(  # noqa: PLR0913, PLR0917  all that there is to know, once
        self,
        server: ModelServer,
        repository: Path,
        roots: tuple[Path, ...],
        renamed_config: Callable[[str, str], str],
        timeout: float,
        wanted: Path | None = None,
        unload_timeout: float = UNLOAD_S,
        folders: Callable[[], Mapping[str, Path]] = dict,
    ) -> None:
        self.server = server
        self.repository = repository
        self.roots = roots
        self.renamed_config = renamed_config
        self.timeout = timeout
        self.wanted = wanted
        self.unload_timeout = unload_timeout
        self.folders = folders

    def load(
        self,
        name: str,
        url: str,
        fault: Callable[[], str] = str,
        may_have: Callable[[str], bool] = bool,
    ) -> None:
        """Load the model in the folder `url` under `name`.

        Args:
            name: the model's.
            url: its folder.
            fault: returns why a model that is loaded is given back; nothing where it is kept.
                Nobody else loads or unloads it before that.
            may_have: whether the model may have an alias that its `dispatch.toml` gives it.

        Raises:
            BadModel: the name or the folder cannot be used, or the model cannot be loaded, or has
                a fault.
            AlreadyLoaded: there is a model of this name.
            OutOfMemory: it would not fit, or there is no room on the disk.
            DeadlineExceeded: it takes too long; the model server goes on with it.

        """
        if not NAME.fullmatch(name):
            raise BadModel(f"`model_name` is {name[:100]!r}", hint=NAMED)
        with ExitStack() as until_loaded:
            try:
                source = model_folder(self.allowed(url))
                self.refuse_too_large(source)
                placed = until_loaded.enter_context(self.placed(source, name, url, may_have))
            except OSError as error:
                raise not_placed(url, error) from error
            except ModelFailed as error:  # its configuration cannot be read
                raise not_loaded(url, error) from error
            if placed:
                self._load_placed(name, url)
                try:
                    reason = fault()
                except BaseException:
                    self._give_back(name)
                    raise
                if reason:
                    self._give_back(name)
                    reason = reason.replace(str(self.repository / name), str(source))
                    raise BadModel(reason, hint=f"mend it in {url}, then load it again")
                return
        if self.is_loaded(name):
            raise AlreadyLoaded(f"there is a model {name!r}")
        if self.was_lost(name):
            self.load(name, url, fault, may_have)
            return
        if self.is_own(name):
            raise BadModel(
                f"the repository has a model {name!r} of its own that is not loaded",
                hint=f"POST /load_model/{name} loads it; or choose another name",
            )
        raise AlreadyLoaded(f"the model {name!r} is being loaded, or unloaded")

    def _load_placed(self, name: str, url: str) -> None:
        try:
            self._load(name)
        except DeadlineExceeded:
            raise
        except ModelFailed as error:
            self.remove(name)
            raise not_loaded(url, error) from error
        except BaseException:
            self.remove(name)
            raise

    def _give_back(self, name: str) -> None:
        with suppress(DeadlineExceeded):  # its client's trial may have left it with a request
            self._unload(name, self.unload_timeout)
            self.remove(name)

    @contextmanager
    def placed(
        self, source: Path, name: str, url: str, may_have: Callable[[str], bool] = bool
    ) -> Iterator[bool]:
        """Put a model's folder into the repository, and hold it; yield whether there was none.

        It is put there whole at once: others list the repository meanwhile, and ask whose a folder
        is that they find there.
        """
        folder, made = self.repository / name, self.aside()
        if self.was_deleted(name):
            try:  # neither does anything to what another caller has put there meanwhile
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
            (made / ADDRESS).write_text(url)
            with (made / ADDRESS).open() as address:
                fcntl.flock(address, fcntl.LOCK_EX)
                with self.alone():  # of two that come at once one sees the other's aliases
                    if (made / CLIENT_FILE).is_file():
                        its = tuple(filter(may_have, aliases(source)))
                        note_copied(made / CLIENT_FILE, Copied(source / CLIENT_FILE, its))
                    is_placed = moved(made, folder)
                yield is_placed
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def held(self, name: str, until: float = 0.0) -> Iterator[bool]:
        """Hold the folder of a model from elsewhere; yield whether that can be done.

        Whoever loads or unloads the model holds it, and lets go of it even by being killed.

        Args:
            name: the model's.
            until: when it is too late, on the clock of `time.monotonic()`.

        """
        place = self.repository / name / ADDRESS
        with ExitStack() as until_done:
            try:
                address = until_done.enter_context(place.open())
                while not locked(address):
                    if time.monotonic() >= until:
                        raise BlockingIOError
                    time.sleep(LOOK_S)
                # It may have been taken away meanwhile, and another one put into its place.
                is_held = os.path.samestat(os.fstat(address.fileno()), place.stat())
            except OSError:  # there is no such folder
                is_held = False
            yield is_held

    def remove(self, name: str) -> None:
        """Take a model's folder out of the repository, whole at once."""
        gone = self.aside()
        with suppress(FileNotFoundError):  # another caller was sooner
            (self.repository / name).rename(gone)
        if gone.is_symlink():
            gone.unlink()
        shutil.rmtree(gone, ignore_errors=True)

    def was_deleted(self, name: str) -> bool:
        """Whether only links are left of a model whose own folder somebody has deleted."""
        place = self.repository / name
        if place.is_symlink():
            return not os.path.lexists(place.parent / place.readlink())
        try:
            left = list(place.iterdir())
        except OSError:
            return False
        if not left:  # the prober has put the link aside
            return (self.repository.with_name(ASIDE) / name).is_symlink()
        return all(path.is_symlink() and not path.exists() for path in left)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from putting a model into the repository, for as long as that takes."""
        repository = os.open(self.repository, os.O_RDONLY)
        try:
            fcntl.flock(repository, fcntl.LOCK_EX)
            yield
        finally:
            os.close(repository)

    def aliases(self) -> set[str]:
        """Return the aliases of all models in the repository, also of those that are not loaded."""
        return {alias for folder in self.repository.iterdir() for alias in aliases(folder)}

    def aside(self) -> Path:
        """Return where a folder may be that is not in the repository, on the same disk."""
        return self.repository.with_name(f"{ASIDE}-{uuid.uuid4().hex}")

    def is_own(self, name: str) -> bool:
        """Whether the repository has a model of this name that is not from elsewhere."""
        folder = self.repository / name
        address = folder / ADDRESS
        # Between two looks the folder of one that is from elsewhere may come, or go; not both.
        return not address.exists() and os.path.lexists(folder) and not address.exists()

    def own_name(self, asked: str) -> str:
        """Return the name of a model of the repository, by that name or an alias of its own.

        One whose folder was added after the start counts too.

        Raises:
            UnknownModel: there is none.

        """
        there = self.own_folders()
        if asked in there:
            return asked
        for name, folder in there.items():
            if asked in aliases(folder):
                return name
        raise no_folder(asked, there)

    def own_folders(self) -> dict[str, Path]:
        """Return the folders of the models of the repository, by name."""
        linked = {path.name: path for path in self.repository.iterdir() if has_files(path)}
        return {**self.folders(), **linked}

    def load_own(self, name: str) -> None:
        """Load a model of the repository, or load it again.

        Raises:
            UnknownModel: there is none of this name.
            BadModel: it cannot be loaded.
            OutOfMemory: it would not fit.
            DeadlineExceeded: it takes too long; the model server goes on with it.

        """
        if name not in (there := self.own_folders()):
            raise no_folder(name, there)
        self.refuse_changed(name)
        is_new = self.take_in(name)
        try:
            if (self.repository / name / CONFIG).is_file():
                # Triton does not say what is wrong.
                text = written(self.repository / name)
                self.renamed_config(text, name)
                refuse_other_name(text, name)
            self._load(name)
        except InferenceError as error:
            if is_new and not isinstance(error, DeadlineExceeded):
                self.remove(name)
            if isinstance(error, ModelFailed):
                raise not_loaded(f"the model {name!r}", error) from error
            raise

    def take_in(self, name: str) -> bool:
        """Link a model's folder into the repository as it is now; return whether it is a new one.

        One that was linked before may have got a `dispatch.toml` since, or another configuration.

        Raises:
            BadModel: Triton must not be given it.

        """
        place, made = self.repository / name, self.aside()
        is_new = not (NAME.fullmatch(name) and has_files(place))
        folder = self.folders().get(name)
        if folder is None or (place / ADDRESS).exists():
            return False
        if reason := unservable(name, folder):
            named = NAME.fullmatch(name)
            raise BadModel(
                f"{folder} is not served: {reason}",
                hint=f"mend it, then POST /load_model/{name} again" if named else "rename it",
            )
        link(folder, made)
        try:
            before = linked_by(place)
            if before == linked_by(made) or (before is None and not is_new):
                return False
            self.remove(name)  # also what is left of one that was deleted
            made.rename(place)
        except OSError:
            if not has_files(place):
                raise
            return False  # another caller was sooner
        finally:
            if made.is_symlink():
                made.unlink()
            shutil.rmtree(made, ignore_errors=True)
        return is_new

    def refresh(self) -> None:
        """Link those models as they are now whose folders Triton does not take as they are.

        A `dispatch.toml` that was put into one of them is found then.
        """
        for name in self.folders():
            place = self.repository / name
            if NAME.fullmatch(name) and has_files(place) and not place.is_symlink():
                with suppress(BadModel, OSError):  # loading the model says what is wrong
                    self.take_in(name)

    def refuse_changed(self, name: str) -> None:
        """Refuse to load a model from elsewhere whose configuration is not the one it came with.

        Raises:
            BadModel: its folder has another now, or is gone.

        """
        place = self.repository / name
        try:
            url = (place / ADDRESS).read_bytes().decode()
        except OSError:  # it is the repository's own
            return
        hint = f"DELETE /models/{name}, then POST /models again"
        try:
            source = model_folder(self.allowed(url))
            copy, now = place / CONFIG, source / CONFIG
            before = copy.read_bytes().decode() if copy.is_file() else None
            after = self.renamed_config(written(source), name) if now.is_file() else None
        except OSError as error:
            raise not_placed(url, error) from error
        except ModelFailed as error:
            raise not_loaded(url, error) from error
        if before != after:
            raise BadModel(f"{now} has changed since POST /models, which copied it", hint=hint)

    def _load(self, name: str) -> None:
        if faults := deadly(self.repository / name):
            raise ModelFailed("; ".join(map(str, faults)))
        try:
            self.server.load(name, timeout=self.timeout)
        except DeadlineExceeded:
            self.want(name)  # it will be there later
            raise
        self.want(name)

    def want(self, name: str, *, yes: bool = True) -> None:
        """Note whether a model is to be loaded again when Triton is started anew."""
        if self.wanted is None:
            return
        if yes:
            (self.wanted / name).touch()
        else:
            (self.wanted / name).unlink(missing_ok=True)

    def is_wanted(self, name: str) -> bool:
        """Whether a model was noted so, at the start or later."""
        return self.wanted is not None and (self.wanted / name).exists()

    def unwanted(self) -> list[str]:
        """Return the models from elsewhere that a new Triton would not load: those on their way."""
        names = [address.parent.name for address in self.repository.glob(f"*/{ADDRESS}")]
        return [name for name in names if not self.is_wanted(name)]

    def was_lost(self, name: str) -> bool:
        """Whether a model from elsewhere is not loaded, and nobody sees to it; forget it.

        It did not load, late or anew, or whoever loaded it was killed.
        """
        if not NAME.fullmatch(name):  # it may lead to any folder
            return False
        with self.held(name) as is_held:
            if not is_held or not SEEN_TO.isdisjoint(self.states(name)):
                return False
            self.want(name, yes=False)
            self.remove(name)
            return True

    def unload(self, name: str) -> None:
        """Unload a model; its memory is given back when this returns.

        Raises:
            UnknownModel: it is not loaded.
            DeadlineExceeded: it takes too long; the model server goes on with it.

        """
        if {"READY", "UNLOADING"}.isdisjoint(self.states(name)):
            if self.was_lost(name):
                return
            raise UnknownModel(f"the model {name[:100]!r} is not loaded")
        is_from_elsewhere = (self.repository / name / ADDRESS).exists()
        until = time.monotonic() + self.unload_timeout
        with self.held(name, until) as is_held:
            left = until - time.monotonic()
            if is_from_elsewhere and left <= 0:
                raise DeadlineExceeded(f"another caller loads or unloads the model {name!r}")
            if is_from_elsewhere and not is_held:
                raise UnknownModel(f"the model {name!r} has just been unloaded")
            self._unload(name, left)
            if is_held:
                self.remove(name)

    def _unload(self, name: str, timeout: float) -> None:
        self.want(name, yes=False)
        try:
            self.server.unload(name, timeout=timeout)
        except InferenceError as error:
            # One that is late is gone later; any other is to be found by whoever is next.
            if not (isinstance(error, DeadlineExceeded) and self.is_ending(name)):
                self.want(name)
            raise

    def is_loaded(self, name: str) -> bool:
        """Whether a model is ready to be asked."""
        return "READY" in self.states(name)

    def is_ending(self, name: str) -> bool:
        """Whether a model is being unloaded, as far as Triton says so."""
        try:
            return "READY" not in self.states(name, timeout=SAID_S)
        except InferenceError:
            return False

    def states(self, name: str, timeout: float | None = None) -> list[str]:
        """Return the state of each version of a model, in Triton's words."""
        states = self.server.models(timeout=timeout or self.timeout)
        return [state.state for state in states if state.name == name]

    def allowed(self, url: str) -> Path:
        """Return the folder that `url` names.

        Raises:
            BadModel: it is no absolute path of a readable folder, or leads out of the roots.

        """
        path = Path(url.removeprefix("file://"))
        if not readable_folder(path):
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

    def refuse_too_large(self, source: Path) -> None:
        """Raise OutOfMemory where the model would not fit into what is free."""
        size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        needed, free = COPIES * size + PROCESS_BYTES, free_memory()
        if needed > free:
            raise OutOfMemory(
                f"the model needs about {needed // 2**20} MiB; {free // 2**20} MiB are free",
                hint="unload another model first",
            )

    def link(self, source: Path, folder: Path, name: str) -> None:
        """Fill the model's folder in the repository."""
        if (source / CONFIG).is_file():
            (folder / CONFIG).write_text(
                self.renamed_config(written(source), name), encoding="utf-8"
            )
        if not has_versions(source):
            (folder / "1").symlink_to(source)
        for path in source.iterdir():
            if path.name == CLIENT_FILE and path.is_file():
                (folder / CLIENT_FILE).write_bytes(client_file(path))
            elif path.name not in {CONFIG, ADDRESS, COPIED, *PLAIN_MODELS}:
                (folder / path.name).symlink_to(path)


def client_file(path: Path) -> bytes:
    """Return what is in a `dispatch.toml`: a copy is the same to web workers that start later.

    Raises:
        BadModel: it is too large to be one.

    """
    with path.open("rb") as file:
        content = file.read(CLIENT_FILE_BYTES + 1)
    if len(content) > CLIENT_FILE_BYTES:
        raise BadModel(f"{path} has more than {CLIENT_FILE_BYTES // 2**20} MiB")
    return content


def written(folder: Path) -> str:
    """Return the text of a model's configuration.

    Raises:
        BadModel: it is no UTF-8.

    """
    config = folder / CONFIG
    try:
        return text_of(config)
    except UnicodeDecodeError as error:
        raise BadModel(f"{config} is not UTF-8: {error}", hint="save it as UTF-8") from error


def refuse_other_name(text: str, name: str) -> None:
    """Refuse a configuration of the repository that has the name of another folder.

    Raises:
        ModelFailed: it has, as in a copy of another model's folder.

    """
    with suppress(NotReadable):  # of which Triton's parser reads more
        for field in read(text).all("name"):
            if field.value != name:
                raise ModelFailed(
                    f'{CONFIG}:{line_of(text, field)}: `name` is "{field.value}", but the '
                    f'folder is "{name}"',
                    hint=f'write name: "{name}", or leave the line out',
                )


def has_files(folder: Path) -> bool:
    """Whether there is a folder with something in it; what links lead to may have been deleted."""
    try:
        return any(path.exists() for path in folder.iterdir())
    except OSError:
        return False


def no_folder(asked: str, there: Iterable[str]) -> UnknownModel:
    return UnknownModel(
        f"the model repository has no folder {asked[:100]!r}",
        hint=f"it has {', '.join(sorted(there)) or 'none'}",
    )


def moved(folder: Path, place: Path) -> bool:
    """Move a folder; return whether there was none in its place. Of two callers one succeeds."""
    try:
        folder.rename(place)  # it replaces none that has something in it
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    return True


def not_placed(url: str, error: OSError) -> InferenceError:
    """Return what a caller is told of a folder that cannot be put into the repository."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return OutOfMemory(
            f"there is no room for the model's links in the container's RUN_DIR: {error.strerror}"
        )
    return BadModel(
        f"{error.filename or url}: {error.strerror}",
        hint=f"expected {MODEL}, that the container's user may read",
    )


def not_loaded(what: str, error: ModelFailed) -> InferenceError:
    """Return what a caller is told of a model that Triton could not load."""
    message = f"{what} cannot be loaded: {error.message}"
    if isinstance(error, TooLargeAtOnce):
        hint = "unload another model first, or start the container with more /dev/shm"
        return OutOfMemory(message, hint=hint)
    return BadModel(message, hint=error.hint)


def readable_folder(path: Path) -> bool:
    """Whether this is the absolute path of a folder that can be read; any text may be one."""
    try:
        may = os.access(path, os.R_OK | os.X_OK, effective_ids=True)
        return path.is_absolute() and path.is_dir() and may
    except (OSError, ValueError):  # too long; NUL, or half of a surrogate pair
        return False


def model_folder(folder: Path) -> Path:
    """Return the model's own folder: this one, or the only folder in it where nothing is beside.

    Raises:
        BadModel: it is neither a Triton model folder nor one with a plain model file.

    """
    inner = [path for path in folder.iterdir() if path.is_dir() and not is_litter(path)]
    for candidate in (folder, *inner[:1]):
        plain = any((candidate / name).is_file() for name in PLAIN_MODELS)
        if has_versions(candidate) or plain:
            return candidate
        if len(inner) != 1 or (folder / CONFIG).exists() or (folder / CLIENT_FILE).exists():
            break
    raise BadModel(
        f"{folder} is no model",
        hint=f"expected {MODEL}",
    )
