"""The files of a new model, and what is refused."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import external_data_helper
from onnxruntime import InferenceSession

from backends.onnxruntime.execution_providers import CPU
from backends.onnxruntime.session import OnnxFile, open_model, read_signature, session_options
from backends.onnxruntime.session_settings import session_settings
from clients.families.base.family import names
from clients.tensors.agreement import KINDS as COMPARED
from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PROJECT
from tests.support.models import onnx_models
from tests.support.models.onnx_models import FLOAT, ends, save, scores, tokens
from tests.tool.scaffold.conftest import Write
from tool import progress
from tool.__main__ import main
from tool.engines.quantize import LIMITS
from tool.placing import put
from tool.scaffold.families import FAMILIES
from tool.scaffold.options import KINDS

MINE = Path("mine")
TOKENIZER = PROJECT / "model_repository" / "bert_base" / "tokenizer"


def settings() -> dict[str, Any]:
    return tomllib.loads((MINE / "new" / "dispatch.toml").read_text())


def outcome(*folders: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", *folders],
        env={"PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (onnx_models.plus_one, "tensors"),
        (onnx_models.words, "tensors"),
        (onnx_models.scalar, "tensors"),
        (onnx_models.scalar_rows, "tensors"),
        (onnx_models.fixed_batch, "tensors"),
        (onnx_models.shares, "tensors"),
        (onnx_models.every_type, "tensors"),
        (lambda file: scores(file, ("n", 3, 24, 16), 5), "classification"),
    ],
)
def test_what_is_written_is_served_and_tested_as_it_is(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Any, family: str
) -> None:
    model(tmp_path / "a.onnx")
    said = write(tmp_path / "a.onnx")
    for line in said.splitlines():
        if line.startswith("wrote "):
            assert Path(line.removeprefix("wrote ")).is_file()
    assert settings() == {"family": family}
    assert main(["check", "mine"]) == 0
    assert capsys.readouterr().out == "1 models (new): 0 errors, 0 warnings\n"


def test_the_tests_that_are_written_pass_and_can_fail(write: Write, tmp_path: Path) -> None:
    file = scores(tmp_path / "a.onnx", ("n", 3, 24, 16), 5)
    (tmp_path / "names").write_text("a\nb\nc\nd\ne\n")
    write(file, "--labels", "names")
    text = outcome(MINE / "code" / "tests")
    assert "2 passed, 1 skipped" in text, text
    scores(MINE / "new" / "1" / "model.onnx", ("n", 3, 24, 16), 6)  # one class more than labels
    text = outcome(MINE / "code" / "tests")
    assert "2 failed, 1 skipped" in text, text


def test_maps_of_probabilities_are_cut_off(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right values are those of the file as it was, which Triton cannot carry."""
    file = tmp_path / "a.onnx"
    onnx_models.mapped_classes(file)
    with monkeypatch.context() as lacking:
        lacking.setitem(sys.modules, "onnx", None)
        assert "`pip install onnx` brings it" in write(file, code=2)
    assert "`probabilities` has a column for each class: cup, fork, größe\n" in write(file)
    given = {"x": np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)}
    label, maps = InferenceSession(file).run(None, given)
    found = OnnxModels(MINE).infer("new", given, timeout=9)
    assert [one.decode() for one in found["label"].flat] == label.tolist()
    assert found["probabilities"].tolist() == [list(row.values()) for row in maps]
    assert found["probabilities"].sum(1) == pytest.approx(1)
    assert main(["check", "mine"]) == 0


