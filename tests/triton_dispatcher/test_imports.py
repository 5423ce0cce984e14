"""Names: the old ones work, a module exists once, and no name is taken from anyone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.version import VERSION
from tests.conftest import PROJECT
from tests.triton_dispatcher.conftest import HERE, Installed

HEAVY = {"cv2", "flask", "grpc", "tritonclient", "gunicorn", "transformers", "boto3"}

SAME = """
import sys
{first}
import clients.base, triton_dispatcher.clients.base
assert clients.base is triton_dispatcher.clients.base
assert clients.base.Client is triton_dispatcher.clients.base.Client
assert clients is triton_dispatcher.clients
from clients.testing import OnnxModels
from triton_dispatcher.clients import testing
assert testing.OnnxModels is OnnxModels
import triton_dispatcher.clients.errors as ours, clients.errors as theirs
assert ours.BadPayload is theirs.BadPayload
import dispatcher.settings, triton_dispatcher.dispatcher.settings
assert dispatcher.settings.Settings is triton_dispatcher.dispatcher.settings.Settings
loaded = {{id(one): one for one in sys.modules.values()}}.values()
assert not {heavy!r} & {{name.partition(".")[0] for name in sys.modules}}
files = [one.__file__ for one in loaded if "/clients/" in (getattr(one, "__file__", 0) or "")]
assert len(files) > 10 and len(set(files)) == len(files), "a file was loaded twice"
for missing in ("clients.nothing", "triton_dispatcher.clients.nothing", "clients.base.nothing"):
    try:
        __import__(missing)
    except ModuleNotFoundError as error:
        assert error.name == missing, error.name
    else:
        raise AssertionError(missing)
print(triton_dispatcher.__version__, clients.base.__file__)
"""

FIRST = ["", "import clients.base", "import triton_dispatcher.clients.base", "import clients"]


def same(first: str) -> str:
    """Return a script that asks for modules by both names, after a first import."""
    return SAME.format(first=first, heavy=HEAVY)


@pytest.mark.parametrize("first", FIRST)
def test_a_module_exists_once_by_both_names(
    installed: Installed, tmp_path: Path, first: str
) -> None:
    """And the contract loads neither OpenCV nor the server."""
    version, file = installed.script(same(first), tmp_path).split()
    assert version == VERSION
    root = installed.packages / "triton_dispatcher"
    assert Path(file) == root / "clients" / "base.py"
    # In the processes of the server the folder itself is on the path, as it is in the image.
    said = installed.script(same(first), tmp_path, PYTHONPATH=str(root))
    assert said.split()[1] == file


def test_a_module_exists_once_in_a_checkout() -> None:
    script = same("import triton_dispatcher.clients.base")
    done = HERE.run("python", "-c", script, cwd=PROJECT)
    assert done.stdout.split() == [VERSION, str(PROJECT / "clients" / "base.py")]


STRANGERS = {
    "a package": {"clients/__init__.py": "MINE = 1", "clients/mine.py": "MINE = 1"},
    "a folder without __init__.py": {"clients/mine.py": "MINE = 1", "tool/mine.py": ""},
    "a module": {"clients.py": "MINE = 1", "dispatcher.py": "MINE = 1"},
}
AMONG_STRANGERS = """
{theirs}
from triton_dispatcher.clients.base import Client
from triton_dispatcher.clients.testing import OnnxModels, answer, clients_in
{theirs}
assert "triton_dispatcher" not in (getattr(clients, "__file__", None) or "")
(Double,) = clients_in({double!r})
assert issubclass(Double, Client)
print(answer(Double, {{"numbers": [1, 2.5]}}, OnnxModels({models!r})))
"""


@pytest.fixture(scope="module")
def double(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class with its model, as `dispatcher new-client` of the wheel writes them."""
    folder = tmp_path_factory.mktemp("double")
    done = installed.run("dispatcher", "new-client", "double", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("place", ["beside the script", "installed"])
def test_the_names_of_others_stay_theirs_and_this_project_works_beside_them(
    installed: Installed, double: Path, tmp_path: Path, kind: str, place: str
) -> None:
    folder = tmp_path / "others" if place == "installed" else tmp_path
    for name, text in STRANGERS[kind].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    theirs = {
        "a package": "import clients, clients.mine; assert clients.mine.MINE == clients.MINE",
        "a folder without __init__.py": "import clients.mine, tool.mine; clients.mine.MINE",
        "a module": "import clients, dispatcher; clients.MINE, dispatcher.MINE",
    }[kind]
    script = AMONG_STRANGERS.format(
        theirs=theirs, double=str(double / "code/clients/double.py"), models=str(double)
    )
    link = installed.packages / "yy-of-a-stranger.pth"  # as an installation of theirs
    if place == "installed":
        link.write_text(str(folder))
    try:
        assert installed.script(script, tmp_path) == "[2.0, 5.0]\n"
    finally:
        link.unlink(missing_ok=True)


@pytest.mark.parametrize("program", [["dispatcher"], ["python", "-m", "triton_dispatcher"]])
@pytest.mark.slow
def test_the_command_is_this_project_s_among_strangers(
    installed: Installed, double: Path, tmp_path: Path, program: list[str]
) -> None:
    for name in ("backends", "clients", "container", "dispatcher", "tool", "weights"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stranger')\n")
    done = installed.run(*program, "check", double, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 models (double): 0 errors, 0 warnings" in done.stdout


def test_nothing_is_loaded_before_it_is_asked_for(installed: Installed, tmp_path: Path) -> None:
    """Every Python of the environment starts with the file in `triton_dispatcher.pth`."""
    code = "import sys; print(*sys.modules, sep='\\n')"
    here, without = (
        set(installed.run("python", *options, "-c", code, cwd=tmp_path).stdout.split())
        for options in ([], ["-S"])
    )
    assert "triton_dispatcher" in here
    assert not {"pathlib", "typing", "re", "importlib.util", "clients"} & (here - without)
