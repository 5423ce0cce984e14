"""Folders show the architecture: imports follow the arrows, shelves stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import PROJECT

EMULATOR = "emulator/sagemaker_emulator"  # a package of its own: no import in either direction
SERVER = ("clients", "dispatcher", "container", "backends")
CODE = (*SERVER, "weights", "tool", "bench", "triton_dispatcher", EMULATOR)

# What the files of a room (a folder) may import of others: the files of a room, or one module.
ARROWS = {
    # Payload to tensors to result. The top level is the author's contract.
    "clients": (
        "clients/families/base clients/images clients/plugins clients/model_files"
        " clients/sound clients/tensors clients/triton"
    ),
    "clients/families/base": (
        "clients clients/families clients/images clients/model_files clients/tensors"
        " clients/text clients/triton"
    ),
    "clients/families": (
        "clients clients/families/base clients/images clients/sound clients/tensors clients/triton"
    ),
    "clients/images": "clients",
    "clients/sound": "clients",
    "clients/plugins": "clients clients/families/base clients/model_files clients/tensors",
    "clients/model_files": "",
    "clients/tensors": "clients clients/model_files clients/triton",
    "clients/text": "",
    "clients/triton": "clients clients/model_files clients/tensors",
    # HTTP in, HTTP out. `wsgi.py` and `app.py` put the parts together; the other files of the top
    # level (settings, errors, version) are there for every room.
    "dispatcher": (
        "clients clients/images clients/plugins clients/model_files clients/triton dispatcher/auth"
        " dispatcher/codecs dispatcher/execution dispatcher/jobs dispatcher/models"
        " dispatcher/telemetry dispatcher/models/on_demand dispatcher/status dispatcher/routes"
        " dispatcher/settings dispatcher/s3 dispatcher/v2 dispatcher/rollout"
        " backends/machine/cpu_share.py"
    ),
    "dispatcher/settings": "clients clients/model_files",
    "dispatcher/auth": "clients/model_files dispatcher dispatcher/telemetry/request_log.py",
    "dispatcher/codecs": (
        "clients clients/images clients/tensors dispatcher dispatcher/telemetry"
        " dispatcher/telemetry/request_log.py dispatcher/settings"
    ),
    "dispatcher/execution": (
        "clients clients/families/base clients/images clients/plugins clients/tensors"
        " clients/triton dispatcher dispatcher/codecs dispatcher/telemetry dispatcher/s3"
        " dispatcher/settings dispatcher/rollout dispatcher/status/status_file.py"
    ),
    # What is tried beside a model: routes and dispatch.toml say it, each request asks for it. And
    # samples of requests, which ask another version the same.
    "dispatcher/rollout": (
        "clients clients/families/base clients/model_files clients/plugins clients/tensors"
        " clients/triton dispatcher dispatcher/codecs dispatcher/execution/admission.py"
        " dispatcher/s3 dispatcher/settings dispatcher/status dispatcher/telemetry"
    ),
    "dispatcher/gunicorn": "dispatcher/telemetry",
    # Requests that are answered later: kept on disk, and asked of the application itself.
    "dispatcher/jobs": (
        "clients dispatcher dispatcher/auth dispatcher/codecs dispatcher/execution"
    ),
    "dispatcher/models": (
        "clients clients/families/base clients/plugins clients/model_files clients/tensors"
        " clients/triton dispatcher dispatcher/telemetry dispatcher/status"
        " dispatcher/s3 dispatcher/settings dispatcher/rollout"
    ),
    "dispatcher/telemetry": (
        "clients dispatcher dispatcher/auth/api_keys.py dispatcher/codecs"
        " dispatcher/rollout/plan.py"
    ),
    "dispatcher/status": (
        "clients clients/families/base clients/images clients/plugins clients/tensors"
        " clients/triton dispatcher dispatcher/codecs dispatcher/execution"
        " dispatcher/telemetry dispatcher/settings"
    ),
    # Models and metrics count CPUs in the same way.
    "dispatcher/routes": (
        "clients clients/families/base clients/plugins clients/tensors"
        " backends/machine/cpu_share.py dispatcher dispatcher/auth"
        " dispatcher/codecs dispatcher/execution dispatcher/jobs dispatcher/models"
        " dispatcher/telemetry dispatcher/status dispatcher/s3 dispatcher/settings"
        " dispatcher/v2 dispatcher/rollout"
    ),
    "dispatcher/s3": (
        "clients clients/families/base clients/model_files clients/tensors dispatcher"
        " dispatcher/codecs dispatcher/telemetry/request_log.py dispatcher/settings"
    ),
    "dispatcher/models/on_demand": (
        "clients clients/families/base clients/model_files clients/triton dispatcher"
        " dispatcher/models dispatcher/status"
    ),
    # Triton's own protocol, for callers who know it.
    "dispatcher/v2": (
        "clients clients/tensors clients/triton dispatcher dispatcher/settings dispatcher/codecs"
        " dispatcher/execution"
        " dispatcher/telemetry"
    ),
    # Starts, watches and stops. It starts the dispatcher by a command, and shares the table of
    # settings; it checks the file of keys before the start.
    "container": (
        "clients/model_files/files.py clients/model_files/gpu_config.py container/programs"
        " container/repository"
        " container/supervisor backends/machine dispatcher/auth/api_keys.py"
        " dispatcher/telemetry/memory.py dispatcher/settings"
        " dispatcher/status/status_file.py dispatcher/version.py"
    ),
    "container/supervisor": (
        "dispatcher/exit_codes.py dispatcher/log_lines.py dispatcher/settings"
    ),
    "container/programs": (
        "container/repository container/supervisor backends/engine_choice.py"
        " backends/machine container/trouble.py dispatcher/log_lines.py"
        " dispatcher/telemetry/memory.py"
        " dispatcher/status/status_file.py dispatcher/settings"
    ),
    # Imported by Triton's stub, in the Python of a model's own environment.
    "container/programs/trial": "",
    "container/repository": (
        "clients clients/model_files backends/machine dispatcher/settings dispatcher/s3"
    ),
    # What Hatchling calls, and what records the project where it was not installed.
    "container/image": "weights dispatcher/version.py",
    "container/image/licences": "weights",
    "weights": "",
    "weights/converters": "weights",
    # What is wrong with a model's files: for the author, and where Triton could not load it.
    "container/model_check": (
        "clients clients/model_files clients/triton backends"
        " backends/onnxruntime backends/openvino"
        " container/trouble.py dispatcher/settings"
    ),
    # These run inside of Triton.
    "backends": (
        "clients/model_files backends/batching backends/machine backends/onnxruntime"
        " backends/openvino"
    ),
    "backends/batching": ("clients/triton/server.py backends/machine backends/model_config.py"),
    # Compares the engines before a model is loaded, in a process of its own.
    "backends/engines": (
        "clients clients/families/base clients/plugins clients/tensors"
        " container/model_check backends backends/batching"
        " backends/onnxruntime backends/openvino"
        " container/trouble.py dispatcher/settings"
    ),
    "backends/machine": "backends/model_config.py",
    "backends/onnx_files": "backends/batching",
    "backends/onnxruntime": (
        "clients/model_files backends backends/batching backends/machine backends/onnx_files"
        " backends/openvino"
    ),
    "backends/openvino": "backends backends/batching backends/machine backends/onnx_files",
    # The tool looks at what the others would do; none of them imports it.
    "tool": "container/trouble.py dispatcher/version.py",
    "tool/checks": (
        "clients clients/families/base clients/plugins clients/model_files clients/tensors"
        " clients/triton container/model_check backends backends/onnxruntime backends/openvino"
        " container/trouble.py dispatcher/status/checks.py dispatcher/rollout tool/engines"
    ),
    "tool/commands": (
        "clients/families/base clients/plugins clients/model_files"
        " container/trouble.py dispatcher/auth/api_keys.py"
        " dispatcher/settings tool tool/engines tool/scaffold"
    ),
    # Writes what an author begins with, by what a model's files show.
    "tool/scaffold": (
        "clients clients/families/base clients/images clients/model_files clients/tensors"
        " clients/text clients/triton container/model_check backends"
        " backends/engines backends/onnxruntime"
        " container/trouble.py dispatcher/settings tool tool/engines weights/converters"
    ),
    # The server, as its author's folder changes.
    "tool/dev": (
        "clients/model_files container/supervisor"
        " container/trouble.py dispatcher/settings tool tool/engines"
    ),
    "tool/pack": "clients/model_files container/model_check container/trouble.py tool tool/checks",
    # Asks a server what was captured: the lines, the answers and their comparison.
    "tool/replay": (
        "clients clients/images clients/tensors container/trouble.py"
        " dispatcher/codecs/metadata.py dispatcher/log_lines.py"
        " dispatcher/rollout/capture_files.py dispatcher/s3/client.py"
        " tool tool/commands tool/engines"
    ),
    "tool/engines": (
        "clients clients/model_files clients/plugins clients/tensors clients/triton"
        " container/model_check container/repository/compose.py"
        " backends backends/engines backends/onnxruntime container/trouble.py"
        " dispatcher/settings tool"
    ),
    # The hosting service on a laptop, and its contract as checks of any container.
    EMULATOR: f"{EMULATOR}/commands",
    f"{EMULATOR}/commands": (
        f"{EMULATOR} {EMULATOR}/conformance {EMULATOR}/emulate {EMULATOR}/host"
    ),
    f"{EMULATOR}/conformance": f"{EMULATOR} {EMULATOR}/emulate {EMULATOR}/host",
    f"{EMULATOR}/emulate": f"{EMULATOR} {EMULATOR}/host",
    f"{EMULATOR}/host": EMULATOR,
    # The wheel's package finds the others by their names alone.
    "triton_dispatcher": "",
    # The benchmark runs the project's own work beside others.
    "bench": "bench/load bench/servers backends",
    "bench/load": (
        "bench/servers clients/families/base clients/images clients/tensors clients/text"
        " container/programs backends/onnx_files"
    ),
    "bench/rivals": "bench/load clients/triton dispatcher/telemetry",
    "bench/servers": (
        "bench/load container/programs container/trouble.py backends backends/openvino"
        " dispatcher/status/instances.py"
    ),
}

SHELF, TEST_SHELF = 9, 10

LARGE_SHELVES = {
    "tool/scaffold": "what `new-model` knows of each kind of model, and of each source",
    "clients/families": "a file for each family",
    "tests/clients/families": "a file for each kind of them",
    "tests/end_to_end": "a file for each promise of the whole container",
    "tests/support": "what the tests of several rooms share",
}


def files(folder: str) -> list[Path]:
    """Return the modules in a folder and below it, relative to the project."""
    found = sorted(path.relative_to(PROJECT) for path in (PROJECT / folder).rglob("*.py"))
    assert found
    return found


def room(path: Path) -> str:
    return path.parent.as_posix()


@cache
def imports(path: Path, *, for_types: bool = True) -> frozenset[str]:
    """Return the dotted names that a module imports; not `for_types` those when it runs."""
    found: set[str] = set()
    tree = ast.parse((PROJECT / path).read_text())
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: write the whole name of {node.module}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def module_of(name: str) -> Path | None:
    """Return the module or package of the project that a dotted name is, or is in."""
    path = Path("emulator" * name.startswith("sagemaker_emulator"), *name.split("."))
    for one in (path, path.parent):
        if (PROJECT / one).with_suffix(".py").is_file():
            return one.with_suffix(".py")
        if (PROJECT / one).is_dir():
            return one / "__init__.py"
    return None


def modules(names: Iterable[str]) -> dict[str, Path]:
    """Return those of some imported names that are modules of the project, or in one."""
    tops = {folder.rpartition("/")[2] for folder in CODE}
    ours = [name for name in names if name.partition(".")[0] in tops]
    return {name: target for name in ours if (target := module_of(name))}


def arrows(path: Path) -> dict[str, Path]:
    """Return the modules of other rooms that a module imports, by their names."""
    return {name: to for name, to in modules(imports(path)).items() if room(to) != room(path)}


def test_the_rooms_are_those_that_there_are() -> None:
    assert set(ARROWS) == {
        room(path) for folder in CODE for path in files(folder) if path.name != "__init__.py"
    }


@pytest.mark.parametrize("name", ARROWS)
def test_imports_follow_the_arrows(name: str) -> None:
    allowed = set(ARROWS[name].split())
    against = [
        f"{path} imports {what}"
        for path in files(name)
        if room(path) == name
        for what, target in arrows(path).items()
        if not {room(target), target.as_posix()} & allowed
    ]
    assert not against


def circles() -> list[set[str]]:
    """Return the groups of modules that import each other when they run, directly or not."""
    reached = {
        path: set(modules(imports(path, for_types=False)).values()) - {path}
        for folder in CODE
        for path in files(folder)
    }
    for middle, further in reached.items():
        for targets in reached.values():
            if middle in targets:
                targets.update(further)
    inside = [path for path, targets in reached.items() if path in targets]
    groups = {
        frozenset(
            other.as_posix()
            for other in inside
            if other in reached[path] and path in reached[other]
        )
        for path in inside
    }
    return [set(group) for group in groups]


def test_no_module_imports_one_that_imports_it() -> None:
    assert not circles()


def test_the_server_does_without_the_tool() -> None:
    """The image contains neither the author's command nor the emulator; nothing starts them."""
    stages = (PROJECT / "Dockerfile").read_text().split("\nFROM ")
    with_tool = [one for one in stages if re.search(r"(?m)^COPY.* (?:tool|emulator)\b", one)]
    assert [one.split("\n")[0] for one in with_tool] == ["project AS engines"]
    assert re.findall("--from=engines (.*)", stages[-1]) == [
        "/opt/triton-dispatcher/.venv/engines .venv/engines"
    ]
    started = re.compile(r"-m\W+(?:tool|sagemaker_emulator)\b")
    server = [path for folder in SERVER for path in files(folder)]
    assert not [path for path in server if started.search((PROJECT / path).read_text())]