@pytest.mark.slow
def test_names_of_tensors_are_no_code(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = 'a"] + print(1) #\\'
    model = onnx.load(tokens(tmp_path / "a.onnx", 3))
    model.graph.input[0].name = model.graph.node[0].input[0] = hostile
    model.graph.output[0].name = model.graph.node[-1].output[0] = f"{hostile}{hostile}"
    onnx.save(model, tmp_path / "a.onnx")
    write(tmp_path / "a.onnx")
    assert main(["check", "mine"]) == 0
    assert capsys.readouterr().out == "1 models (new): 0 errors, 0 warnings\n"
    assert re.search(r"\d passed", outcome(MINE / "code" / "tests"))


def test_rows_that_change_each_other_do_not_share_a_run(write: Write, tmp_path: Path) -> None:
    onnx_models.shares(tmp_path / "a.onnx")
    write(tmp_path / "a.onnx")
    config = (MINE / "new" / "config.pbtxt").read_text()
    assert "max_batch_size: 0" in config
    assert "# Requests run one by one: output 'y' " in config
    assert "dims: [ -1, 2 ]" in config


def sound(file: Path, kernel: int) -> Path:
    """A model that fails on a sound shorter than its kernel; the file has a name for a known size.

    The optimizer knows the size, as it does of the silero's states.
    """
    return save(
        file,
        [
            onnx.helper.make_node("Unsqueeze", ["x", "axis"], ["rows"]),
            onnx.helper.make_node("Conv", ["rows", "kernel"], ["y"]),
            onnx.helper.make_node("Mul", ["size", "once"], ["sizes"]),
            onnx.helper.make_node("Reshape", ["state", "sizes"], ["next"]),
        ],
        [("x", FLOAT, [1, "samples"]), ("state", FLOAT, [1, 1, 4])],
        [("y", FLOAT, [1, 1, "left"]), ("next", FLOAT, [1, "next_dim_1", 4])],
        {},
        axis=np.array([1]),
        size=np.array([1, 1, 4]),
        once=np.array([1, 1, 1]),
        kernel=np.ones((1, 1, kernel), np.float32),
    )


def test_what_is_written_has_the_sizes_of_the_server_and_says_what_was_not_asked(
    write: Write, tmp_path: Path
) -> None:
    said = write(sound(tmp_path / "a.onnx", 3))
    config = (MINE / "new" / "config.pbtxt").read_text()
    assert '{ name: "next" data_type: TYPE_FP32 dims: [ 1, 1, 4 ] }' in config
    assert "loaded, but not asked: it fails on zeros of the least size ('new': " in said
    file = MINE / "new" / "1" / "model.onnx"
    served = open_model(file, session_options(session_settings({})), [(CPU, {})])
    assert OnnxFile(file).signature == read_signature(served, file)


def test_the_files_are_copies_with_the_weights_beside_them(write: Write, tmp_path: Path) -> None:
    file = scores(tmp_path / "a.onnx", ("n", 3, 24, 16), 500)
    model = onnx.load(file)
    external_data_helper.convert_model_to_external_data(
        model, location="a.weights", size_threshold=64
    )
    onnx.save(model, file)
    (tmp_path / "not-its.weights").write_bytes(b"x")
    before = file.read_bytes()
    write(file)
    there = sorted(path.name for path in (MINE / "new" / "1").iterdir())
    assert there == ["a.weights", "model.onnx"]
    (MINE / "new" / "1" / "model.onnx").write_bytes(b"")
    assert file.read_bytes() == before


def test_nothing_is_overwritten(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = scores(tmp_path / "a.onnx", ("n", 3, 24, 16), 5)
    write(file)
    (MINE / "new" / "labels.txt").write_text("mine")
    assert main(["new-model", "new", "--from", str(file), "--into", "mine"]) == 2
    assert "mine/new is there already; remove it, or" in capsys.readouterr().err
    assert (MINE / "new" / "labels.txt").read_text() == "mine"
    (MINE / "code" / "tests" / "test_new_er.py").write_text("mine")
    assert main(["new-model", "new.er", "--from", str(file), "--into", "mine"]) == 2
    assert "test_new_er.py is there already" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "code").write_text("mine")  # where a folder belongs
    assert main(["new-model", "new", "--from", str(file), "--into", "other"]) == 2
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["code"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "there is no 'a.onnx'; expected a file of ONNX"),
        (lambda file: file.mkdir(), "a.onnx has no model.onnx"),
        (lambda file: file.write_bytes(b"not a model"), "fetch or export it again"),
        (lambda file: file.write_bytes(b""), "cannot open"),
        (onnx_models.unknown_ranks, "does not say how many dimensions the input 'x' has"),
        (
            lambda file: file.write_text("version https://git-lfs.github.com/spec/v1"),
            "run `git lfs pull`",
        ),
    ],
)
def test_a_file_that_is_no_model_is_refused(
    write: Write, tmp_path: Path, make: Any, words: str
) -> None:
    make(tmp_path / "a.onnx")
    assert words in write(Path("a.onnx"), code=2)
    (tmp_path / "a.pt").write_bytes(b"x")
    said = write(Path("a.pt"), code=2)
    assert "yolo export model=best.pt format=onnx" in said
    assert "torch.onnx.export" in said


