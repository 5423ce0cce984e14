"""`dispatcher quantize`: what it writes computes in int8, and what it reports is so."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.conftest import PICTURES, PROJECT
from tool.__main__ import main
from tool.engines import int8, quantize
from tool.engines.int8 import with_strides_apart

SIZE, CLASSES = 24, 5
CONFIG = """backend: "onnxruntime"
max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 3, 24, 24 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""
TOML = 'family = "classification"\nsoftmax = true\ninterpolation = "nearest"\n'

Array = npt.NDArray[Any]


def conv_net(file: Path, head: float = 0.3, bias: float = 0.0) -> None:
    """Write two residual blocks, the second behind 1×1 convolutions with strides, and a head."""
    random = np.random.default_rng(7)
    weights: dict[str, Array] = {
        "w0": random.normal(0, 0.4, (8, 3, 3, 3)),
        "w1": random.normal(0, 0.15, (8, 8, 3, 3)),
        "w2": random.normal(0, 0.35, (8, 8, 1, 1)),
        "w3": random.normal(0, 0.35, (8, 8, 1, 1)),
        "b3": random.normal(0, 0.1, 8),
        "w4": random.normal(0, head, (CLASSES, 8)),
        "b4": np.add(random.normal(0, 0.3, CLASSES), [0, 0, 0, bias, 0]),
    }
    nodes = [
        helper.make_node("Conv", ["in", "w0"], ["c0"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Add", ["c1", "r0"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node("Conv", ["r1", "w3", "b3"], ["c3"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node("Add", ["c2", "c3"], ["a3"]),
        helper.make_node("Relu", ["a3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["out"], "head/Gemm", transB=1),
    ]
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("in", ["n", 3, SIZE, SIZE]), ("out", ["n", CLASSES]))
    ]
    held = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "net", sides[:1], sides[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file.parent.mkdir(parents=True)
    onnx.save(model, file)


def pictures(folder: Path, count: int) -> list[Path]:
    """Write pictures of one pixel for each that the model sees: nothing is resized."""
    folder.mkdir()
    random = np.random.default_rng(11)
    paths = []
    for number in range(count):
        corners = random.integers(0, 256, (3, 3, 3), np.uint8)
        paths.append(folder / f"{number:02}.png")
        Image.fromarray(corners).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def run_file(file: Path, pixels: Array) -> Array:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["out"], {"in": pixels})[0])


def pixels_of(path: Path) -> Array:
    shown = np.asarray(Image.open(path).convert("RGB"), np.float32)
    return np.ascontiguousarray(shown.transpose(2, 0, 1)[None] / 255)


def softmax(logits: Array) -> Array:
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(shares / shares.sum())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one model and samples for it; measured briefly."""
    conv_net(tmp_path / "models" / "net" / "1" / "model.onnx")
    folder = tmp_path / "models" / "net"
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "dispatch.toml").write_text(TOML)
    (folder / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    pictures(tmp_path / "samples", 12)
    monkeypatch.setattr(int8, "MEASURED_S", 0.0)
    return tmp_path


def asked(here: Path, *options: str | Path, samples: str = "samples") -> int:
    given = ["--samples", here / samples, "--repository", here / "models", *options]
    return main(["quantize", "net", *map(str, given)])


def test_the_next_version_computes_the_same_in_int8(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Probabilities of the report are compared with an own run of both files by ONNX Runtime."""
    assert asked(here, "--json") == 0
    out, err = capsys.readouterr()
    report, new = json.loads(out), here / "models" / "net" / "2" / "model.onnx"
    assert err == "", "quiet where it is no terminal"
    assert Path(report["file"]) == new
    assert report["written"]
    assert {path.name for path in new.parent.parent.iterdir()} == {
        "1", "2", "config.pbtxt", "dispatch.toml", "labels.txt"
    }  # fmt: skip
    types = {weight.data_type for weight in onnx.load(new).graph.initializer if weight.dims}
    assert TensorProto.INT8 in types
    old = here / "models" / "net" / "1" / "model.onnx"
    held = sorted((here / "samples").iterdir())[3::4]
    assert (report["calibrated_on"], report["compared_on"]) == (9, 3)
    assert {one["sample"] for one in report["differences"]} == {path.name for path in held}
    gaps = {}
    for path in held:
        before, after = (softmax(run_file(file, pixels_of(path))[0]) for file in (old, new))
        assert before.argmax() == after.argmax()
        gaps[path.name] = np.abs(before - after).max()
    assert 0 < max(gaps.values()) < 0.03, "int8, and near"
    for one in report["differences"]:
        # OpenVINO rounds some numbers to the neighbouring one of 255.
        assert one["difference"] * 0.03 == pytest.approx(gaps[one["sample"]], abs=0.004)
    differences = [one["difference"] for one in report["differences"]]
    assert report["median_difference"] == differences[1]
    assert differences == sorted(differences, reverse=True)
    assert report["agree"] == 3
    assert report["bytes_after"] == new.stat().st_size
    assert report["bytes_before"] == old.stat().st_size
    assert min(report["milliseconds_before"], report["milliseconds_after"]) > 0


def test_ranges_are_those_of_the_client_s_own_pixels(here: Path) -> None:
    """The model's input is 0 to 1, of which 255 steps are made: 1/255 each."""
    assert asked(here) == 0
    graph = onnx.load(here / "models" / "net" / "2" / "model.onnx").graph
    (first,) = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "in"]
    (scale,) = [one for one in graph.initializer if one.name == first.input[1]]
    rest = [p for n, p in enumerate(sorted((here / "samples").iterdir())) if n % 4 != 3]
    greatest = max(pixels_of(path).max() for path in rest)
    assert numpy_helper.to_array(scale) == pytest.approx(greatest / 255, rel=1e-5)


