"""`dispatcher check` on client classes and `dispatch.toml`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from tests.support.check import Check, write_class, write_classes
from tests.support.family_bench import tokenizer_at
from tests.support.mistakes import write_right
from tests.support.models import onnx_models
from tool.commands.new_client import TEMPLATE

CLIENT = """
from clients.base import Client, Parameter

class Mine(Client):
    modelname = "right"
    example = {"x": 1}
    parameters = {"top_k": Parameter(3, 1, 10, "how many")}

    def inference(self, payload):
        return 1
"""
INIT = "    def __init__(self, environment):\n"


@pytest.mark.parametrize(
    ("old", "new", "level", "words"),
    [
        ('modelname = "right"', "", "error", "it has no name"),
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
        ("payload)", "payload: complex)", "error", "annotation of its inference cannot be used"),
        (
            "payload)",
            "payload: __import__('typing').TypedDict('T', {'x': str}))",
            "error",
            "own example: `x` does not fit (Expected `str`, got `int`)",
        ),
        ("def inference", "async def inference", "error", "its inference is async"),
        ("def inference", "def infer", "error", "it lacks the method inference"),
        (
            "return 1",
            'return self.infer({}, model="x")',
            "warning",
            "asks the model 'x' for 'right'",
        ),
        ('"right"', '"resnet"', "error", "belongs to the client in resnet/dispatch.toml"),
        ("class Mine(Client)", "class Mine(object)", "warning", "has no client"),
        ("\nclass Mine", "\nmodelname = undefined\n\nclass Mine", "error", "mine.py:4)"),
        ("    def inf", f"{INIT}        1 / 0\n\n    def inf", "error", "mine.py:10)"),
        ("return 1", "return len(payload['x'])", "error", "mine.py:10)"),
    ],
)
def test_a_mistake_in_a_client_is_named(
    tmp_path: Path, check: Check, old: str, new: str, level: str, words: str
) -> None:
    """An exception with its line."""
    write_right(tmp_path, "right")
    write_class(tmp_path, CLIENT)
    assert check(tmp_path) == (0, [])
    write_class(tmp_path, CLIENT.replace(old, new))
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


@pytest.mark.parametrize(
    ("toml", "policy", "words"),
    [
        ("canary = {version = 2, share = 0.1}", "all { }", ""),
        ("canary = {version = 2, share = 0.1}", "", "no other version of 'right' is ready"),
        ("shadow = {version = 1, share = 0.1}", "", "version 1 of 'right' is not ready"),
        ("shadow = {version = 3, share = 0.1}", "all { }", "version 3 of 'right' is not ready"),
        ('shadow = {model = "other", share = 0.1}', "all { }", "'other' is not ready"),
        ("canary = {version = 2, share = 1.5}", "all { }", "`canary.share` is 1.5"),
        ("canary = [{version = 2}, {version = 1}]", "all { }", "`canary` is a list"),
    ],
)
def test_what_cannot_be_tried_beside_a_model_is_named_with_the_fix(
    tmp_path: Path, check: Check, toml: str, policy: str, words: str
) -> None:
    folder = write_right(tmp_path, "right")
    shutil.copytree(folder / "1", folder / "2")
    (folder / "dispatch.toml").write_text(toml)
    if policy:
        with (folder / "config.pbtxt").open("a") as config:
            config.write(f"version_policy {{ {policy} }}")
    code, found = check(tmp_path)
    assert (code, [one["file"] for one in found]) == (
        (1, ["right/dispatch.toml"]) if words else (0, [])
    )
    assert all(words in one["message"] for one in found)


def test_a_dispatch_toml_is_read_and_a_mistake_in_it_named(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a plain model too. A built-in name is free where mounted models are served instead."""
    folder = tmp_path / "right"
    folder.mkdir()
    shutil.copy(TEMPLATE / "model.onnx", folder)
    toml = folder / "dispatch.toml"
    toml.write_text('aliases = ["other"]')
    assert check(tmp_path) == check(folder) == (0, [])
    (folder / "labels.txt").write_text("a\n")
    toml.write_text('family = "classification"\nlabels = "labels.txt"')
    code, (one,) = check(tmp_path)
    assert (code, one["file"]) == (1, "right/dispatch.toml")
    assert "takes no pictures" in one["message"], one
    toml.write_text('aliases = ["resnet"]')
    code, (one,) = check(tmp_path)
    assert (code, one["file"]) == (1, "right/dispatch.toml")
    assert "Tensors in right/dispatch.toml: the name 'resnet' belongs" in one["message"]
    monkeypatch.setenv("MODEL_DIR_USE", "instead")
    assert check(tmp_path) == (0, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ('example = { text = "the cat" }', ""),
        ('example = { txt = "x" }', "client of 'some' fails on its own example: `text` is missing"),
        ("max_tokens = 4", "example: `text` has 5 tokens (the model takes at most 4"),
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
    (write_right(tmp_path, "no_labels") / "labels.txt").unlink()
    code, found = check(tmp_path)
    assert code == 1
    said = {one["file"]: one["message"] for one in found}
    assert "max_batch_size is 8 in the configuration" in said["fixed/config.pbtxt"]
    assert "letters/config.pbtxt" in said
    assert "no_labels/config.pbtxt" in said


ARRAY = (
    "on its own examples[0]: the model's client answered what JSON cannot represent: Object of "
    "type ndarray is not JSON serializable"
)

ANSWERS = """
import time

from clients.base import Client, Parameter

class Mine(Client):
    modelname = "mine"
    examples = [{"x": [1, 2, 3]}, {"x": [0, 0, 4]}]
    media = {"picture": "img"}

    def inference(self, payload):
        print("asked")
        summed = self.infer({"INPUT": self.numbers(payload, "x")[None]}, model="right")["OUTPUT"][0]
        return ANSWER
"""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("summed.tolist()", ""),
        ("{'sums': summed}", ARRAY),
        ("[1, 2] if summed[0] else summed[9]", "examples[1]: IndexError: index 9 is out"),
        ("summed.toList()", "examples[0]: AttributeError: 'numpy.ndarray' object has no"),
        ("time.sleep(1e6)", "its client has not returned from its own example in 2 s"),
    ],
)
def test_a_class_is_asked_its_examples_on_its_real_model(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    """The model doubles: numbers above 0 are its answer, or 0 for the second example's first."""
    monkeypatch.setenv("MODEL_SERVER_TIMEOUT", "2")
    write_right(tmp_path, "right")
    write_class(tmp_path, ANSWERS.replace("ANSWER", answer))
    code, found = check(tmp_path)
    assert (code, len(found)) == (bool(words), bool(words)), found
    assert all(words in one["message"] for one in found), found


@pytest.mark.parametrize("place", ["code/clients", "", "../elsewhere"])
def test_a_folder_may_have_classes_alone(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Beside mounted models, in a folder of CLIENTS_PATH, or that folder itself."""
    root = tmp_path / "root"
    folder = root / place
    root.mkdir()
    folder.mkdir(parents=True, exist_ok=True)
    if place.startswith("../"):
        monkeypatch.setenv("CLIENTS_PATH", str(folder))
        write_right(root, "right")
    (folder / "mine.py").write_text(CLIENT.replace('"right"', '"alone"'))  # it asks no model
    assert check(root) == (0, [])
    (folder / "mine.py").write_text(CLIENT.replace("inference", "answer"))
    code, (one,) = check(root)
    shown = folder.resolve() / "mine.py"
    expected = shown.relative_to(root) if shown.is_relative_to(root) else shown
    assert (code, one["file"]) == (1, str(expected))
    assert "it lacks the method inference" in one["message"]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_class_that_sends_a_scalar_without_its_dimension_is_named(
    tmp_path: Path, check: Check, shape: tuple[int, ...]
) -> None:
    """The server has [1] for it, as `test_onnxruntime_on_triton.py` shows of Triton itself."""
    onnx_models.scalar(tmp_path / "scalar" / "1" / "model.onnx")
    write_class(
        tmp_path,
        "import numpy as np\nfrom clients.base import Client\n\nclass Mine(Client):\n"
        "    modelname = 'mine'\n    example = {}\n\n    def inference(self, payload):\n"
        f"        sent = {{'x': np.ones({shape}, 'float32')}}\n"
        "        return self.infer(sent, model='scalar')['y'].tolist()\n",
    )
    code, found = check(tmp_path)
    words = "wants FP32 [1]; you sent FP32 [] (send the same data as [1])"
    assert (code, [words in one["message"] for one in found]) == ((0, []) if shape else (1, [True]))