def shelves() -> dict[str, int]:
    """Return how many files are in each folder, without `__init__.py`."""
    counts: dict[str, int] = {}
    for folder in (*CODE, "tests"):
        for path in files(folder):
            if path.name != "__init__.py":
                counts[room(path)] = counts.get(room(path), 0) + 1
    return counts


def test_a_shelf_has_few_files() -> None:
    large = {
        name
        for name, count in shelves().items()
        if count > (TEST_SHELF if name.startswith("tests") else SHELF)
    }
    assert large == set(LARGE_SHELVES), "take out what is not large any more"


def libraries(folder: str) -> dict[str, set[str]]:
    """Return which modules of a folder import each library."""
    found: dict[str, set[str]] = {}
    for path in files(folder):
        for name in imports(path):
            found.setdefault(name.partition(".")[0], set()).add(path.as_posix())
    return found


def test_one_folder_alone_imports_the_client_library_of_triton() -> None:
    users = {
        room(Path(path))
        for folder in (*SERVER, "tool")
        for path in libraries(folder).get("tritonclient", ())
    }
    assert users == {"clients/triton"}


@pytest.mark.parametrize(
    ("folder", "library"),
    [
        ("clients", "flask"),
        ("clients", "werkzeug"),
        ("dispatcher", "numpy"),
        ("dispatcher", "cv2"),
        ("dispatcher", "PIL"),
        ("clients", "torch"),
        ("dispatcher", "torch"),
        ("clients", "tensorflow"),
    ],
)
def test_each_folder_keeps_to_its_own_business(folder: str, library: str) -> None:
    assert library not in libraries(folder)