def test_it_is_for_readers_and_says_how_to_go_back(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(here) == 0
    out = capsys.readouterr().out
    assert "net, version 1, in int8: " in out
    assert "calibrated on 9, compared on 3" in out
    assert "3 of 3 agree: the same first, probabilities within 0.03" in out
    assert "times as fast" in out
    assert "version_policy { specific { versions: 1 } }" in out
    (here / "models" / "net" / "config.pbtxt").write_text(
        f"{CONFIG}version_policy {{ specific {{ versions: 1 }} }}"
    )
    assert asked(here, "--version", "1") == 0
    assert "leaves version 3 out" in capsys.readouterr().out


def test_excluded_layers_stay_as_they_are(here: Path) -> None:
    assert asked(here, "--exclude", "head/*") == 0
    graph = onnx.load(here / "models" / "net" / "2" / "model.onnx").graph
    (head,) = [node for node in graph.node if node.op_type == "Gemm"]
    (weights,) = [one for one in graph.initializer if one.name == head.input[1]]
    assert (weights.data_type, list(weights.dims)) == (TensorProto.FLOAT, [CLASSES, 8])
    assert [1 for one in graph.initializer if one.data_type == TensorProto.INT8 and one.dims]


def test_weights_may_have_a_file_of_their_own(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they have to, where they have more than the 2 GB that protobuf takes."""
    old = here / "models" / "net" / "1" / "model.onnx"
    model = onnx.load(old)
    onnx.save(model, old, save_as_external_data=True, size_threshold=0, location="weights")
    monkeypatch.setattr(int8, "LARGEST", 0)
    assert asked(here, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    new = here / "models" / "net" / "2" / "model.onnx"
    assert report["bytes_before"] == sum(path.stat().st_size for path in old.parent.iterdir())
    assert report["agree"] == 3
    pixels = pixels_of(here / "samples" / "03.png")
    before, after = (softmax(run_file(file, pixels)[0]) for file in (old, new))
    np.testing.assert_allclose(before, after, atol=0.03)


def test_strides_apart_compute_the_same(here: Path) -> None:
    file = here / "models" / "net" / "1" / "model.onnx"
    model = onnx.load(file)
    with_strides_apart(model.graph)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MaxPool") == 1, "one for both convolutions"
    onnx.checker.check_model(model)
    onnx.save(model, here / "apart.onnx")
    pixels = np.random.default_rng(3).normal(size=(2, 3, SIZE, SIZE)).astype(np.float32)
    expected = run_file(file, pixels)
    np.testing.assert_allclose(run_file(here / "apart.onnx", pixels), expected, atol=1e-5)


CLIENT = """
from clients.base import Client

class Own(Client):
    modelname = "own"
    model = "net"
    aliases = ("mine",)
    example = {"img": ""}
    media = {"picture": "img"}

    def inference(self, payload):
        pixels = self.picture(payload).transpose(2, 0, 1)[None] / 255
        return self.infer({"in": pixels.astype("float32")})["out"][0].tolist()
"""


def test_a_class_of_one_s_own_is_compared_by_the_model_s_tensors(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "models" / "net" / "dispatch.toml").unlink()
    code = here / "models" / "code" / "clients"
    code.mkdir(parents=True)
    (code / "own.py").write_text(CLIENT)
    options = ["--samples", here / "samples", "--repository", here / "models", "--json"]
    assert main(["quantize", "mine", *map(str, options), "--output", str(here / "beside")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "tensors"
    old = here / "models" / "net" / "1" / "model.onnx"
    for one in report["differences"]:
        files = (old, here / "beside" / "model.onnx")
        pixels = pixels_of(here / "samples" / one["sample"])
        before, after = (run_file(file, pixels) for file in files)
        gap = np.abs(before - after).max() / (before.max() - before.min())
        assert one["difference"] * 0.01 == pytest.approx(gap, abs=0.01)
    assert not (here / "models" / "net" / "2").exists()


def test_payloads_of_tensors_are_samples_of_a_model_without_a_client(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "models" / "net" / "dispatch.toml").unlink()
    folder = here / "bodies"
    folder.mkdir()
    for path in sorted((here / "samples").iterdir())[:8]:
        tensor = {"name": "in", "shape": [1, 3, SIZE, SIZE], "datatype": "FP32"}
        body = {"inputs": [{**tensor, "data": pixels_of(path).ravel().tolist()}]}
        (folder / f"{path.stem}.json").write_text(json.dumps([body] if path.stem == "00" else body))
    assert asked(here, "--json", samples="bodies") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["calibrated_on"], report["compared_on"]) == ("tensors", 6, 2)


def test_inputs_of_any_length_are_calibrated_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A product of two activations, and one with weights, as in a transformer."""
    folder, random = here / "models" / "net", np.random.default_rng(5)
    (folder / "dispatch.toml").unlink()
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "length", 16])
        for name in ("in", "out")
    ]
    nodes = [
        helper.make_node("MatMul", ["in", "w"], ["k"]),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["in", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "in"], ["out"]),
    ]
    weights = numpy_helper.from_array(random.normal(0, 0.1, (16, 16)).astype(np.float32), "w")
    graph = helper.make_graph(nodes, "attention", sides[:1], sides[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')
    bodies = []
    for length in range(2, 18):
        tensor = random.normal(size=(1, length, 16)).clip(-2, 2).astype(np.float32)
        shown = {"name": "in", "shape": [1, length, 16], "datatype": "FP32"}
        bodies.append({"inputs": [{**shown, "data": tensor.ravel().tolist()}]})
    (here / "bodies").mkdir()
    (here / "bodies" / "all.json").write_text(json.dumps(bodies))
    assert asked(here, "--json", samples="bodies") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["calibrated_on"], report["compared_on"]) == (12, 4)
    assert {one["sample"] for one in report["differences"]} == {
        "all.json[3]", "all.json[7]", "all.json[11]", "all.json[15]"
    }  # fmt: skip
    assert 0 < report["differences"][0]["difference"] < 5, "a twentieth of the spread at most"


def test_texts_are_samples_line_by_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "texts").mkdir()
    (here / "texts" / "some.txt").write_text("one\n\ntwo\n")
    found = quantize.samples_in(here / "texts")
    assert [one.name for one in found] == ["some.txt:1", "some.txt:3"]
    assert asked(here, samples="texts") == 2
    assert "the client refuses the sample some.txt:1: a text came" in capsys.readouterr().err


