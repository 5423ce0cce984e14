"""Requests of several rows that their sender filled up, on plain arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.batching.item import ByRows, Item, PaddedTensors, RequestError
from backends.batching.length_buckets import lengths, run_in_buckets
from backends.batching.padding import OWN_RUN, near
from tests.support.triton.batching import PADDING, Texts, TextsByRows, text, values

Array = NDArray[Any]
LONG = 2 * OWN_RUN + 2  # longer than is worth filling up the shortest of two texts


def run_all(run: Texts, *items: Item, most: int = 8) -> list[Any]:
    return list(run_in_buckets(items, run, max_batch_size=most))


def test_short_texts_are_not_computed_as_long_as_the_longest() -> None:
    run = Texts()
    [answer] = run_all(run, text([1, 2], [3] * LONG, [4, 5, 6]))
    assert sorted(run.shapes) == [(1, LONG), (2, 3)]
    assert answer["sum"].tolist() == [[3], [3 * LONG], [15]]
    assert answer["y"].shape == (3, LONG, 2)
    assert answer["y"].dtype == np.int32
    assert answer["y"][1].tolist() == [[3, -3]] * LONG
    assert answer["y"][2, :3].tolist() == [[4, -4], [5, -5], [6, -6]]
    assert not answer["y"][0, 3:].any()


def test_rows_that_are_wanted_are_counted_in_what_was_sent() -> None:
    """The second token of the first text and of the last, and the last one of the second."""
    run = Texts()
    wanted = {"y": [2 * LONG + 1, 1, 2 * LONG - 1]}
    [answer] = run_all(run, text([1, 2], [*range(LONG)], [4, 5, 6], outputs=("y",), picked=wanted))
    assert len(run.shapes) == 2
    assert answer["y"].tolist() == [[5, -5], [2, -2], [LONG - 1, 1 - LONG]]
    assert answer["y"].dtype == np.int32


def test_pieces_want_their_own_rows_alone() -> None:
    """The short texts are one bucket, [2, 3]: its rows are 3 and 1 there, and 0 of the long one."""
    run = TextsByRows()
    wanted = {"y": [2 * LONG, LONG, 1]}
    item = text([1, 2], [3] * LONG, [4, 5, 6], outputs=("y",), picked=wanted)
    [answer] = run_in_buckets([item], run, max_batch_size=8, by_rows=ByRows(("y",), run.few))
    asked = dict(zip(run.shapes, run.asked, strict=True))
    assert asked == {(2, 3): {"y": [3, 1]}, (1, LONG): {"y": [0]}}
    assert values(answer) == {"y": [[4, -4], [3, -3], [2, -2]]}


def test_an_input_of_another_length_is_not_cut() -> None:
    def run(inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        total = inputs["ids"].sum(1, keepdims=True) + inputs["more"].sum(1, keepdims=True)
        return dict.fromkeys(outputs, total * inputs["mask"].shape[1])

    inputs = text([1], [2] * LONG).inputs
    more = np.array([[3] * 2 * LONG, [5] * 2 * LONG], np.int32)
    item = Item({**inputs, "more": more}, ("sum",), padding=PADDING)
    [answer] = run_in_buckets([item], run, max_batch_size=2)
    assert answer["sum"].tolist() == [[1 + 6 * LONG], [12 * LONG * LONG]]


def test_a_row_that_is_wanted_behind_a_texts_end_is_computed() -> None:
    run = Texts()
    wanted = {"y": [2, LONG, LONG + 1]}
    [answer] = run_all(run, text([1], [3] * LONG, outputs=("y",), picked=wanted))
    assert sorted(run.shapes) == [(1, 3), (1, LONG)]
    assert answer["y"].tolist() == [[7, -7], [3, -3], [3, -3]]


def test_pieces_of_several_requests_share_runs() -> None:
    run = Texts()
    one, two, three = run_all(run, text([1], [2] * LONG), text([3] * LONG, [4]), text([5]), most=8)
    assert sorted(run.shapes) == [(2, LONG), (3, 1)]
    assert one["sum"].tolist() == [[1], [2 * LONG]]
    assert two["sum"].tolist() == [[3 * LONG], [4]]
    assert three["sum"].tolist() == [[5]]


def test_what_is_not_cut_shares_a_run_as_ever() -> None:
    """Beside a text of 20 tokens each of 17 is filled up by 3, and one of 1 costs no run."""
    run = Texts()
    run_all(run, *[text([1] * size) for size in (20, 17, 17, 17)])
    assert run.shapes == [(4, 20)]
    run_all(run, *[text([1] * size) for size in (20, 17, 17, 17)], text([1], [2] * 40))
    assert sorted(run.shapes[1:]) == [(1, 40), (5, 20)]


def test_rows_that_are_all_shorter_than_they_came_are_cut() -> None:
    run = Texts()
    item = text([1, 7, 7], [2, 3, 7])
    item.inputs["mask"][:, 1:] = [[0, 0], [1, 0]]
    [answer] = run_all(run, item)
    assert run.shapes == [(2, 2)]
    assert answer["sum"].tolist() == [[1], [5]]
    assert answer["y"].tolist() == [[[1, -1], [7, -7], [0, 0]], [[2, -2], [3, -3], [0, 0]]]


def test_texts_are_joined_with_empty_ones() -> None:
    padding = PaddedTensors(PADDING.inputs, ("words",))
    [answer] = run_all(Texts(), text([1], [2] * LONG, outputs=("words",), padding=padding))
    assert answer["words"].tolist() == [["1"] + [""] * (LONG - 1), ["2"] * LONG]


@pytest.mark.parametrize(
    "item",
    [
        text([1], [2] * 4),
        text([1], [2] * LONG, padding=PaddedTensors({}, ())),
        text([1], [2] * LONG, above={"y": (1, 0.5)}),
        text([1], [2] * LONG, outputs=("sum",), picked={"sum": [0, 1]}),
        text([1] * LONG, [2] * LONG),
        Item({"ids": np.array([[1, 7]]), "mask": np.array([[1, 0]])}, ("y",), padding=PADDING),
    ],
    ids=["near", "not to be cut", "rows by a number", "rows of texts", "equal", "one"],
)
def test_other_requests_are_one_run(item: Item) -> None:
    run = Texts()
    [answer] = run_all(run, item)
    assert run.shapes == [item.inputs["ids"].shape]
    assert not isinstance(answer, Exception)


def test_inputs_of_unequal_lengths_or_batch_sizes_are_left_as_they_are() -> None:
    run = Texts()
    item = text([1], [2] * LONG)
    odd, uneven = (
        replace(item, inputs={**item.inputs, "mask": np.ones(shape, np.int32)}, outputs=("sum",))
        for shape in ((2, 1), (1, LONG))
    )
    came, refused, single = run_all(run, odd, uneven, text([3]))
    assert run.shapes == [(2, LONG), (1, 1)]
    assert came["sum"].tolist() == [[1 + 7 * (LONG - 1)], [2 * LONG]]
    assert isinstance(refused, RequestError)
    assert "expected to have one batch size" in str(refused)
    assert single["sum"].tolist() == [[3]]


def test_more_rows_than_the_maximum_are_refused_in_any_pieces() -> None:
    run = Texts()
    [refused] = run_all(run, text([1], [2] * LONG, [3]), most=2)
    assert isinstance(refused, RequestError)
    assert "at most 2" in str(refused)
    assert run.shapes == []


def test_what_fails_in_a_piece_fails_as_the_whole_and_alone() -> None:
    run = Texts()
    bad, good = run_all(run, text([99], [2] * LONG), text([1], [2] * LONG))
    assert str(bad) == f"99 is no word, in [2, {LONG}]"
    assert good["sum"].tolist() == [[1], [2 * LONG]]


@pytest.mark.parametrize("said", [("sum",), ()], ids=["shorter", "longer"])
def test_where_an_output_is_not_as_long_as_was_said_the_whole_is_run(said: tuple[str, ...]) -> None:
    run = Texts()
    padding = PaddedTensors(PADDING.inputs, said)
    [answer] = run_all(run, text([1], [2] * LONG, padding=padding))
    assert run.shapes[-1] == (2, LONG)
    assert answer["sum"].tolist() == [[1], [2 * LONG]]
    filled = [[1, -1]] + [[7, -7]] * (LONG - 1)
    assert answer["y"].tolist() == [filled, [[2, -2]] * LONG]


@pytest.mark.parametrize(
    ("output", "row", "expected"),
    [
        ("pairs", 2 * LONG + 1, [-8, -1]),
        ("pairs", 3, [-7, 0]),
        ("sum", 1, [8 * LONG]),
        ("words", 0, ["1", "7", "7"]),
    ],
)
def test_rows_of_other_outputs_are_counted_in_the_whole(
    output: str, row: int, expected: list[Any]
) -> None:
    """In the first, [2, LONG, 2, 2], a token has two rows: the second one of each text's first and
    second token.

    The other two are said to be longer than they are, or have no axis for tokens.
    """
    run = Texts()
    padding = PaddedTensors(PADDING.inputs, (output,))
    item = text([1], [8] * LONG, outputs=(output,), picked={output: [row]}, padding=padding)
    [answer] = run_all(run, item)
    assert run.shapes[-1] == (2, LONG)
    assert answer[output].tolist()[0][: len(expected)] == expected


def test_no_rows_are_answered_with_none() -> None:
    inputs = {name: np.empty((0, 3), np.int32) for name in ("ids", "mask")}
    [answer] = run_all(Texts(), Item(inputs, ("y",), padding=PADDING))
    assert answer["y"].shape == (0, 3, 2)


def test_a_row_is_as_long_as_what_is_no_filling_in_any_input() -> None:
    ids = np.array([[1, 7, 7, 7], [1, 7, 2, 7], [1, 7, 7, 7], [7, 7, 7, 7], [1, 2, 3, 7]])
    mask = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    item = Item({"ids": ids, "mask": mask}, (), padding=PADDING)
    assert lengths(item).tolist() == [1, 3, 2, 4, 4]
    vectors = np.array([[[1, 0], [0, 2], [0, 0]], [[3, 0], [0, 0], [0, 0]]])
    item = Item({"vectors": vectors}, (), padding=PaddedTensors({"vectors": 0}, ()))
    assert lengths(item).tolist() == [2, 1]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_groups_cost_less(seed: int) -> None:
    """All partitions of up to seven rows are tried."""
    generator = np.random.default_rng(seed)
    own = generator.integers(1, generator.choice([8, 40, 200]), generator.integers(1, 8))
    groups = [group.tolist() for group in near(own)]
    assert sorted(row for group in groups for row in group) == list(range(len(own)))
    assert all(group == sorted(group) for group in groups)
    least = min(cost(own, some) for some in partitions(list(range(len(own)))))
    assert cost(own, groups) == least


def cost(own: Array, groups: Sequence[Sequence[int]]) -> int:
    return sum(OWN_RUN + len(group) * max(int(own[row]) for row in group) for group in groups)


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    if not rows:
        yield []
        return
    first, *others = rows
    for some in partitions(others):
        yield [[first], *some]
        for index, group in enumerate(some):
            yield [*some[:index], [first, *group], *some[index + 1 :]]
