"""`dispatcher check` says what is wrong, where, and how to mend it."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from tests.conftest import PROJECT
from tests.container.triton_backends import onnx_models
from tests.support.check_mistakes import (
    DEADLY,
    MISTAKES,
    TAKEN,
    WARNED,
    Mistake,
    controlled,
    ensemble,
    ir,
    parameter,
    warmed_up_with,
    write_mistake,
    write_right,
)
from tests.support.family_bench import tokenizer_at
from tool.__main__ import main
from tool.checks.model import ModelCheck
from tool.commands.new_client import TEMPLATE

Check = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Check a path; return the exit code and the findings."""

    def run(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
        code = main(["check", str(path), "--json", *options])
        return code, json.loads(capsys.readouterr().out)["findings"]

    return run


@pytest.mark.parametrize("mistake", [*MISTAKES, *DEADLY], ids=lambda mistake: mistake.name)
def test_a_mistake_is_named_with_its_place_and_its_fix(
    mistake: Mistake, tmp_path: Path, check: Check
) -> None:
    """And nothing is said of the model beside it."""
    write_right(tmp_path, "right")
    write_mistake(tmp_path, mistake)
    code, found = check(tmp_path, "--no-clients")
    assert code == 1
    one = found[0]
    place = f"{one['file']}:{one['line']}" if one["line"] else one["file"]
    assert place == mistake.where, found
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
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...")
    _, (one,) = check(tmp_path, "--no-clients")
    assert "has 3 lines, but the output `y` has 8 classes" in one["message"]


def test_what_nobody_has_foreseen_ends_the_check_of_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_right(tmp_path, "first")
    write_mistake(tmp_path, next(one for one in MISTAKES if one.name == "preferred"))
    run = ModelCheck.run

    def failing(checked: ModelCheck) -> None:
        if checked.name == "first":
            raise RuntimeError("a bug\nof two lines")
        run(checked)

    monkeypatch.setattr(ModelCheck, "run", failing)
    assert main(["check", str(tmp_path), "--no-clients"]) == 1
    said = capsys.readouterr()
    first, second, _ = said.out.splitlines()
    assert first == "error: first: could not be checked: RuntimeError: a bug of two lines"
    assert second.startswith("error: preferred/config.pbtxt:6: ")
    assert "Traceback" in said.err


def test_nothing_is_said_where_nothing_is_wrong(
    models: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (PROJECT / "model_repository", write_right(tmp_path, "right"), tmp_path):
        assert main(["check", str(folder)]) == 0
        said = capsys.readouterr().out
        assert ": 0 errors, 0 warnings\n" in said, said
        assert said.count("\n") == 1


def test_a_finding_is_one_line_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mistake(tmp_path, next(one for one in MISTAKES if one.name == "preferred"))
    assert main(["check", str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        "error: preferred/config.pbtxt:6: `dynamic_batching.preferred_batch_size` is 16, but "
        "max_batch_size is 8; Triton refuses that: write sizes from 1 to 8\n"
        "1 models (preferred): 1 errors, 0 warnings\n"
    )


def test_links_that_lead_out_or_nowhere_are_named(tmp_path: Path, check: Check) -> None:
    root = tmp_path / "root"
    folder = write_right(root, "right")
    (tmp_path / "elsewhere").mkdir()
    (folder / "2").symlink_to(folder / "1")
    (folder / "3").symlink_to(tmp_path / "elsewhere")
    (folder / "4").symlink_to(folder / "gone")
    code, found = check(root, "--no-clients")
    said = {one["file"]: one["message"] for one in found if "link" in one["message"]}
    assert code == 1
    assert set(said) == {"right/3", "right/4"}
    assert "leads out of the folder" in said["right/3"]
    assert "is not there" in said["right/4"]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("model/right", "is a model that lies too deep"),
        ("right", ""),
        ("", ""),
    ],
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
    assert "lies beside the model folders" in found[0]["message"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ("sequence_batching { max_sequence_idle_microseconds: 5 }", "sequence_batching"),
    ],
)
def test_a_model_that_nobody_can_ask_is_a_warning(
    tmp_path: Path, check: Check, text: str, key: str
) -> None:
    folder = write_right(tmp_path, "right")
    config = (folder / "config.pbtxt").read_text().replace("dynamic_batching", "# ")
    (folder / "config.pbtxt").write_text(f"{config}{text}\n")
    code, (one,) = check(tmp_path)
    assert (code, one["level"], one["line"], one["key"]) == (0, "warning", 7, key)
    assert "requests for this model are refused" in one["message"]
    policy = "model_transaction_policy { decoupled: false }\n"
    (folder / "config.pbtxt").write_text(config + policy)
    assert check(tmp_path) == (0, [])


def test_batching_that_has_no_effect_is_a_warning(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "right")
    (folder / "config.pbtxt").write_text('name: "right"\nmax_batch_size: 0\ndynamic_batching { }\n')
    code, (one,) = check(tmp_path)
    assert (code, one["level"], one["line"]) == (0, "warning", 3)
    assert "max_batch_size is 0" in one["message"]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ("", "requests are run one by one: output 'y' differs by"),
        ("max_batch_size: 8\n", "requests are run one by one: output 'y' differs by"),
        (
            "max_batch_size: 8\ndynamic_batching { }\n",
            "requests share runs, as `dynamic_batching` says, but output 'y' differs by",
        ),
        ("max_batch_size: 0\n", ""),
        ("max_batch_size: 1\n", ""),
    ],
)
def test_rows_that_change_each_other_are_a_warning(
    tmp_path: Path, check: Check, config: str, what: str
) -> None:
    node = onnx.helper.make_node("Softmax", ["x"], ["y"], axis=0)
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 2]) for n in "xy")
    graph = onnx.helper.make_graph([node], "graph", [x], [y])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    (tmp_path / "shares" / "1").mkdir(parents=True)
    onnx.save(model, tmp_path / "shares" / "1" / "model.onnx")
    (tmp_path / "shares" / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{config}')
    code, found = check(tmp_path)
    assert code == 0
    assert [one["level"] for one in found] == ["warning"] * bool(what)
    assert all(one["message"].startswith(what) for one in found)


def test_a_plain_file_is_a_model(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "right")
    data = (folder / "1" / "model.onnx").read_bytes()
    for place in ("plain", "."):
        root = tmp_path / f"of_{len(place)}"
        (root / place).mkdir(parents=True)
        (root / place / "model.onnx").write_bytes(data)
        assert check(root) == (0, [])
        (root / place / "model.onnx").write_bytes(b"no model")
        code, (one,) = check(root)
        assert (code, Path(one["file"])) == (1, Path(place, "model.onnx"))


@pytest.mark.parametrize(
    ("backend", "fix"),
    [("onnx", 'write backend: "onnxruntime"'), ("tensorrt", "build on that image"), ("python", "")],
)
def test_a_backend_that_is_not_everywhere_is_a_warning(
    tmp_path: Path, check: Check, backend: str, fix: str
) -> None:
    (tmp_path / "some" / "1").mkdir(parents=True)
    (tmp_path / "some" / "1" / "model.py").touch()
    (tmp_path / "some" / "1" / "model.plan").write_text("plan")
    (tmp_path / "some" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (tmp_path / "some" / "config.pbtxt").write_text(f'name: "some"\nbackend: "{backend}"\n')
    code, found = check(tmp_path)
    assert code == 0
    assert [(one["level"], one["line"], one["fix"]) for one in found] == (
        [("warning", 2, fix)] if fix else []
    )


def test_a_tensor_is_described_whatever_the_backend(tmp_path: Path, check: Check) -> None:
    (tmp_path / "some" / "1").mkdir(parents=True)
    (tmp_path / "some" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (tmp_path / "some" / "dispatch.toml").write_text('family = "classification"')
    text = 'backend: "python"\ninput { }\noutput { name: "y" data_type: TYPE_FP32 dims: 1 }\n'
    (tmp_path / "some" / "config.pbtxt").write_text(text)
    code, found = check(tmp_path)
    said = [(one["key"], one["line"]) for one in found if one["file"] == "some/config.pbtxt"]
    assert code == 1
    assert said == [("input.name", 2), ("input.data_type", 2), ("input.dims", 2)]


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("", []),
        ("version_policy { latest { num_versions: 1 } }", []),
        ("version_policy { latest { num_versions: 2 } }", ["right/9/model.onnx"]),
        ("version_policy { latest { } }", ["right/config.pbtxt"]),
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


def test_an_ensemble_and_a_warm_up_that_work(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right")
    ensemble()(write_right(tmp_path, "both"))
    warm = write_right(tmp_path, "warm")
    (warm / "warmup").mkdir()
    (warm / "warmup" / "x").write_bytes(bytes(12))
    warmed_up_with('dims: [ 3 ] input_data_file: "x"')(warm)
    assert check(tmp_path, "--no-clients") == (0, [])


def test_a_warm_up_is_compared_with_the_inputs_in_the_file(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "right")
    sample = 'inputs { key: "%s" value { data_type: TYPE_FP32 dims: 3 zero_data: true } }'
    for name, code in (("INPUT", 0), ("x", 1)):
        (folder / "config.pbtxt").write_text(f"model_warmup {{ batch_size: 1 {sample % name} }}")
        assert check(tmp_path, "--no-clients")[0] == code


@pytest.mark.parametrize(
    ("control", "wrong"),
    [
        ("", True),
        ("kind: CONTROL_SEQUENCE_START", True),
        ("kind: CONTROL_SEQUENCE_END int32_false_true: 1", True),
        ("int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]", True),
        ("int32_false_true: [ 0, 1 ]", False),
        ("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64", False),
    ],
)
def test_a_sequence_is_begun_with_one_of_two_values(
    tmp_path: Path, check: Check, control: str, wrong: bool
) -> None:
    controlled(control)(write_right(tmp_path, "right"))
    _, found = check(tmp_path, "--no-clients")
    said = [one for one in found if one["key"] == "sequence_batching.control_input.control"]
    assert [one["level"] for one in said] == ["error"] * wrong


def test_no_file_of_labels_is_as_good_as_none(tmp_path: Path, check: Check) -> None:
    config = write_right(tmp_path, "right") / "config.pbtxt"
    text = config.read_text()
    for name in ("", "/labels.txt"):  # Triton looks for that in the model's folder
        config.write_text(text.replace('"labels.txt"', f'"{name}"'))
        assert check(tmp_path, "--no-clients") == (0, [])


def test_a_folder_of_other_things_is_one_finding(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right")
    for number in range(30):
        (tmp_path / f"notes{number:02}").mkdir()
        (tmp_path / f"notes{number:02}" / "gone").symlink_to("nowhere")
    code, (one,) = check(tmp_path)
    assert (code, one["level"]) == (0, "warning")
    assert "notes00, notes01, notes02, notes03, notes04 and 25 more" in one["message"]


@pytest.mark.parametrize("content", [None, "nothing here"])
def test_a_folder_without_a_model_says_what_is_expected(
    tmp_path: Path, check: Check, content: str | None
) -> None:
    if content:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "README").write_text(content)
    code, found = check(tmp_path)
    assert code == 1
    assert "config.pbtxt and 1/model.onnx" in found[-1]["fix"]


# Archives


def packed(path: Path, *members: tuple[str, bytes | str], mode: Any = "w:gz") -> Path:
    """Write an archive; a text is where a link leads."""
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_is_checked_as_its_folder_is(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path / "root", "right")
    write_mistake(tmp_path / "root", MISTAKES[0])
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "root", ".")
    assert check(tmp_path / "model.tar.gz") == check(tmp_path / "root")


def test_what_new_client_writes_has_no_mistake(
    tmp_path: Path, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-client", "double", "--into", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "mine", ".")
    assert check(tmp_path / "mine") == check(tmp_path / "model.tar.gz") == (0, [])


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (("../outside.txt", b"x"), "leads out of the archive"),
        (("/absolute.txt", b"x"), "leads out of the archive"),
        (("right/../../outside.txt", b"x"), "leads out of the archive"),
        (("right/labels.txt", "/etc/passwd"), "is a link to /etc/passwd"),
        (("right/1", "../elsewhere"), "is a link to ../elsewhere"),
    ],
)
def test_what_an_archive_must_not_hold_is_named_and_not_unpacked(
    tmp_path: Path, check: Check, member: tuple[str, bytes | str], words: str
) -> None:
    folder = write_right(tmp_path, "right")
    files = [(f"right/{p.relative_to(folder)}", p.read_bytes()) for p in folder.rglob("*.*")]
    before = sorted(tmp_path.rglob("*"))
    archive = packed(tmp_path / "model.tar.gz", member, *files)
    code, found = check(archive)
    assert code == 1
    assert words in found[0]["message"]
    assert sorted(tmp_path.rglob("*")) == sorted([*before, archive])


def test_hard_links_are_named_with_what_packs_the_files(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path / "root", "right")
    (folder / "copy.bin").hardlink_to(folder / "1" / "model.onnx")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "root", ".")
    code, found = check(tmp_path / "model.tar.gz", "--no-clients")
    assert code == 1
    assert any("--hard-dereference" in one["fix"] for one in found)


@pytest.mark.parametrize("damage", ["cut", "text", "zip", "xz", "none"])
def test_what_is_no_archive_is_said(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.tar.gz"
    if damage == "cut":
        whole = packed(path, ("a/1/model.onnx", os.urandom(100_000))).read_bytes()
        path.write_bytes(whole[:50_000])
    elif damage == "xz":
        packed(path, ("a/1/model.onnx", os.urandom(100_000)), mode="w:xz")
        whole = bytearray(path.read_bytes())
        whole[50_000:50_100] = bytes(100)
        path.write_bytes(whole)
    elif damage == "text":
        path.write_text("this is no archive")
    elif damage == "zip":
        path.write_bytes(b"PK\x03\x04")
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dispatcher check: ")
    assert said.count("\n") == 1


def test_an_archive_that_is_not_gzip_is_a_warning(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "right")
    files = [(f"right/{p.relative_to(folder)}", p.read_bytes()) for p in folder.rglob("*.*")]
    code, found = check(packed(tmp_path / "model.tar", *files, mode="w:"), "--no-clients")
    assert code == 0, "warnings alone are no error"
    assert [one["level"] for one in found] == ["warning"]
    assert "gzip" in found[0]["message"]


# Clients


CLIENT = """
from clients.base import Client, Parameter

class Mine(Client):
    modelname = "right"
    example = {"x": 1}
    parameters = {"top_k": Parameter(3, 1, 10, "how many")}

    def inference(self, payload):
        return 1
"""


@pytest.mark.parametrize(
    ("old", "new", "level", "words"),
    [
        ('modelname = "right"', "", "error", "it has no name"),
        ("example = ", "sample = ", "error", "it has no example"),
        ('{"x": 1}', '{"x": b"1"}', "error", "its example is not JSON"),
        ('{"x": 1}', "[1, 2]", "error", "its example is [1, 2]; write `example = {…}`"),
        ("(self, payload)", "(payload)", "error", "write `def inference(self, payload)`"),
        ("Parameter(3, 1,", "Parameter(0, 1,", "error", "default of its parameter 'top_k'"),
        (
            "Parameter(3, 1, 10,",
            "Parameter('a', choices=('a', 5), meaning=",
            "error",
            "its choices no texts",
        ),
        ('"how many"', "{1, 2}", "error", "the meaning of its parameter 'top_k' is no text"),
        ('{"top_k"', "{5", "error", "the name or the meaning of its parameter 5 is no text"),
        ("parameters =", "media =", "error", 'write `media = {"picture": "img"}`'),
        ("parameters =", "media = {'image': 'x'}; other =", "error", "its media have 'image'"),
        ("import Client,", "import Clint,", "error", "cannot be imported: ImportError"),
        ("def inference", "async def inference", "error", "its inference is async"),
        ("def inference", "def infer", "error", "it lacks the method inference"),
        ('"right"', '"wrong"', "warning", "asks the model 'wrong'"),
        ('"right"', '"resnet"', "error", "belongs to the client in resnet/dispatch.toml"),
        ("class Mine(Client)", "class Mine(object)", "warning", "has no client"),
    ],
)
def test_a_mistake_in_a_client_is_named(
    tmp_path: Path, check: Check, old: str, new: str, level: str, words: str
) -> None:
    write_right(tmp_path, "right")
    clients = tmp_path / "code" / "clients"
    clients.mkdir(parents=True)
    (clients / "mine.py").write_text(CLIENT)
    assert check(tmp_path) == (0, [])
    (clients / "mine.py").write_text(CLIENT.replace(old, new))
    code, (one,) = check(tmp_path)
    assert (code, one["level"], one["file"]) == (level == "error", level, "code/clients/mine.py")
    assert words in one["message"]
    assert check(tmp_path, "--no-clients") == (0, [])


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        ("dispatch.toml", "", "is not read here"),
        ("right/1/dispatch.toml", "", "is not read here"),
        ("right/dispatch.tml", "", "is not read under this name"),
        ("right/mine.py", CLIENT, "is not looked for here"),
        ("mine.py", CLIENT, "is not looked for here"),
        ("code/mine.py", CLIENT, "is not looked for here"),
    ],
)
def test_what_lies_where_nobody_reads_it_is_named(
    tmp_path: Path, check: Check, place: str, text: str, words: str
) -> None:
    write_right(tmp_path, "right")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(text)
    code, (one,) = check(tmp_path)
    assert (code, one["level"], one["file"]) == (0, "warning", place)
    assert words in one["message"]


