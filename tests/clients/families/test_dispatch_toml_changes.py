"""What the log and /ping say of a mistake in a file, and what counts as a change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clients.errors import ClientDisabled
from clients.families.base.family import client_class
from clients.plugins.discovery import model_source
from clients.request import Request
from tests.support.family_bench import PICTURES, Bench, bench, picture, plain, signature, tried

__all__ = ["bench"]  # the fixture


def test_a_model_that_does_not_fit_is_logged_and_known_to_ping(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.set_up('family = "classification"\ncrop = 9', PICTURES)
    assert tried(bench).reasons() == []
    assert caplog.text.count("`crop` is 9×9") == 1
    assert "`crop` is 9×9" in tried(bench, "m").reasons()[0]


def test_a_mended_model_is_taken_as_it_is_now(bench: Bench) -> None:
    """The check is made again when Triton tells other tensors."""
    bench.set_up('family = "classification"', signature({"x": (3, 8, 8)}, {"y": (4,)}))
    bench.answers(lambda inputs: {"y": np.zeros((len(inputs["x"]), 3), np.float32)})
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        with pytest.raises(ClientDisabled):
            client.inference(picture(plain(8, 8, [0, 0, 0])))
        bench.server.signatures["m"] = PICTURES
        assert len(client.inference(picture(plain(8, 8, [0, 0, 0])))) == 3


def test_a_mistake_names_the_file_of_the_author_not_a_link_to_it(
    bench: Bench, tmp_path: Path
) -> None:
    bench.set_up('family = "clasification"', PICTURES)
    link = tmp_path / "link"
    link.symlink_to(bench.folder)
    with pytest.raises(ClientDisabled, match="did you mean") as caught:
        client_class(link / "dispatch.toml")
    assert str(bench.folder / "dispatch.toml") in caught.value.message
    assert str(link) not in caught.value.message


def test_a_file_in_a_folder_is_seen_when_it_changes(bench: Bench) -> None:
    bench.set_up('family = "classification"\nlabels = "names/more/a.txt"', PICTURES)
    labels = bench.folder / "names" / "more" / "a.txt"
    labels.parent.mkdir(parents=True)
    before = model_source(bench.folder / "dispatch.toml").mark
    labels.write_text("one\n")
    after = model_source(bench.folder / "dispatch.toml").mark
    assert before != after
    assert model_source(bench.folder / "dispatch.toml").mark == after


def test_neither_circles_of_links_nor_what_is_deep_below_is_looked_at(bench: Bench) -> None:
    bench.set_up('family = "classification"', PICTURES)
    (bench.folder / "again").symlink_to(".")
    (bench.folder / "env" / "lib").mkdir(parents=True)
    (bench.folder / "env" / "lib" / "os.py").touch()
    (bench.folder / "names").mkdir()
    (bench.folder / "names" / "a.txt").touch()
    mark = model_source(bench.folder / "dispatch.toml").mark
    assert str(bench.folder / "names" / "a.txt") in mark
    assert max(len(Path(one).relative_to(bench.folder).parts) for one in mark) == 2


@pytest.mark.parametrize("text", ["long " * 100, "\\u0000", "a/" * 5000])
def test_a_text_that_can_be_no_path_is_a_mistake_of_its_own_model(bench: Bench, text: str) -> None:
    bench.set_up(f'family = "classification"\ndescription = "{text}"', PICTURES)
    source = model_source(bench.folder / "dispatch.toml")
    with pytest.raises(ClientDisabled, match="`description`"):
        source.classes()