@pytest.mark.parametrize("name", ["../up", "a b", "", "x" * 300])
def test_a_name_that_is_no_folder_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-model", "--from", "a.onnx", "--", name]) == 2
    assert "expected a name of letters" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_of_sound_is_written_where_its_author_says_so(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [onnx.helper.make_node("Add", ["x", "h"], ["y"])]
    nodes.append(onnx.helper.make_node("Identity", ["h"], ["hn"]))
    shapes = {"x": ["n", 8], "h": [1, 1], "y": ["n", 8], "hn": [1, 1]}
    x, h, y, following = ((name, FLOAT, shape) for name, shape in shapes.items())
    save(tmp_path / "a.onnx", nodes, [x, h], [y, following])
    assert "how many samples a second" in write(tmp_path / "a.onnx", "--family", "sound")
    written = {"rate": 16_000, "state": {"h": "hn"}, "input": "x", "output": "y"}
    assert settings() == {"family": "sound", **written}
    assert main(["check", "mine"]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_every_family_can_be_written_asked_and_compared() -> None:
    assert set(KINDS) == set(FAMILIES) == set(names())
    assert set(LIMITS) == set(COMPARED)


# Texts


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("width", "pooled", "expected"),
    [
        (30522, "", {"family": "fill-mask"}),
        (16, "", {"family": "embedding", "pooling": "mean"}),
        (16, "sentence_embedding", {"family": "embedding", "pooling": "none"}),
        (3, "logits", {"family": "text-classification"}),
    ],
)
def test_a_text_model_is_known_by_its_output(
    write: Write, tmp_path: Path, width: int, pooled: str, expected: dict[str, Any]
) -> None:
    (tmp_path / "export").mkdir()
    file = tokens(tmp_path / "export" / "model.onnx", width, pooled=pooled)
    write(file, "--tokenizer", str(TOKENIZER))
    assert settings() == expected
    copied = {path.name for path in (MINE / "new" / "tokenizer").iterdir()}
    assert copied == {path.name for path in TOKENIZER.iterdir()}
    (client,) = clients_in(MINE / "new" / "dispatch.toml")
    result = answer(client, None, OnnxModels(MINE))
    if expected["family"] == "text-classification":
        # The larger the ids, the larger the score of the last class.
        assert (len(result), result[0]["index"]) == (3, 2)


NLI = ["contradiction", "neutral", "entailment"]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("pooled", "labels", "family", "more"),
    [
        ("", ["O", "B-PER"], "token-classification", set()),
        ("y", ["bad", "good"], "text-classification", set()),
        ("y", NLI, "zero-shot-classification", set()),
        ("logits", ["LABEL_0"], "text-classification", {"example"}),  # which ranks
        ("ends", [], "question-answering", {"start", "end"}),
    ],
)
def test_a_text_model_is_known_by_what_transformers_saved_beside_it(
    write: Write, tmp_path: Path, pooled: str, labels: list[str], family: str, more: set[str]
) -> None:
    (tmp_path / "export" / "onnx").mkdir(parents=True)
    file = tmp_path / "export" / "onnx" / "model.onnx"
    if pooled == "ends":
        ends(file)
    else:
        tokens(file, len(labels), pooled=pooled, each="logits" if not pooled else "each")
    config = {"id2label": {str(place): name for place, name in enumerate(labels)}}
    (tmp_path / "export" / "config.json").write_text(json.dumps(config))
    write(tmp_path / "export", "--tokenizer", str(TOKENIZER))
    assert settings()["family"] == family
    assert set(settings()) == {"family", *more}
    named = MINE / "new" / "labels.txt"
    assert (named.read_text().split() if named.exists() else []) == labels * (not more)
    written = runpy.run_path(str(MINE / "code" / "tests" / "test_new.py"))
    found = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(written["NewTest"]).run(found)
    assert (found.testsRun, len(found.skipped), found.failures, found.errors) == (3, 1, [], [])


