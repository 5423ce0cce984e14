"""`dispatcher check` on the names and the contents of a model's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnxruntime import InferenceSession

from tests.support.check import Check, write_classes
from tests.support.mistakes.mistake import (
    ir,
    parameter,
    write_right,
)
from tests.support.models import onnx_models, onnx_repository


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


def test_a_pattern_that_loses_words_is_warned_of_with_one_that_does_not(
    tmp_path: Path, check: Check
) -> None:
    file = tmp_path / "model" / "1" / "model.onnx"
    onnx_models.latin_words(file)
    code, found = check(tmp_path)
    assert code == 0
    (said,) = [one for one in found if "knows no letters but a to z" in one["message"]]
    pattern = said["fix"].partition("r'")[2].partition("'")[0]
    text = {"text": np.array(["größe_1, привет ein"], np.object_)}
    assert "größe_1" not in InferenceSession(file).run(None, text)[0]
    onnx_models.latin_words(file, pattern)
    (words,) = InferenceSession(file).run(None, text)
    assert words.tolist() == [["größe_1", "привет", "ein"]]
    assert "a to z" not in str(check(tmp_path))


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
            onnx_repository.REFUSED["ragged"][1],
            "leave allow_ragged_batch out",
            onnx_repository.REFUSED["ragged"][1].replace("allow_ragged_batch: true", ""),
        ),
        (
            onnx_models.plus_one,
            "max_batch_size: 2\n" + onnx_repository.X.replace("}", "optional: true }"),
            "leave `optional` out",
            "max_batch_size: 2\n" + onnx_repository.X,
        ),
        (
            onnx_models.two_inputs,
            onnx_repository.REFUSED["missing_input"][1],
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
    assert one["message"] == f"parameter '{key}' is read by no backend"
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


OLD = """
class Old:
    def inference(self, text):
        return ANSWER
"""
ADAPTER = """
from clients.older_class import OlderClass
from .inference import Old

class OldText(OlderClass):
    modelname = "old"
    older = Old
"""


def test_an_older_class_is_asked(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right")
    folder = tmp_path / "code" / "clients" / "old"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(ADAPTER)
    old = folder / "inference.py"
    old.write_text(OLD.replace("ANSWER", "text"))
    assert check(tmp_path) == (0, [])
    old.write_text(OLD.replace("ANSWER", "text.length"))
    code, (one,) = check(tmp_path)
    assert (code, one["level"]) == (1, "error")
    assert "AttributeError: 'str' object has no attribute 'length'" in one["message"]
    assert "old/inference.py:4)" in one["message"]
    old.write_text(f"import socket\n{OLD.replace('ANSWER', 'socket.create_connection((text, 1))')}")
    assert check(tmp_path) == (0, [])  # its own Triton is not there
    (folder / "__init__.py").unlink()
    old.rename(folder.parent / "inference.py")
    code, (one,) = check(tmp_path)
    assert (code, one["message"]) == (0, "has no client")
    assert "is served by clients.older_class.OlderClass" in one["fix"]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_class_that_sends_a_scalar_without_its_dimension_is_named(
    tmp_path: Path, check: Check, shape: tuple[int, ...]
) -> None:
    """The server has [1] for it, as `test_onnxruntime_on_triton.py` shows of Triton itself."""
    onnx_models.scalar(tmp_path / "scalar" / "1" / "model.onnx")
    file = tmp_path / "code" / "clients" / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import numpy as np\nfrom clients.base import Client\n\nclass Mine(Client):\n"
        "    modelname = 'mine'\n    example = {}\n\n    def inference(self, payload):\n"
        f"        sent = {{'x': np.ones({shape}, 'float32')}}\n"
        "        return self.infer(sent, model='scalar')['y'].tolist()\n"
    )
    code, found = check(tmp_path)
    words = "wants FP32 [1]; you sent FP32 [] (send the same data as [1])"
    assert (code, [words in one["message"] for one in found]) == ((0, []) if shape else (1, [True]))
