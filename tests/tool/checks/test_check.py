"""`dispatcher check` says what is wrong with a model, where, and how to mend it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from container.model_check.model import check_loading
from tests.conftest import PROJECT
from tests.support.check import Check
from tests.support.mistakes import (
    DEADLY,
    MISTAKES,
    TAKEN,
    WARNED,
    Mistake,
    config,
    ensemble,
    warmed_up_with,
    write_mistake,
    write_right,
)
from tests.support.models import onnx_models
from tool.__main__ import main
from tool.checks import model_advice

NO_LABELS = next(one for one in MISTAKES if one.name == "no_labels")
PYTHON = "class TritonPythonModel: ..."


@pytest.mark.parametrize("mistake", [*MISTAKES, *DEADLY], ids=lambda mistake: mistake.name)
def test_a_mistake_is_named_with_its_place_and_its_fix(
    mistake: Mistake, tmp_path: Path, check: Check
) -> None:
    """And nothing is said of the model beside it."""
    write_right(tmp_path, "right")
    write_mistake(tmp_path, mistake)
    code, found = check(tmp_path, "--no-clients")
    assert code == 1
    places = [f"{each['file']}:{each['line'] or ''}".rstrip(":") for each in found]
    assert mistake.where in places, found
    one = found[places.index(mistake.where)]
    assert mistake.words in f"`{one['key']}` {one['message']}"
    assert mistake.fix in one["fix"]
    assert {Path(each["file"]).parts[0] for each in found} == {mistake.name}


@pytest.mark.parametrize("name", TAKEN)
def test_nothing_is_said_of_what_triton_takes(name: str, tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right")
    TAKEN[name](write_right(tmp_path, name))
    code, found = check(tmp_path, "--no-clients")
    assert (code, [one["message"] for one in found]) == (0, WARNED.get(name, []))


def test_a_number_is_read_as_triton_reads_it(tmp_path: Path, check: Check) -> None:
    """With labels, and with eight of them."""
    folder = write_right(tmp_path, "right")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: -01 }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: 010 label_filename: "labels.txt" }\n'
    )
    (folder / "1" / "model.py").write_text(PYTHON)
    _, (one,) = check(tmp_path, "--no-clients")
    assert "has 3 lines, but the output `y` has 8 classes" in one["message"]


def warmed_up_by_a_file(folder: Path) -> None:
    (folder / "warmup").mkdir()
    (folder / "warmup" / "x").write_bytes(bytes(12))
    warmed_up_with('dims: [ 3 ] input_data_file: "x"')(folder)


@pytest.mark.parametrize(
    "change",
    [
        ensemble(),
        warmed_up_by_a_file,
        config('"labels.txt"', '""'),
        config('"labels.txt"', '"/labels.txt"'),  # Triton looks for that in the model's folder
    ],
    ids=["an ensemble", "a warm-up", "no labels", "labels by another name"],
)
def test_nothing_is_said_of_what_works(
    tmp_path: Path, check: Check, change: Callable[[Path], object]
) -> None:
    write_right(tmp_path, "right")
    change(write_right(tmp_path, "some"))
    assert check(tmp_path, "--no-clients") == (0, [])


def test_nothing_is_said_where_nothing_is_wrong(
    models: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (PROJECT / "model_repository", write_right(tmp_path, "right"), tmp_path):
        assert main(["check", str(folder)]) == 0
        said = capsys.readouterr().out
        assert ": 0 errors, 0 warnings\n" in said, said
        assert said.count("\n") == 1


def test_a_finding_is_one_line_for_people_and_an_unforeseen_error_ends_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mistake(tmp_path, NO_LABELS)
    assert main(["check", str(tmp_path)]) == 1
    line = (
        'error: no_labels/config.pbtxt:5: `label_filename` is "labels.txt", which is not there: '
        "put it into no_labels/, a label in each line\n"
    )
    assert capsys.readouterr().out == f"{line}1 models (no_labels): 1 errors, 0 warnings\n"
    write_right(tmp_path, "first")

    def fail(name: str, *more: Any) -> object:
        if name == "first":
            raise RuntimeError("a bug\nof two lines")
        return check_loading(name, *more)

    monkeypatch.setattr(model_advice, "check_loading", fail)
    assert main(["check", str(tmp_path), "--no-clients"]) == 1
    said = capsys.readouterr()
    first = "error: first: could not be checked: RuntimeError: a bug of two lines\n"
    assert said.out.startswith(f"{first}{line}")
    assert "Traceback" in said.err


# Folders, links and versions


def test_links_that_lead_out_or_nowhere_are_named(tmp_path: Path, check: Check) -> None:
    root = tmp_path / "root"
    folder = write_right(root, "right")
    (folder / "1" / "model.onnx").rename(tmp_path / "model.onnx")
    (folder / "1" / "model.onnx").symlink_to(tmp_path / "model.onnx")
    assert check(root, "--no-clients")[0] == 1
    (tmp_path / "elsewhere").mkdir()
    for version, leads_to in (("2", "1"), ("3", tmp_path / "elsewhere"), ("4", "gone")):
        (folder / version).symlink_to(leads_to)
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "env" / "bin" / "python3").symlink_to(sys.executable)  # as venv leaves it
    _, found = check(root, "--no-clients")
    said = {one["file"]: one["message"] for one in found if "link" in one["message"]}
    assert set(said) == {"right/1/model.onnx", "right/3", "right/4"}
    assert "leads out of the folder" in said["right/3"]
    assert "is not there" in said["right/4"]


@pytest.mark.parametrize(
    ("layout", "words"), [("model/right", "is a model that is too deep"), ("right", ""), ("", "")]
)
def test_a_folder_may_hold_models_or_be_one(
    tmp_path: Path, check: Check, layout: str, words: str
) -> None:
    root = tmp_path / "root"
    made = write_right(tmp_path, "right")
    (root / layout).parent.mkdir(parents=True, exist_ok=True)
    made.rename(root / layout)
    code, found = check(root, "--no-clients")
    assert code == bool(words)
    assert words in " ".join(one["message"] for one in found)


def test_a_configuration_beside_the_model_folders_hides_them(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right")
    (tmp_path / "config.pbtxt").write_text('name: "right"')
    code, found = check(tmp_path, "--no-clients")
    assert code == 1
    assert "is beside the model folders" in found[0]["message"]


def test_a_plain_file_is_a_model(tmp_path: Path, check: Check) -> None:
    data = (write_right(tmp_path, "right") / "1" / "model.onnx").read_bytes()
    for place in ("plain", "."):
        root = tmp_path / f"of_{len(place)}"
        (root / place).mkdir(parents=True)
        (root / place / "model.onnx").write_bytes(data)
        assert check(root) == (0, [])
        (root / place / "model.onnx").write_bytes(b"no model")
        code, (one,) = check(root)
        assert (code, Path(one["file"])) == (1, Path(place, "model.onnx"))
        (root / place / "model.onnx").write_bytes(data)
        (root / place / "config.pbtxt").write_text("max_batch_size: 16")
        assert check(root, "--no-clients") == (0, [])


def test_a_file_beside_its_configuration_is_version_1(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "right")
    (folder / "1" / "model.onnx").rename(folder / "net.onnx")
    (folder / "1").rmdir()
    code, (one,) = check(tmp_path, "--no-clients")
    assert (code, one["file"], one["message"]) == (1, "right", "has no version folder")
    config("dynamic", 'default_model_filename: "net.onnx"\ndynamic')(folder)
    assert check(tmp_path, "--no-clients") == (0, [])


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("", []),
        ("version_policy { latest { num_versions: 1 } }", []),
        ("version_policy { latest { num_versions: 2 } }", ["right/9/model.onnx"]),
        ("version_policy { all { } }", ["right/9/model.onnx"]),
        ("version_policy { specific { versions: [ 9 ] } }", ["right/9/model.onnx"]),
        ("version_policy { specific { versions: [ 10 ] } }", []),
    ],
)
def test_only_versions_that_are_served_are_looked_into(
    tmp_path: Path, check: Check, policy: str, wrong: list[str]
) -> None:
    folder = write_right(tmp_path, "right")
    (folder / "1").rename(folder / "10")
    (folder / "9").mkdir()
    (folder / "9" / "model.onnx").write_bytes(b"no graph")
    with (folder / "config.pbtxt").open("a") as file:
        file.write(policy)
    code, found = check(tmp_path, "--no-clients")
    assert (code, [one["file"] for one in found]) == (bool(wrong), wrong)


def test_folders_of_other_things_are_one_finding(tmp_path: Path, check: Check) -> None:
    code, found = check(tmp_path)
    assert code == 1
    assert "config.pbtxt and 1/model.onnx" in found[-1]["fix"]
    for number in range(30):
        (tmp_path / f"notes{number:02}").mkdir()
        (tmp_path / f"notes{number:02}" / "gone").symlink_to("nowhere")
    code, found = check(tmp_path)
    assert code == 1
    assert "config.pbtxt and 1/model.onnx" in found[-1]["fix"]
    write_right(tmp_path, "right")
    code, (one,) = check(tmp_path)
    assert (code, one["level"]) == (0, "warning")
    assert "notes00, notes01, notes02, notes03, notes04 and 25 more" in one["message"]


# What Triton takes, and does not do as it seems


@pytest.mark.parametrize(
    ("backend", "family", "key"),
    [
        ("python", "", ""),
        ("python", 'family = "classification"', "model_transaction_policy.decoupled"),
        ("onnxruntime", "", ""),
    ],
)
def test_several_answers_where_one_is_passed_on_are_an_error(
    tmp_path: Path, check: Check, backend: str, family: str, key: str
) -> None:
    folder = write_right(tmp_path, "right")
    file = folder / "config.pbtxt"
    text = file.read_text().replace("onnxruntime", backend).replace("dynamic_batching", "# ")
    (folder / "1" / "model.py").write_text("")
    (folder / "dispatch.toml").write_text(family)
    file.write_text(f"{text}model_transaction_policy {{ decoupled: false }}\n")
    _, before = check(tmp_path, "--no-clients")
    file.write_text(f"{text}model_transaction_policy {{ decoupled: true }}\n")
    code, found = check(tmp_path, "--no-clients")
    new = [one for one in found if "decoupled" in one["message"] + one["key"]]
    assert len(new) == len(found) - len(before)
    if backend == "python" and not family:
        assert not new
    else:
        (one,) = new
        assert (code, one["level"], one["key"]) == (1, "error", key)
        assert one["fix"]


def test_batching_that_changes_nothing_or_answers_is_a_warning(
    tmp_path: Path, check: Check
) -> None:
    """The rows of the second model change each other."""
    folder = write_right(tmp_path / "none", "right")
    (folder / "config.pbtxt").write_text('name: "right"\nmax_batch_size: 0\ndynamic_batching { }\n')
    code, (one,) = check(tmp_path / "none")
    assert (code, one["level"], one["line"]) == (0, "warning", 3)
    assert "max_batch_size is 0" in one["message"]
    onnx_models.shares(tmp_path / "wrong" / "shares" / "1" / "model.onnx")
    code, (one,) = check(tmp_path / "wrong")
    assert (code, one["level"]) == (0, "warning")
    assert one["message"].startswith("requests are run one by one: output 'y' differs by")


@pytest.mark.parametrize(
    ("backend", "fix"),
    [("onnx", 'write backend: "onnxruntime"'), ("dali", "build on that image"), ("python", "")],
)
def test_a_backend_that_is_not_everywhere_is_a_warning(
    tmp_path: Path, check: Check, backend: str, fix: str
) -> None:
    (tmp_path / "some" / "1").mkdir(parents=True)
    (tmp_path / "some" / "1" / "model.plan").write_text("plan")
    (tmp_path / "some" / "1" / "model.py").write_text(PYTHON)
    (tmp_path / "some" / "config.pbtxt").write_text(f'name: "some"\nbackend: "{backend}"\n')
    code, found = check(tmp_path)
    assert code == 0
    assert [(one["level"], one["line"], one["fix"]) for one in found] == (
        [("warning", 2, fix)] if fix else []
    )