# What it refuses


def left(here: Path) -> list[str]:
    return sorted(str(path.relative_to(here)) for path in (here / "models").rglob("*"))


def broken_picture(here: Path) -> None:
    (here / "samples" / "01.png").write_bytes(b"\x89PNG no more")


def broken_json(here: Path) -> None:
    (here / "samples" / "a.json").write_text("{oh")


def other_json(here: Path) -> None:
    (here / "samples" / "a.json").write_text("[1]")


def no_samples(here: Path) -> None:
    for path in (here / "samples").iterdir():
        path.rename(path.with_suffix(".tiff"))


def torch_model(here: Path) -> None:
    file = here / "models" / "net" / "1" / "model.onnx"
    file.rename(file.with_suffix(".pt"))


def no_onnx(here: Path) -> None:
    (here / "models" / "net" / "1" / "model.onnx").write_bytes(b"<html>")


def nothing_to_do(here: Path) -> None:
    file = here / "models" / "net" / "1" / "model.onnx"
    model = onnx.load(file)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.append(helper.make_node("GlobalAveragePool", ["in"], ["p"]))
    model.graph.node.append(helper.make_node("Flatten", ["p"], ["out"]))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    onnx.save(model, file)
    config = here / "models" / "net" / "config.pbtxt"
    config.write_text(CONFIG.replace("[ 5 ]", "[ 3 ]"))
    (here / "models" / "net" / "labels.txt").write_text("a\nb\nc\n")


