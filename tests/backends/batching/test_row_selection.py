"""The rows of an output that requests want, with plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from backends.batching.item import ByRows, Item, PaddedTensors, RequestError, Rows
from backends.batching.run_items import run_items
from tests.support.triton.batching import Array, Texts, text, values


class TextsByRows(Texts):
    """The same, and it can compute some rows of y alone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, list[int]]] = []

    def few(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], rows: Mapping[str, Rows]
    ) -> dict[str, Array]:
        self.asked.append({name: some.numbers for name, some in rows.items()})
        answers = self(inputs, outputs)
        if 13 in inputs["ids"]:
            raise ArithmeticError("13 brings bad luck.")
        for name, some in rows.items():
            array = answers[name]
            if array.shape[:2] != some.dims:
                raise ValueError(f"{array.shape} is not {some.dims}")
            answers[name] = array.reshape(-1, array.shape[-1])[some.numbers]
        return answers

    def run_items(self, *items: Item) -> list[Any]:
        by_rows = ByRows(("y", "z"), self.few)
        return list(run_items(items, self, max_batch_size=8, by_rows=by_rows))


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


def test_who_does_not_ask_for_an_output_wants_none_of_its_rows() -> None:
    run = TextsByRows()
    total, row = run.run_items(text([1], outputs=("sum",)), text([2, 3], picked={"y": [1]}))
    assert run.asked == [{"y": [3]}]
    assert values(total) == {"sum": [[1]]}
    assert values(row) == {"y": [[3, -3]], "sum": [[5]]}


def test_who_wants_none_of_the_rows_is_no_reason_to_compute_them_all() -> None:
    run = TextsByRows()
    none, row = run.run_items(text([1, 2], picked={"y": []}), text([3, 4], picked={"y": [1]}))
    assert run.asked == [{"y": [3]}]
    assert values(none) == {"y": [], "sum": [[3]]}
    assert values(row)["y"] == [[4, -4]]


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
        inputs: Mapping[str, Array], outputs: Sequence[str], rows: Mapping[str, Rows]
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
