"""`dispatcher quantize` writes a version in int8 that answers as the model does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from backends import engine_choice
from tests.support.quantize import CLASSES, SIZE, asked, pixels_of, run_file, softmax
from tool.__main__ import main
from tool.engines import int8, quantize
from tool.engines.int8 import with_strides_apart


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
        assert one["difference"] * 0.03 == pytest.approx(gaps[one["sample"]], abs=0.001)
    differences = [one["difference"] for one in report["differences"]]
    assert report["median_difference"] == differences[1]
    assert differences == sorted(differences, reverse=True)
    assert report["agree"] == 3
    assert report["bytes_after"] == new.stat().st_size
    assert report["bytes_before"] == old.stat().st_size
    # Ranges are of the client's own pixels, which are 0 to 1, of which 255 steps are made.
    graph = onnx.load(new).graph
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
    assert "warning: the first is 3:d in all compared samples: give samples that differ" in out
    assert "version_policy { specific { versions: 1 } }" in out


@pytest.mark.parametrize(("processor", "most"), [("fma avx2", 64), ("avx2 avx_vnni", 128)])
def test_weights_have_a_bit_less_where_the_processor_would_overflow(
    here: Path, monkeypatch: pytest.MonkeyPatch, processor: str, most: int
) -> None:
    """Two products of an unsigned byte and one from -64 to 64 are at most 2 · 255 · 64 < 2¹⁵."""
    monkeypatch.setattr(engine_choice, "processor", lambda: processor)
    assert asked(here) == 0
    graph = onnx.load(here / "models" / "net" / "2" / "model.onnx").graph
    weights = [one for one in graph.initializer if one.data_type == TensorProto.INT8 and one.dims]
    greatest = max(np.abs(numpy_helper.to_array(one).astype(int)).max() for one in weights)
    assert most - 2 <= greatest <= most


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
    onnx.save(model, old, save_as_external_data=True, size_threshold=0, location="net.bin")
    monkeypatch.setattr(int8, "LARGEST", 0)
    assert asked(here, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    new = here / "models" / "net" / "2" / "model.onnx"
    assert report["bytes_before"] == sum(path.stat().st_size for path in old.parent.iterdir())
    assert report["agree"] == 3
    pixels = pixels_of(here / "samples" / "03.png")
    before, after = (softmax(run_file(file, pixels)[0]) for file in (old, new))
    np.testing.assert_allclose(before, after, atol=0.03)


def test_files_of_older_opsets_and_a_bias_of_two_dimensions_are_quantized(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = here / "models" / "net" / "1" / "model.onnx"
    model = onnx.load(old)
    model.opset_import[0].version = 11  # its operators are the same there
    (bias,) = [one for one in model.graph.initializer if one.name == "b4"]
    bias.dims[:] = [1, CLASSES]
    onnx.save(model, old)
    assert asked(here, "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["agree"] == 3
    assert "raised to opset 13" in printed.err
    new = onnx.load(here / "models" / "net" / "2" / "model.onnx")
    assert max(one.version for one in new.opset_import if not one.domain) == 13


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
    options += ["--keep", "--output", here / "deep" / "beside"]
    assert main(["quantize", "mine", *map(str, options)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "values"
    old = here / "models" / "net" / "1" / "model.onnx"
    for one in report["differences"]:
        files = (old, here / "deep" / "beside" / "model.onnx")
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
    assert asked(here, "--json", "--keep", samples="bodies") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["calibrated_on"], report["compared_on"]) == ("values", 6, 2)


def test_texts_are_samples_line_by_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "texts").mkdir()
    (here / "texts" / "some.txt").write_text("one\n\ntwo\n")
    found = quantize.samples_in(here / "texts")
    assert [one.name for one in found] == ["some.txt:1", "some.txt:3"]
    assert asked(here, samples="texts") == 2
    assert "the client refuses the sample some.txt:1: a text came" in capsys.readouterr().err