def test_a_dispatch_toml_beside_a_plain_model_is_read(tmp_path: Path, check: Check) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    shutil.copy(TEMPLATE / "model.onnx", folder)
    (folder / "dispatch.toml").write_text('aliases = ["other"]')
    assert check(tmp_path) == check(folder) == (0, [])


def test_a_built_in_name_is_free_where_mounted_models_are_served_instead(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_right(tmp_path, "right")
    (folder / "dispatch.toml").write_text('aliases = ["resnet"]')
    code, (one,) = check(tmp_path)
    assert (code, one["file"]) == (1, "right/dispatch.toml")
    assert "Tensors in right/dispatch.toml: the name 'resnet' belongs" in one["message"]
    monkeypatch.setenv("MODEL_DIR_USE", "instead")
    assert check(tmp_path) == (0, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('family = "classification', "cannot be read"),
        ('family = "classifcation"', "did you mean `classification`?"),
        ('family = "classification"\nlabel = "labels.txt"', "did you mean `labels`?"),
        ('family = "classification"\nlabels = "labels.txt"', "takes no pictures"),
    ],
)
def test_a_mistake_in_a_dispatch_toml_is_named(
    tmp_path: Path, check: Check, text: str, words: str
) -> None:
    folder = write_right(tmp_path, "right")
    (folder / "dispatch.toml").write_text(text)
    code, (one,) = check(tmp_path)
    assert (code, one["file"]) == (1, "right/dispatch.toml")
    assert words in one["message"], one


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ('example = { text = "the cat" }', ""),
        ('example = { txt = "x" }', "`example` is refused: `text`"),
        ("max_tokens = 4", "`example` is refused: `text` has 5 tokens; the model takes at most 4"),
    ],
)
def test_an_example_that_is_refused_is_named(
    tmp_path: Path, check: Check, text: str, words: str
) -> None:
    """As far as that shows without the model."""
    folder = tmp_path / "some"
    tokenizer_at(folder / "tokenizer")
    (folder / "1").mkdir()
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1, -1 ] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1, 8 ] }\n'
    )
    (folder / "dispatch.toml").write_text(f'family = "embedding"\n{text}\n')
    code, found = check(tmp_path)
    assert code == bool(words)
    assert [one["file"] for one in found] == ["some/dispatch.toml"] * bool(words)
    assert all(words in one["message"] for one in found), found


