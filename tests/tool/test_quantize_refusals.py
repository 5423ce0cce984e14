"""What `dispatcher quantize` refuses, what it leaves behind, and what it warns of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clients.tensors.agreement import Agreement
from tests.conftest import PICTURES, PROJECT, wait_for
from tests.support.quantize import SIZE, asked, conv_net
from tool.__main__ import main
from tool.engines import int8, quantize

Change = Callable[[Path], object]


def left(here: Path) -> list[str]:
    return sorted(str(path.relative_to(here)) for path in (here / "models").rglob("*"))


def no_samples(net: Path) -> None:
    for path in (net.parents[1] / "samples").iterdir():
        path.rename(path.with_suffix(".tiff"))


def plain(net: Path) -> None:
    (net / "1" / "model.onnx").rename(net / "model.onnx")
    (net / "1").rmdir()


def broken_picture(net: Path) -> None:
    (net.parents[1] / "samples" / "01.png").write_bytes(b"\x89PNG no more")


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (broken_picture, [], "the client refuses the sample 01.png: "),
        (no_samples, [], "there are no samples in "),
        (
            lambda net: (net / "1" / "model.onnx").rename(net / "1" / "model.pt"),
            [],
            "net is no ONNX model: there is no file 1/model.onnx",
        ),
        (
            lambda net: (net / "1" / "model.onnx").write_bytes(b"<html>"),
            [],
            "is no ONNX file that can be read",
        ),
        (plain, [], "has no version folders; move its model.onnx into"),
        pytest.param(
            lambda net: net.chmod(0o555),
            [],
            "Permission denied: ",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere"),
        ),
        (
            lambda net: (net / "dispatch.toml").write_text('family = "classification"\ncrop = -1'),
            [],
            "the client of 'net' does not work: ",
        ),
        (None, ["--samples", "/no/such"], "--samples is '/no/such', which is no folder; expected"),
        (None, ["--repository", "/no/such"], "MODEL_DIR is /no/such"),
        (None, ["--version", "7"], "--version is '7'; "),
        (None, ["--output", "samples"], "samples is there already; name another folder"),
        (None, ["--output", "samples/00.png/new"], "Not a directory: "),
        (None, ["--exclude", "nothing*"], "--exclude is 'nothing*', which fits none of the 5"),
        (None, ["--exclude", "*"], "no Conv, MatMul, Gemm that --exclude leaves"),
    ],
)
def test_it_says_what_is_wrong_and_leaves_nothing(
    here: Path,
    change: Change | None,
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here)
    if change:
        change(here / "models" / "net")
    before = left(here)
    assert asked(here, *options) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert left(here) == before


def test_it_names_the_models_that_there_are_and_the_package_that_is_missing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--samples", str(here / "samples"), "--repository", str(here / "models")]
    assert main(["quantize", "nett", *given]) == 2
    err = capsys.readouterr().err
    assert "there is no model 'nett'" in err
    assert "net, resnet, yolov5" in err
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "tool.engines.int8")
    assert asked(here) == 2
    err = capsys.readouterr().err
    assert "lacks onnx, which this command needs; `pip install onnx` brings it" in err


def test_int8_is_not_quantized_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(here) == 0
    assert asked(here) == 2
    assert "'net', version 2, is int8 already; name one" in capsys.readouterr().err
    weights = PROJECT / "model_repository" / "bert_base" / "1" / "model.onnx"
    if weights.is_file():  # its operators compute in single precision
        assert int8.is_int8(weights)


def test_few_samples_are_warned_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted((here / "samples").iterdir())[3:]:
        path.unlink()
    assert asked(here, "--json", "--output", str(here / "three")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["calibrated_on"], report["compared_on"]) == (2, 1)
    (warning,) = report["warnings"]
    assert warning.startswith("3 samples are few: a hundred")
    for path in sorted((here / "samples").iterdir())[1:]:
        path.unlink()
    asked(here, "--output", str(here / "one"), "--keep")
    assert "the one sample was calibrated on and compared" in capsys.readouterr().out


def test_what_is_far_off_or_cannot_be_compared_is_written_only_on_demand(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of nearly black pictures come ranges in which others are nearly black too."""
    file = here / "models" / "net" / "1" / "model.onnx"
    file.unlink()
    file.parent.rmdir()
    conv_net(file, head=7.0, bias=-1.0)
    random = np.random.default_rng(2)
    for path in sorted((here / "samples").iterdir()):
        if int(path.stem) % 4 != 3:
            Image.fromarray(random.integers(0, 3, (SIZE, SIZE, 3), np.uint8)).save(path)
    before = left(here)
    assert asked(here) == 1
    out = capsys.readouterr().out
    assert "in int8: not written" in out
    assert "--keep writes it all the same" in out
    assert left(here) == before
    nothing = Agreement(passes=True, worst="there is no object", difference=0.0, shows="")
    monkeypatch.setattr(quantize, "difference", lambda *_: nothing)  # however small they are
    assert asked(here) == 1
    out = capsys.readouterr().out
    assert "Nothing was written: no compared sample has an object" in out
    assert "warning: no compared sample has an object" in out
    assert left(here) == before
    monkeypatch.undo()
    assert asked(here, "--keep") == 0
    assert (file.parent.parent / "2" / "model.onnx").is_file()


def test_ctrl_c_leaves_nothing(here: Path, tmp_path: Path) -> None:
    before, temporary = left(here), tmp_path / "temporary"
    temporary.mkdir()
    # A shell that runs the tests in the background has SIGINT ignored.
    waits = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tool.engines import quantize; quantize.difference = lambda *_: time.sleep(120)"
    )
    given = ["--samples", str(here / "samples"), "--repository", str(here / "models")]
    calls = f"from tool.__main__ import main\nsys.exit(main({['quantize', 'net', *given]}))"
    with subprocess.Popen(
        [sys.executable, "-c", f"{waits}\n{calls}"],
        cwd=PROJECT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        made = here / "models" / "net"
        wait_for(lambda: list(made.glob(".dispatcher-*/2/model.onnx")), "the int8 file")
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "")
    assert left(here) == before
    # ONNX Runtime's own file is there from its import on.
    assert [path for path in temporary.iterdir() if path.name != ".ses"] == []


@pytest.mark.slow
def test_resnet_50_is_quantized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = PROJECT / "model_repository" / "resnet" / "1" / "model.onnx"
    if not weights.is_file():
        pytest.skip("the weights of resnet are not there; `make weights` fetches them")
    samples = tmp_path / "samples"
    samples.mkdir()
    for name in ("chelsea.png", "coffee.png"):
        shown = Image.open(PICTURES / name).convert("RGB")
        width, height = shown.size
        for number in range(6):  # parts of it, each a little smaller
            cut = 12 * number
            part = shown.crop((cut, cut, width - cut, height - cut))
            part.save(samples / f"{number}-{name}")
    given = ["--samples", samples, "--output", tmp_path / "int8", "--json"]
    assert main(["quantize", "resnet", *map(str, given)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["compared_on"] == 3
    assert report["agree"] == 3
    assert report["bytes_after"] < 0.27 * report["bytes_before"]
