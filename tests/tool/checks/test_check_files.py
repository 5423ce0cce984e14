"""`dispatcher check` on the names and the contents of a model's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.model_files import gpu_config
from tests.support.check import Check
from tests.support.mistakes import parameter, write_right
from tests.support.models import onnx_models, onnx_repository


def test_a_name_that_cannot_be_served_is_named(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path, "right").rename(tmp_path / "all right")
    code, found = check(tmp_path, "--no-clients")
    assert code == 1
    assert "is not served: expected a name of letters" in found[0]["message"]
    assert found[0]["file"] == "all right"


def test_what_is_no_version_gets_a_number_that_is_free(tmp_path: Path, check: Check) -> None:
    (write_right(tmp_path, "right") / "v1").mkdir()
    _, (one,) = check(tmp_path, "--no-clients")
    assert (one["file"], one["fix"]) == ("right/v1", "rename it to 2")


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
        (onnx_models.unknown_ranks, "how many dimensions the input 'x' has", "list every input"),
    ],
)
def test_a_model_that_triton_cannot_carry_is_one_of_onnx_all_the_same(
    tmp_path: Path, check: Check, write: Callable[[Path], None], message: str, fix: str
) -> None:
    write(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    code, (one,) = check(tmp_path, "--no-clients")
    assert code == 1
    assert message in one["message"]
    assert "no model of ONNX" not in one["message"]
    assert fix in one["fix"]


def test_words_that_a_converter_loses_are_a_warning(tmp_path: Path, check: Check) -> None:
    """What skl2onnx 1.17 writes of a TfidfVectorizer, and what keeps the letters of a language."""
    file = tmp_path / "m" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    for words, warnings in (("[a-zA-Z0-9_]+", 1), (r"[\pL\pN_]{2,}", 0)):
        onnx_models.split_words(file, words)
        found = [one for one in check(tmp_path)[1] if "ä and é" in one["message"]]
        assert [one["level"] for one in found] == ["warning"] * warnings
        assert all("tokenexp" in one["fix"] for one in found)


# What is mended as it is said

TWO = "max_batch_size: 2\n"
RAGGED = (
    onnx_repository.rows(2)
    + onnx_repository.takes("x", "3", more="allow_ragged_batch: true")
    + onnx_repository.Y
)
MISSING = (
    onnx_repository.rows(2) + onnx_repository.takes("x", "1") + onnx_repository.gives("y", "1")
)


@pytest.mark.parametrize(
    ("wrong", "fix", "right"),
    [
        ("max_batch_size = 8", "`name: value`", "max_batch_size: 8"),
        ("backend: onnxruntime", "in quotation marks", 'backend: "onnxruntime"'),
        ('max_batch_size: "8"', "numbers without", "max_batch_size: 8"),
        ("// plain", "begins with #", "# plain"),
        (
            "instance_group { kind: CPU }",
            "names and values of Triton",
            "instance_group { kind: KIND_CPU }",
        ),
        (
            "dynamic_batching { max_queue_delay: 1 }",
            "write `max_queue_delay_microseconds` for `max_queue_delay`",
            "dynamic_batching { max_queue_delay_microseconds: 1 }",
        ),
        (
            "instance_group { number: 1 }",
            "names and values of Triton",
            "instance_group { count: 1 }",
        ),
    ],
)
def test_a_wrong_line_is_mended_as_it_is_said(
    tmp_path: Path, check: Check, wrong: str, fix: str, right: str
) -> None:
    onnx_models.plus_one(tmp_path / "m" / "1" / "model.onnx")
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
        (onnx_models.two_inputs, MISSING, "leave input and output out", "max_batch_size: 2"),
        (
            onnx_models.plus_one,
            RAGGED,
            "leave allow_ragged_batch out",
            RAGGED.replace("allow_ragged_batch: true", ""),
        ),
        (
            onnx_models.plus_one,
            TWO + onnx_repository.X.replace("}", "optional: true }"),
            "leave `optional` out",
            TWO + onnx_repository.X,
        ),
    ],
)
def test_what_does_not_fit_the_file_is_mended_as_it_is_said(
    tmp_path: Path, check: Check, write: Callable[[Path], None], wrong: str, fix: str, right: str
) -> None:
    write(tmp_path / "m" / "1" / "model.onnx")
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(f'backend: "onnxruntime"\n{wrong}')
    _, (one,) = check(tmp_path, "--no-clients")
    assert fix in one["fix"]
    config.write_text(f'backend: "onnxruntime"\n{right}')
    assert check(tmp_path, "--no-clients") == (0, [])


# What has no effect


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("precison", "precision"),
        ("Precision", "precision"),
        ("ENGINE", "engine"),
        ("NUM_STREAM", "NUM_STREAMS"),
    ],
)
def test_a_parameter_that_nobody_reads_is_a_warning(
    tmp_path: Path, check: Check, key: str, right: str
) -> None:
    parameter(key, "auto")(write_right(tmp_path, "m"))
    code, (one,) = check(tmp_path, "--no-clients")
    assert (code, one["level"], one["line"]) == (0, "warning", 6)
    assert f"parameter '{key}' is read by no backend" in one["message"]
    assert one["fix"] == f"did you mean '{right}'?"


@pytest.fixture
def _without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_config, "DEVICES", tmp_path / "dev")


@pytest.mark.usefixtures("_without_a_gpu")
def test_what_asks_for_a_gpu_is_warned_of_where_none_is(tmp_path: Path, check: Check) -> None:
    config = write_right(tmp_path / "models", "right") / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group { kind: KIND_GPU }")
    code, (one,) = check(tmp_path / "models", "--no-clients")
    assert (code, one["level"], one["key"]) == (0, "warning", "instance_group.kind")
    assert "KIND_AUTO" in one["fix"]


@pytest.mark.usefixtures("_without_a_gpu")
@pytest.mark.parametrize(
    ("file", "config", "fix"),
    [
        ("model.plan", "", "the ONNX file"),
        ("model.graphdef", "", "the ONNX file"),
        ("model.xml", "", 'backend: "onnxruntime"'),
        ("model.xml", 'backend: "openvino"', 'backend: "onnxruntime"'),
        ("model.pt", "", "torch.onnx.export"),
        ("model.pt", 'platform: "pytorch_libtorch"', "torch.onnx.export"),
    ],
)
def test_a_file_that_only_nvidia_s_image_runs_is_warned_of(
    tmp_path: Path, check: Check, file: str, config: str, fix: str
) -> None:
    (tmp_path / "engine" / "1").mkdir(parents=True)
    (tmp_path / "engine" / "1" / file).write_bytes(b"x")
    (tmp_path / "engine" / "config.pbtxt").write_text(config)
    code, (one,) = check(tmp_path)
    where = "engine/config.pbtxt" if config else f"engine/1/{file}"
    assert (code, one["level"], one["file"]) == (0, "warning", where)
    assert "which only NVIDIA's image of Triton can run" in one["message"]
    assert fix in one["fix"]