def plain(here: Path) -> None:
    folder = here / "models" / "net"
    (folder / "1" / "model.onnx").rename(folder / "model.onnx")
    (folder / "1").rmdir()


def locked(here: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (here / "models" / "net").chmod(0o555)


def broken_client(here: Path) -> None:
    (here / "models" / "net" / "labels.txt").unlink()


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (broken_picture, [], "the client refuses the sample 01.png: "),
        (broken_json, [], "the sample a.json cannot be read: "),
        (other_json, [], "the sample a.json cannot be read: it holds no payload"),
        (no_samples, [], "there are no samples in "),
        (torch_model, [], "net is no ONNX model: there is no file 1/model.onnx"),
        (no_onnx, [], "is no ONNX file that can be read"),
        (nothing_to_do, [], "nothing to be computed in int8: no Conv, MatMul, Gemm"),
        (plain, [], "has no version folders; move its model.onnx into"),
        (locked, [], "must not be written to; name another place with --output"),
        (broken_client, [], "the client of 'net' does not work: "),
        (None, ["--samples", "/no/such"], "--samples is '/no/such', which is no folder; expected"),
        (None, ["--repository", "/no/such"], "MODEL_DIR is /no/such"),
        (None, ["--version", "7"], "--version is '7'; "),
        (None, ["--output", "samples"], "samples is there already; name another folder"),
        (None, ["--output", "no/such"], "there is no folder "),
        (None, ["--exclude", "nothing*"], "--exclude is 'nothing*', which fits none of the 5"),
        (None, ["--exclude", "*"], "no Conv, MatMul, Gemm that --exclude leaves"),
    ],
)
def test_it_says_what_is_wrong_and_leaves_nothing(
    here: Path,
    change: Callable[[Path], None] | None,
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here)
    if change:
        change(here)
    before = left(here)
    assert asked(here, *options) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert left(here) == before


def test_it_names_the_models_that_there_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--samples", str(here / "samples"), "--repository", str(here / "models")]
    assert main(["quantize", "nett", *given]) == 2
    err = capsys.readouterr().err
    assert "there is no model 'nett'" in err
    assert "net, resnet, yolov5" in err


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


def test_what_is_far_off_is_written_only_on_demand(
    here: Path, capsys: pytest.CaptureFixture[str]
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
    assert asked(here, "--keep") == 0
    assert (file.parent.parent / "2" / "model.onnx").is_file()


def test_what_somebody_makes_meanwhile_stays(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = here / "models" / "net" / "2" / "model.onnx"

    def measured(*_: Any) -> list[float]:
        theirs.parent.mkdir()
        theirs.write_text("theirs")
        return [1.0, 1.0]

    monkeypatch.setattr(int8, "medians", measured)
    assert asked(here) == 2
    assert "has been made meanwhile" in capsys.readouterr().err
    assert theirs.read_text() == "theirs"


def program(here: Path, code: str, **variables: str) -> subprocess.Popen[str]:
    given = ["quantize", "net", "--samples", here / "samples", "--repository", here / "models"]
    arguments = [str(one) for one in given]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{code}\nfrom tool.__main__ import main\nsys.exit(main({arguments}))",
        ],
        cwd=PROJECT,
        env={"PATH": "/usr/bin:/bin", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_leaves_nothing(here: Path, tmp_path: Path) -> None:
    before, temporary = left(here), tmp_path / "temporary"
    temporary.mkdir()
    # A shell that runs the tests in the background has SIGINT ignored.
    waits = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tool import int8; int8.medians = lambda *_: time.sleep(600)"
    )
    with program(here, waits, TMPDIR=str(temporary)) as process:
        end = time.monotonic() + 120
        while not list((here / "models" / "net").glob(".quantize-*/new/model.onnx")):
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "")
    assert left(here) == before
    # ONNX Runtime's own file is there from its import on.
    assert [path for path in temporary.iterdir() if path.name != ".ses"] == []


def test_what_is_missing_is_named_with_the_command_that_installs_it(here: Path) -> None:
    with program(here, "import sys; sys.modules['onnx'] = None") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    extra = PROJECT / "container" / "requirements" / "quantize.txt"
    assert "needs the package onnx, which is not installed" in err
    assert f"`{sys.executable} -m pip install --require-hashes -r {extra}`" in err
    assert extra.is_file()


def test_the_image_does_not_install_it() -> None:
    assert "quantize.txt" not in (PROJECT / "Dockerfile").read_text()


def test_a_terminal_gets_a_progress_bar(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert asked(here) == 0
    assert "0/15" in terminal.getvalue(), "9 to calibrate on, 3 to compare twice"


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
