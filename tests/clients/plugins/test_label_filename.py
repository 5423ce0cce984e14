"""The `label_filename` of config.pbtxt serves as `labels` where dispatch.toml names none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.family_bench import PICTURES, Bench, bench, picture

__all__ = ["bench"]  # a fixture

CONFIG = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "/animals.txt" } ]'
PIXELS = np.zeros((8, 8, 3))


def answered(bench: Bench, toml: str) -> list[str]:
    bench.set_up(toml, PICTURES)  # labels.txt has a, b and c
    (bench.folder / "animals.txt").write_text("ant\nbee\ncow\n")
    bench.answers(lambda tensors: {"y": np.array([[1, 3, 2]], np.float32)})
    return [text.rpartition(":")[2] for text in bench.ask(picture(PIXELS))]


OTHER = 'output { name: "z" label_filename: "b.txt" }'


@pytest.mark.parametrize(
    ("config", "key", "expected"),
    [
        (CONFIG, "", ["bee", "cow", "ant"]),
        (CONFIG, 'labels = "labels.txt"', ["b", "c", "a"]),  # the key comes first
        (CONFIG + OTHER, 'output = "y"', ["bee", "cow", "ant"]),
        # Without it labels.txt is read.
        *((config, "", ["b", "c", "a"]) for config in ("", "output {", 'output { name: "y" }')),
    ],
)
def test_it_serves_as_labels(bench: Bench, config: str, key: str, expected: list[str]) -> None:
    bench.folder.mkdir()
    (bench.folder / "config.pbtxt").write_text(config)
    assert answered(bench, f'family = "classification"\n{key}') == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            CONFIG.replace("/animals", "../x"),
            ["../x.txt", "label_filename", "in the model's folder"],
        ),
        (CONFIG.replace("animals", "no"), ["`labels` is no.txt", "a name in each"]),
        (CONFIG + OTHER, ["`labels` is missing", '"animals.txt", "b.txt"']),
    ],
)
def test_a_mistake_is_one_sentence(bench: Bench, config: str, words: list[str]) -> None:
    bench.set_up('family = "classification"', PICTURES)
    (bench.folder / "config.pbtxt").write_text(config)
    if "animals" in config:
        (bench.folder / "animals.txt").write_text("a\nb\nc\n")
    reason = bench.registry().broken["m"]
    for word in words:
        assert word in reason