@pytest.mark.usefixtures("in_this_process")
def test_the_longest_text_is_found_out_where_nothing_states_it(
    write: Write, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    tokens(export / "model.onnx", 8, most=128)
    shutil.copy(TOKENIZER / "tokenizer.json", export)
    said = write(export, "--tokenizer", str(export))
    assert settings()["max_tokens"] == 128
    assert "the tokenizer states no limit" in said


def test_files_that_are_named_have_to_be_there(write: Write, tmp_path: Path) -> None:
    said = write(scores(tmp_path / "a.onnx", ("n", 3, 24, 16), 5), "--labels", "absent.txt", code=2)
    assert "--labels is 'absent.txt': No such file or directory; expected a file" in said
    assert "UTF-8" not in said
    file = tokens(tmp_path / "export" / "model.onnx", 8)
    said = write(file, code=2)
    assert "name the folder of its tokenizer, --tokenizer FOLDER" in said
    assert said.endswith("or write `--family tensors`\n")
    said = write(file, "--tokenizer", str(tmp_path), code=2)
    assert f"the tokenizer of {tmp_path} cannot be served: which has no tokenizer.json" in said


def test_labels_of_words_are_no_vector(write: Write, tmp_path: Path) -> None:
    said = write(tokens(tmp_path / "a.onnx", 9, each="logits"))
    assert "`--family embedding` suits if it takes tokens" in said.splitlines()[0]
    assert settings() == {"family": "tensors"}


@pytest.mark.usefixtures("in_this_process")
def test_a_family_that_fails_gives_way_to_tensors(write: Write, tmp_path: Path) -> None:
    """A model that goes on with a text looks as one that fills in words, but has no mask."""
    file = tokens(tmp_path / "export" / "model.onnx", 6000, each="logits")
    config = file.with_name("tokenizer_config.json")
    config.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')  # it names no mask
    shutil.copy(TOKENIZER / "tokenizer.json", file.parent)
    said = write(file, "--tokenizer", str(file.parent))
    assert settings() == {"family": "tensors"}
    assert "\nnot fill-mask, although it takes tokens, and `logits`" in said
    assert not (MINE / "new" / "tokenizer").exists()


def test_a_step_that_takes_long_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SLOW_S", 0)
    with progress.announce("counting"):
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    assert capsys.readouterr().err == "counting …\n"


PAGE = (PROJECT / "docs" / "adding-a-model.md").read_text()


def test_the_page_s_command_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but `dev`, which goes on: see tests/tool/dev."""
    monkeypatch.chdir(tmp_path)
    scores(Path("parts.onnx"), ("n", 3, 24, 16), 5)
    (line,) = re.findall(r"^dispatcher (new-model .*?) *#", PAGE, re.MULTILINE)
    assert main(shlex.split(line)) == 0


def test_what_was_moved_is_moved_back_where_the_rest_cannot_be(tmp_path: Path) -> None:
    place, root = tmp_path / "place", tmp_path / "new" / "root"
    (place / "model").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        put(place, root, [Path("model"), Path("code", "absent.py")])
    assert sorted(tmp_path.rglob("*")) == [place, place / "model"]
