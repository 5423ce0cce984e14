"""The rows of an output that requests want, with plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from backends.batching.item import ByRows, Item, PaddedTensors, RequestError, RunRows
from backends.batching.run_items import run_items
from tests.support.triton.batching import Array, TextsByRows, text, values


def test_rows_are_counted_in_the_run_where_only_some_are_computed() -> None:
    """The run is [4, 3]: the third text's second token is row 7 there, the fourth's first row 9."""
    run = TextsByRows()
    one, two, three = run.run_items(
        text([1], outputs=("y",), picked={"y": [0]}),
        text([2, 3, 4], outputs=("sum", "y"), picked={"y": [2]}),
        text([5, 6], [8, 9], outputs=("y",), picked={"y": [1, 2]}),
    )
    assert run.asked == [{"y": [0, 5, 7, 9]}]
    assert len(run.runs) == 1
    assert values(one) == {"y": [[1, -1]]}
    assert values(two) == {"sum": [[9]], "y": [[4, -4]]}
    assert values(three) == {"y": [[6, -6], [8, -8]]}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (text([1], outputs=("sum",)), {"sum": [[1]]}),
        (text([1, 2], picked={"y": []}), {"y": [], "sum": [[3]]}),
    ],
    ids=["it does not ask for the output", "it wants none of its rows"],
)
def test_who_wants_none_of_the_rows_is_no_reason_to_compute_them_all(
    other: Item, expected: dict[str, Any]
) -> None:
    run = TextsByRows()
    none, row = run.run_items(other, text([3, 4], picked={"y": [1]}))
    assert run.asked == [{"y": [3]}]
    assert values(none) == expected
    assert values(row) == {"y": [[4, -4]], "sum": [[7]]}


def test_of_rows_that_are_wanted_by_number_the_others_are_not_left_out() -> None:
    """Whether all was computed or not."""
    for by_rows in (None, ByRows(("y",), TextsByRows().few)):
        [answer] = run_items(
            [replace(text([1, 2], picked={"y": [1]}), above={"y": (0, 5.0)})],
            TextsByRows(),
            max_batch_size=4,
            by_rows=by_rows,
        )
        assert values(answer)["y"] == [[2, -2]]


def test_where_one_is_at_fault_the_others_rows_are_computed_alone() -> None:
    """That request is run once more, whole: it may have named the wrong rows."""
    run = TextsByRows()
    bad, good = run.run_items(text([13, 2], picked={"y": [1]}), text([3, 4], picked={"y": [1]}))
    assert run.asked == [{"y": [1, 3]}, {"y": [1]}, {"y": [1]}]
    assert values(bad)["y"] == [[2, -2]]
    assert values(good)["y"] == [[4, -4]]


NO_PADDING = PaddedTensors({}, ())


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([text([1, 2], picked={"y": [1]}), text([3, 4])], [[[2, -2]], [[[3, -3], [4, -4]]]]),
        ([text([1, 2], picked={"y": [1]}, padding=NO_PADDING)], [[[2, -2]]]),
        ([text([1, 2], picked={"y": []})], [[]]),
    ],
    ids=["all of it is wanted beside", "of unknown length", "none"],
)
def test_all_is_computed_where_it_is_wanted_or_not_known(
    items: list[Item], expected: list[Any]
) -> None:
    run = TextsByRows()
    assert [answer["y"].tolist() for answer in run.run_items(*items)] == expected
    assert run.asked == []


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_there_is_not_is_refused_alone(row: int) -> None:
    run = TextsByRows()
    wrong, right = run.run_items(text([1, 2], picked={"y": [row]}), text([3, 4], picked={"y": [0]}))
    assert "are wanted of an output that has 2" in str(wrong)
    assert isinstance(wrong, RequestError)
    assert values(right)["y"] == [[3, -3]]


def test_rows_of_an_output_of_another_length_are_those_of_its_own() -> None:
    """It has one row for each text, and was said to have one for each token."""
    run = TextsByRows()

    def by_rows(
        inputs: Mapping[str, Array], outputs: Sequence[str], rows: Mapping[str, RunRows]
    ) -> dict[str, Array]:
        raise ValueError("it is not as long")

    items = [
        text(
            *rows,
            outputs=("sum",),
            picked={"sum": [0]},
            padding=PaddedTensors({"ids": 7}, ("sum",)),
        )
        for rows in ([[1, 2]], [[3, 4]])
    ]
    came = run_items(items, run, max_batch_size=8, by_rows=ByRows(("sum",), by_rows))
    assert [values(answer) for answer in came] == [{"sum": [[3]]}, {"sum": [[7]]}]