OPENING = {"open", "fdopen", "read_text", "write_text", "TextIOWrapper"}


def opens_text_in_the_locale_s_encoding(call: ast.Call) -> bool:
    """Whether a call opens or decodes text without the encoding, which is another on Windows."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    words = {one.arg for one in call.keywords}
    if name not in OPENING and "text" not in words:
        return False
    named = {one.arg: ast.unparse(one.value) for one in call.keywords}
    if "encoding" in named or (name == "read_text" and call.args):
        return False
    if name in {"read_text", "write_text", "TextIOWrapper"} or named.get("text") == "True":
        return True
    of_path = isinstance(call.func, ast.Attribute) and name == "open"
    modes = [named.get("mode"), *map(ast.unparse, call.args[0 if of_path else 1 :]), "'r'"]
    mode = next(filter(None, modes))
    return name in {"open", "fdopen"} and re.fullmatch("'[rwaxt+]+'", mode) is not None


def test_text_is_opened_in_an_encoding_that_is_named() -> None:
    assert not [
        f"{path}:{node.lineno}"
        for folder in (*CODE, "examples", "docs")
        for path in files(folder)
        for node in ast.walk(ast.parse((PROJECT / path).read_text()))
        if isinstance(node, ast.Call) and opens_text_in_the_locale_s_encoding(node)
    ]