def test_labels_are_counted_for_a_family_too(models: None, tmp_path: Path, check: Check) -> None:
    """Against the configuration and the model's file, without Triton."""
    source = PROJECT / "model_repository" / "resnet"
    for name in ("config.pbtxt", "1/model.onnx", "dispatch.toml"):
        (tmp_path / "resnet" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "resnet" / name).symlink_to(source / name)
    config = (source / "config.pbtxt").read_text().replace('label_filename: "labels.txt"', "")
    (tmp_path / "resnet" / "config.pbtxt").unlink()
    (tmp_path / "resnet" / "config.pbtxt").write_text(config)
    labels = (source / "labels.txt").read_text().splitlines()
    (tmp_path / "resnet" / "labels.txt").write_text("\n".join([*labels, "one too many"]))
    _, found = check(tmp_path)
    (said,) = [one["message"] for one in found if "labels" in one["message"]]
    assert "1001 lines" in said
    assert "1000 classes" in said


@pytest.mark.parametrize(
    ("change", "classes"),
    [
        (lambda folder: (folder / "1" / "model.onnx").rename(folder / "1" / "net.onnx"), 4),
        (lambda folder: shutil.copytree(folder / "1", folder / "old"), 4),
        (lambda folder: write_classes(folder / "2", 3), 4),
        (lambda folder: write_classes(folder / "2", 3), 3),
    ],
    ids=["another file name", "a folder beside", "the policy's version", "the latest version"],
)
def test_a_family_is_compared_with_the_file_that_triton_serves(
    tmp_path: Path, check: Check, change: Callable[[Path], object], classes: int
) -> None:
    """There are three labels: whatever has four classes is a finding."""
    folder = tmp_path / "some"
    write_classes(folder / "1", 4)
    change(folder)
    (file,) = {path.name for path in folder.glob("1/*")}
    policy = "version_policy { specific { versions: [ 1 ] } }\n" if classes == 4 else ""
    (folder / "config.pbtxt").write_text(
        f'backend: "onnxruntime"\ndefault_model_filename: "{file}"\n{policy}'
    )
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "dispatch.toml").write_text('family = "classification"\nlabels = "labels.txt"\n')
    _, found = check(tmp_path)
    said = [one["message"] for one in found]
    assert len(said) == (classes == 4)
    assert all("file of 3 lines" in one and "4 classes" in one for one in said)


