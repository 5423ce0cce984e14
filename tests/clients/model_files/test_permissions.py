"""Folders and files of another user: the start says whose they are, and how to mend that."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients.model_files.files import explain_denial
from container.checks import check_files
from container.model_check.model import check_folder
from container.repository.fetch import keep_alone
from container.serving import make_run_folder
from dispatcher.auth.api_keys import BadKeys, load_keys
from dispatcher.settings import SettingError, read_settings

NOBODY, OTHER = 65534, 4321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of user 4321 which this process, as nobody, may enter, list and read, no more."""
    folder = Path(tempfile.mkdtemp())
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "keys").write_text("inference me " + "0" * 64)
    for path, mode in ((folder, 0o755), (folder / "closed", 0o700), (folder / "keys", 0o600)):
        os.chown(path, OTHER, OTHER)
        path.chmod(mode)
    os.seteuid(NOBODY)
    yield folder
    os.seteuid(0)
    shutil.rmtree(folder)


def of(path: Path, mode: str) -> str:
    return (
        f"; '{path}' belongs to user 4321 (mode {mode}), and this runs as user 65534: "
        "`chown` or `chmod -R u+rwX` what is mounted there, or run the container as user 4321 "
        "(`--user 4321`)"
    )


def test_what_hinders_is_named_not_what_was_asked_for(theirs: Path) -> None:
    closed = theirs / "closed"
    assert explain_denial(theirs, os.W_OK) == of(theirs, "755")
    assert explain_denial(theirs / "new" / "folder", os.W_OK) == of(theirs, "755")
    assert explain_denial(closed) == of(closed, "700")
    assert explain_denial(closed / "inner") == of(closed, "700")
    assert explain_denial(closed / "none") == of(closed, "700")
    assert explain_denial(theirs / "keys") == of(theirs / "keys", "600")


def test_nothing_is_said_where_permissions_are_not_the_reason(theirs: Path) -> None:
    assert explain_denial(theirs) == ""
    assert explain_denial(theirs / "none") == ""
    assert explain_denial(Path(tempfile.gettempdir()) / "none", os.W_OK) == ""


def test_one_s_own_folder_without_rights_needs_another_mode(theirs: Path) -> None:
    own = Path(tempfile.mkdtemp())
    own.chmod(0o500)
    said = explain_denial(own, os.W_OK)
    assert said.startswith(f"; '{own}' belongs to user 65534 (mode 500)")
    assert "`chmod -R u+rwX`" in said
    own.rmdir()


def use_run_dir(folder: Path) -> None:
    with make_run_folder(folder):
        pass


@pytest.mark.parametrize(
    ("variable", "use"),
    [
        ("JOBS_DIR", lambda folder: check_files(read_settings({"JOBS_DIR": str(folder)}))),
        ("MODEL_CACHE", lambda folder: keep_alone(folder / "new")),
        ("RUN_DIR", use_run_dir),
    ],
)
def test_a_folder_that_has_to_be_written_to(
    theirs: Path, variable: str, use: Callable[[Path], None]
) -> None:
    with pytest.raises(SettingError) as refused:
        use(theirs)
    assert str(refused.value).startswith(f"{variable} is '{theirs}")
    assert str(refused.value).endswith(of(theirs, "755"))


@pytest.mark.parametrize("variable", ["MODEL_DIR", "MODEL_REPOSITORY", "CLIENTS_PATH"])
def test_a_folder_that_has_to_be_read(theirs: Path, variable: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_settings({variable: str(theirs / "closed" / "inner")})
    assert str(refused.value).startswith(f"{variable} is '{theirs}/closed/inner'; expected: ")
    assert str(refused.value).endswith(of(theirs / "closed", "700"))


def test_a_file_of_a_model_is_named_where_triton_could_not_load_it(theirs: Path) -> None:
    os.seteuid(0)
    for name in ("fine", "shut", "inner"):
        (theirs / "closed" / name / "1").mkdir(parents=True)
        (theirs / "closed" / name / "1" / "model.onnx").write_bytes(b"")
    for path in (theirs / "closed", *(theirs / "closed").rglob("*")):
        path.chmod(0o755)
    file, folder = (theirs / "closed" / name for name in ("shut/1/model.onnx", "inner/1"))
    for path, mode in ((file, 0o640), (folder, 0o750)):
        os.chown(path, OTHER, OTHER)
        path.chmod(mode)
    os.seteuid(NOBODY)
    found = {one.file: one.message for one in check_folder(theirs / "closed").found}
    denied = "cannot be read (Permission denied)"
    assert denied + of(file, "640") == found["shut/1/model.onnx"]
    (inner,) = (said for name, said in found.items() if name.startswith("inner/1/"))
    assert inner == denied + of(folder, "750")


def test_the_file_of_keys(theirs: Path) -> None:
    with pytest.raises(BadKeys) as refused:
        load_keys(theirs / "keys")
    assert str(refused.value) == f"it cannot be read: Permission denied{of(theirs / 'keys', '600')}"
