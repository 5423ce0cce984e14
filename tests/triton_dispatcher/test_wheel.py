"""What is in the wheel, what it asks for, and how packages of authors ask for it."""

from __future__ import annotations

import re
import subprocess
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from clients.plugins.discovery import ENTRY_POINTS
from container.image.distribution import record
from dispatcher.version import VERSION
from tests.conftest import PROJECT
from tests.triton_dispatcher.conftest import Installed, build, make_environment

REQUIREMENTS = PROJECT / "container" / "image" / "requirements"
CODE = ("backends", "clients", "container", "dispatcher", "tool", "weights")


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one for one in archive.infolist()}


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_string(
            archive.read(f"triton_dispatcher-{VERSION}.dist-info/METADATA").decode()
        )


def test_the_wheel_has_every_file_of_the_code_and_one_name(
    wheel: Path, files: dict[str, zipfile.ZipInfo]
) -> None:
    """And templates, tables and pages beside it, but no weights."""
    info = f"triton_dispatcher-{VERSION}.dist-info"
    tops = {name.partition("/")[0] for name in files}
    assert tops == {"triton_dispatcher", "triton_dispatcher.pth", info}
    listed = subprocess.run(
        ["git", "ls-files", *CODE, "nginx.conf", "serve"],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    )
    tracked = [name for name in listed.stdout.splitlines() if (PROJECT / name).is_file()]
    assert len(tracked) > 200
    assert {f"triton_dispatcher/{name}" for name in tracked} <= set(files)
    for name in ("serve", "container/programs/triton_python_backend_stub"):
        assert files[f"triton_dispatcher/{name}"].external_attr >> 16 & 0o111 == 0o111
    models = [name for name in files if name.endswith((".onnx", ".pt", ".bin", ".source.json"))]
    assert models == ["triton_dispatcher/tool/commands/template/model.onnx"]
    assert "triton_dispatcher/model_repository/resnet/dispatch.toml" in files
    assert wheel.stat().st_size < 3 * 2**20


def required(metadata: Message, extra: str) -> dict[str, Requirement]:
    """Return what is asked for with an extra alone, by name."""
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return {
        one.name: one
        for one in found
        if (f'extra == "{extra}"' in str(one.marker) if extra else "extra" not in str(one.marker))
    }


def test_without_extras_there_is_no_server_and_the_tool_has_what_web_workers_have(
    metadata: Message,
) -> None:
    assert set(required(metadata, "")) == {
        *("msgspec", "numpy", "onnxruntime", "packaging", "pillow", "pybase64", "simplejpeg"),
        *("soundfile", "soxr"),
    }
    assert metadata.get_all("Provides-Extra") == ["serve", "tool"]
    assert metadata["Version"] == VERSION
    lines = (REQUIREMENTS / "serve.in").read_text().splitlines()
    expected = {re.split("[#;]", line)[0].strip() for line in lines} - {""}
    found = required(metadata, "tool").values()
    assert 'platform_machine != "aarch64"' in str(
        required(metadata, "tool")["cykooz-resizer"].marker
    )
    assert {str(one).partition(";")[0].strip() for one in found} == expected


def test_the_server_s_packages_have_the_versions_of_the_image(metadata: Message) -> None:
    locks = [(REQUIREMENTS / f"{name}.txt").read_text() for name in ("serve", "triton")]
    expected = set(re.findall(r"^([\w.-]+)==([\w.]+)", "".join(locks), re.MULTILINE))
    found = required(metadata, "serve")
    assert {(one.name, str(one.specifier)[2:]) for one in found.values()} >= {
        one
        for one in expected
        if one[0] != "ml-dtypes"  # of two versions, by Python's
    }
    assert len(found) == len(dict(expected))
    # Elsewhere there is no such wheel, and `serve` says how to go on.
    assert 'sys_platform == "linux"' in str(found["nvidia-pytriton"].marker)


def test_the_example_of_the_docs_takes_this_version() -> None:
    page = (PROJECT / "docs" / "installing.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    project = tomllib.loads(example)["project"]
    (wanted,) = map(Requirement, project["dependencies"])
    assert wanted.name == "triton-dispatcher"
    assert VERSION in wanted.specifier
    assert list(project["entry-points"]) == [ENTRY_POINTS]


def plug_in(folder: Path, wanted: str) -> Path:
    """Make the wheel of a package of an author that asks for versions of the contract."""
    path = folder / "double_for_dispatcher-1.0-py3-none-any.whl"
    named = "Metadata-Version: 2.1\nName: double-for-dispatcher\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {
            "METADATA": f"{named}Requires-Dist: {wanted}\n",
            "WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"double_for_dispatcher-1.0.dist-info/{name}", text)
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Installed:
    return make_environment(tmp_path / "venv")


def test_a_package_asks_for_a_version_of_the_contract(empty: Installed, tmp_path: Path) -> None:
    """A checkout and the image have a version, too."""
    major, minor, _ = VERSION.split(".")
    now, later = f"{major}.{minor}", f"{major}.{int(minor) + 1}"
    (empty.packages / "triton_dispatcher-0.0.1.dist-info").mkdir()
    record(empty.packages)
    for code, wanted in ((1, f">={later},<99"), (0, f">={now},<{later}")):
        package = plug_in(tmp_path, f"triton-dispatcher{wanted}")
        done = empty.pip("install", "--no-index", package)
        assert done.returncode == code, done.stderr
        assert code == 0 or f"triton-dispatcher{wanted}" in done.stderr
    assert empty.pip("uninstall", "triton-dispatcher").returncode == 0
    assert not list(empty.packages.glob("triton_dispatcher*"))


@pytest.mark.slow
def test_an_editable_installation_is_the_checkout(empty: Installed, tmp_path: Path) -> None:
    done = empty.pip("install", "--no-deps", build(tmp_path, "wheel:editable"))
    assert done.returncode == 0, done.stderr
    assert not list(empty.packages.glob("triton_dispatcher/*"))
    said = empty.script(
        "import clients.errors, triton_dispatcher.clients.errors\n"
        "assert clients is triton_dispatcher.clients\nprint(clients.__file__)",
        tmp_path,
    )
    assert said == f"{PROJECT / 'clients' / '__init__.py'}\n"
    said = empty.run("dispatcher", "--version", cwd=tmp_path).stdout
    assert said.startswith(f"triton-dispatcher {VERSION} ")