def write_classes(version: Path, classes: int) -> None:
    """Write a model that takes pictures and has so many classes."""
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [None, 3, 8, 8]), ("y", [None, classes]))
    ]
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["means"], axes=[2, 3], keepdims=0),
        onnx.helper.make_node("Gather", ["means", "places"], ["y"], axis=1),
    ]
    places = onnx.numpy_helper.from_array(np.zeros(classes, np.int64), "places")
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [places])
    version.mkdir(parents=True)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.save(model, version / "model.onnx")


def test_what_does_not_fit_is_a_finding_beside_a_dispatch_toml_as_well(
    tmp_path: Path, check: Check
) -> None:
    """A graph of one item at a time, and letters of Windows: what is made of them fails."""
    fixed = write_right(tmp_path, "fixed")
    graph = onnx.load(fixed / "1" / "model.onnx")
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, fixed / "1" / "model.onnx")
    (fixed / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 8\n')
    letters = write_right(tmp_path, "letters")
    with (letters / "config.pbtxt").open("ab") as file:
        file.write("# schön\n".encode("latin-1"))
    for folder in (fixed, letters):
        (folder / "dispatch.toml").write_text('family = "classification"\n')
    write_mistake(tmp_path, next(one for one in MISTAKES if one.name == "preferred"))
    code, found = check(tmp_path)
    assert code == 1
    said = {one["file"]: one["message"] for one in found}
    assert "max_batch_size is 8 in the configuration" in said["fixed/config.pbtxt"]
    assert "letters/config.pbtxt" in said
    assert "preferred/config.pbtxt" in said


def test_a_name_that_cannot_be_served_is_named(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right").rename(tmp_path / "all right")
    code, found = check(tmp_path, "--no-clients")
    assert code == 1
    assert "is not served: expected a name of letters" in found[0]["message"]
    assert found[0]["file"] == "all right"


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_files_as_editors_of_windows_save_them_are_no_finding(
    tmp_path: Path, check: Check, coding: str
) -> None:
    right = write_right(tmp_path, "right")
    (right / "dispatch.toml").write_text('family = "tensors"\n')
    for name in ("config.pbtxt", "labels.txt", "dispatch.toml"):
        text = (right / name).read_text()
        (right / name).write_bytes(text.replace("\n", "\r\n").encode(coding))
    assert check(tmp_path) == (0, [])


def test_what_systems_leave_is_no_finding(tmp_path: Path, check: Check) -> None:
    right = write_right(tmp_path, "right")
    (tmp_path / "code" / "clients").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "right" / "1").mkdir(parents=True)
    for folder in (tmp_path, right, right / "1", tmp_path / "code" / "clients"):
        inside = tmp_path / "__MACOSX" / folder.relative_to(tmp_path)
        inside.mkdir(parents=True, exist_ok=True)
        for name in ("config.pbtxt", "dispatch.toml", "1", "model.onnx", "double.py"):
            for place in (folder, inside):
                (place / f"._{name}").write_bytes(b"\0\5\x16\7 clients.base")
        for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
            (folder / name).touch()
        (folder / ".ipynb_checkpoints").mkdir()
    assert check(tmp_path) == (0, [])


@pytest.mark.parametrize(
    ("write", "message", "fix"),
    [
        (onnx_models.zipmap, "is a sequence of maps (ZipMap)", "options={'zipmap': False}"),
        (onnx_models.bfloat16, "is a tensor(bfloat16)", "a Cast node"),
        (onnx_models.unknown_ranks, "how many dimensions the input 'x' has", 'name: "x"'),
    ],
)
def test_a_model_that_triton_cannot_carry_is_one_of_onnx_all_the_same(
    tmp_path: Path,
    check: Check,
    write: Callable[[Path], None],
    message: str,
    fix: str,
) -> None:
    write(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    code, (one,) = check(tmp_path, "--no-clients")
    assert code == 1
    assert message in one["message"]
    assert "no model of ONNX" not in one["message"]
    assert fix in one["fix"]


def test_the_lines_that_are_said_mend_an_unknown_rank(tmp_path: Path, check: Check) -> None:
    onnx_models.unknown_ranks(tmp_path / "m" / "model.onnx")
    _, (one,) = check(tmp_path, "--no-clients")
    lines = one["fix"].partition("config.pbtxt: ")[2].partition(", but")[0]
    (tmp_path / "m" / "config.pbtxt").write_text(lines.replace("[-1]", "[-1, 2]"))
    assert check(tmp_path, "--no-clients") == (0, [])


def test_a_configuration_beside_a_plain_model_file_is_checked(tmp_path: Path, check: Check) -> None:
    write_classes(tmp_path / "m", 3)
    (tmp_path / "m" / "config.pbtxt").write_text("max_batch_size: 16")
    assert check(tmp_path, "--no-clients") == (0, [])
    (tmp_path / "m" / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    _, (one,) = check(tmp_path, "--no-clients")
    assert one["file"] == "m/model.onnx"


@pytest.mark.parametrize(
    ("wrong", "fix", "right"),
    [
        ("max_batch_size = 8", "`name: value`", "max_batch_size: 8"),
        ("backend: onnxruntime", "in quotation marks", 'backend: "onnxruntime"'),
        ('max_batch_size: "8"', "numbers without", "max_batch_size: 8"),
        ("// plain", "begins with #", "# plain"),
        (
            "instance_group { kind: CPU }",
            "write `KIND_CPU` for `CPU`",
            "instance_group { kind: KIND_CPU }",
        ),
        (
            "dynamic_batching { max_queue_delay: 1 }",
            "write `max_queue_delay_microseconds` for `max_queue_delay`",
            "dynamic_batching { max_queue_delay_microseconds: 1 }",
        ),
        (
            "instance_group { number: 1 }",
            "expected one of name, kind, count,",
            "instance_group { count: 1 }",
        ),
    ],
)
def test_a_line_that_triton_cannot_read_is_mended_as_it_is_said(
    tmp_path: Path, check: Check, wrong: str, fix: str, right: str
) -> None:
    write_classes(tmp_path / "m" / "1", 3)
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(f"version_policy {{ all {{ }} }}\n{wrong}\n")
    _, (one,) = check(tmp_path, "--no-clients")
    assert fix in one["fix"]
    assert one["line"] == 2
    config.write_text(f"version_policy {{ all {{ }} }}\n{right}\n")
    assert check(tmp_path, "--no-clients") == (0, [])


@pytest.mark.parametrize(
    ("write", "wrong", "fix", "right"),
    [
        (onnx_models.fixed_batch, "max_batch_size: 8", "write max_batch_size: 0", ""),
        (
            onnx_models.plus_one,
            onnx_models.REFUSED["ragged"][1],
            "leave allow_ragged_batch out",
            onnx_models.REFUSED["ragged"][1].replace("allow_ragged_batch: true", ""),
        ),
        (
            onnx_models.plus_one,
            "max_batch_size: 2\n" + onnx_models.X.replace("}", "optional: true }"),
            "leave `optional` out",
            "max_batch_size: 2\n" + onnx_models.X,
        ),
        (
            onnx_models.two_inputs,
            onnx_models.REFUSED["missing_input"][1],
            "leave input and output out",
            "max_batch_size: 2",
        ),
    ],
)
def test_what_does_not_fit_the_file_is_mended_as_it_is_said(
    tmp_path: Path,
    check: Check,
    write: Callable[[Path], None],
    wrong: str,
    fix: str,
    right: str,
) -> None:
    write(tmp_path / "m" / "1" / "model.onnx")
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(f'backend: "onnxruntime"\n{wrong}')
    _, (one,) = check(tmp_path, "--no-clients")
    assert fix in one["fix"]
    config.write_text(f'backend: "onnxruntime"\n{right}')
    assert check(tmp_path, "--no-clients") == (0, [])


def test_an_onnx_file_for_openvino_has_to_be_named_in_the_image_of_nvidia(
    tmp_path: Path, check: Check
) -> None:
    onnx_models.plus_one(tmp_path / "m" / "1" / "model.onnx")
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text('backend: "openvino"\n')
    code, (one,) = check(tmp_path, "--no-clients")
    assert (code, one["level"]) == (0, "warning")
    config.write_text(config.read_text() + one["fix"].removeprefix("write "))
    assert check(tmp_path, "--no-clients") == (0, [])


@pytest.mark.parametrize("key", ["precison", "Precision", "ENGINE", "PERFORMANCE_HINTS"])
def test_a_parameter_that_is_nearly_one_is_a_warning(
    tmp_path: Path, check: Check, key: str
) -> None:
    parameter(key, "auto")(write_right(tmp_path, "m"))
    code, (one,) = check(tmp_path, "--no-clients")
    assert (code, one["level"], one["line"]) == (0, "warning", 6)
    assert one["message"] == f"parameter '{key}' is read by nobody"
    right = {"PERFORMANCE_HINTS": "PERFORMANCE_HINT", "ENGINE": "engine"}.get(key, "precision")
    assert one["fix"] == f"did you mean '{right}'?"


def test_openvino_s_own_backend_has_no_other_engine(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "m")
    ir()(folder)
    parameter("engine", "onnxruntime")(folder)
    code, (one,) = check(tmp_path, "--no-clients")
    assert (code, one["level"], one["line"]) == (0, "warning", 6)
    assert "has no effect" in one["message"]


def test_what_is_no_sample_is_a_warning(tmp_path: Path, check: Check) -> None:
    samples = write_right(tmp_path, "m") / "samples"
    samples.mkdir()
    code, (one,) = check(tmp_path, "--no-clients")
    assert (code, one["level"], one["file"]) == (0, "warning", "m/samples")
    assert one["message"] == "holds no sample"
    (samples / "one.txt").write_text("a text\n")
    (samples / ".DS_Store").touch()
    assert check(tmp_path, "--no-clients") == (0, [])
    (samples / "scan.tiff").touch()
    (samples / "bad.json").write_text("[1]")
    _, found = check(tmp_path, "--no-clients")
    assert [(one["file"], one["level"]) for one in found] == [
        ("m/samples/bad.json", "warning"),
        ("m/samples", "warning"),
    ]
    assert 'holds no payload such as {"text": "…"}' in found[0]["message"]
    assert found[0]["fix"] == "mend it, or take it out of the folder"
    assert found[1]["message"] == "holds what are no samples: scan.tiff"
    assert ".jpg" in found[1]["fix"]


def test_what_is_no_version_gets_a_number_that_is_free(tmp_path: Path, check: Check) -> None:
    right = write_right(tmp_path, "right")
    (right / "v1").mkdir()
    _, (one,) = check(tmp_path, "--no-clients")
    assert (one["file"], one["fix"]) == ("right/v1", "rename it to 2")
