"""What is said of a model that Triton could not load: what `dispatcher check` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import ModelFailed
from clients.triton.server import ModelState
from dispatcher.errors import BadModel
from dispatcher.models.model_files import Explainer, check_findings
from tests.conftest import wait_for
from tests.support.loading import Hosting
from tests.support.mistakes import config, write_right


@pytest.mark.parametrize(
    ("right", "wrong", "begins", "ends"),
    [
        (
            "max_batch_size",
            "max_batchsize",
            "3: cannot be read: ",
            ": write `max_batch_size` for `max_batchsize`",
        ),
        # A warning, where there is no error.
        ('"onnxruntime"', '"onnxruntimes"', "2: `backend` is ", ': write backend: "onnxruntime"'),
    ],
)
def test_the_findings_are_those_of_the_tool_with_whole_paths(
    tmp_path: Path, right: str, wrong: str, begins: str, ends: str
) -> None:
    folder = write_right(tmp_path, "some")
    config(right, wrong)(folder)
    (finding,) = check_findings(folder)
    assert finding.startswith(f"{folder.resolve()}/config.pbtxt:{begins}")
    assert finding.endswith(ends)


def test_what_cannot_be_checked_has_no_findings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert check_findings(tmp_path / "gone") == []
    assert "gone cannot be checked" in caplog.text


def test_they_are_the_hint_and_paths_are_the_author_s(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, place = hosting.folder, hosting.repository / "one"

    def load(name: str, *, timeout: float) -> None:
        raise ModelFailed(f"{place}/1/model.onnx is damaged", hint="Triton knows no better")

    monkeypatch.setattr(hosting.server, "load", load)
    for found, hint in ((["fetch it again", "or not"], "fetch it again; or not"), ([], "Triton ")):
        hosting.findings = lambda folder, found=found: found if folder == source else ["?"]
        with pytest.raises(BadModel) as caught:
            hosting.load("one", str(source))
        said = f"{source} cannot be loaded: {source}/1/model.onnx is damaged"
        assert caught.value.message == said
        assert caught.value.hint.startswith(hint)
        assert not place.exists()


def test_a_folder_that_is_no_model_has_them_too(hosting: Hosting, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    hosting.findings = lambda folder: [f"{folder} has no version folder"]
    with pytest.raises(BadModel, match="notes is no model") as caught:
        hosting.load("one", str(tmp_path / "notes"))
    assert caught.value.hint == f"{tmp_path / 'notes'} has no version folder"
    for name in "ab":
        (tmp_path / "notes" / name).mkdir()
        (tmp_path / "notes" / name / "config.pbtxt").touch()
    with pytest.raises(BadModel, match=r"notes has several models \(a, b\)") as caught:
        hosting.load("one", str(tmp_path / "notes"))
    assert "each by a request of its own" in caught.value.hint


def test_models_that_are_not_loaded_are_explained_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def findings(folder: Path) -> list[str]:
        asked.append(folder.name)
        return [f"{folder.name} is empty"]

    for name in ("well", "loading", "lost", "bad"):
        (tmp_path / name).touch()
    explainer = Explainer(tmp_path, tmp_path, findings)
    states = [
        ModelState("well", "1", "READY", ""),
        ModelState("loading", "1", "LOADING", ""),
        ModelState("lost", "1", "UNAVAILABLE", "it is damaged"),
        ModelState("bad", "", "", ""),
        ModelState("unwanted", "", "", ""),
    ]
    for _ in range(3):
        explainer.look(states)
    wait_for(lambda: len(asked) == 2, "two explanations")
    assert asked == ["bad", "lost"]
    wait_for(lambda: "the model lost is not loaded: lost is empty" in caplog.text, "the log")
    explainer.look([ModelState("lost", "1", "READY", "")])
    explainer.look([ModelState("lost", "1", "UNAVAILABLE", "again")])
    wait_for(lambda: asked == ["bad", "lost", "lost"], "one more")
