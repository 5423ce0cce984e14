"""Grouping, running and splitting requests, with plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from backends.batching.item import Item, PaddedTensors, RequestError, conform
from backends.batching.padding import OWN_RUN
from backends.batching.run_items import groups, pick_rows, pick_rows_above, run_items
from backends.model_config import FileTensor
from tests.support.triton.batching import Array, Doubler, Texts, item, text, values


def test_requests_of_one_shape_are_one_run() -> None:
    run = Doubler()
    answers = run_items([item(1, fill=1), item(2, fill=2)], run, max_batch_size=8)
    assert run.runs == [((3, 2), ("y",))]
    assert [values(answer) for answer in answers] == [{"y": [[2, 2]]}, {"y": [[4, 4], [4, 4]]}]


def test_answers_keep_the_requests_order_across_shapes() -> None:
    run = Doubler()
    items = [item(1, 2, 1), item(1, 3, 2), item(1, 2, 3), item(1, 3, 4)]
    answers = run_items(items, run, max_batch_size=8)
    assert [shape for shape, _ in run.runs] == [(2, 2), (2, 3)]
    assert [values(answer)["y"][0][0] for answer in answers] == [2, 4, 6, 8]


def test_each_request_gets_the_rows_that_it_wants() -> None:
    """Of [2, 3] the rows are 0 and 1, whichever batch it was part of."""
    ones, twos, far, all_of_it = (
        Item({"x": np.array(x, np.float32)}, ("y", "n"), rows)
        for x, rows in (
            ([[1, 2, 3], [4, 5, 6]], {"y": [1]}),
            ([[7, 8, 9]], {"y": [0], "n": [0]}),
            ([[0, 0, 0]], {"y": [1]}),
            ([[1, 1, 1]], {}),
        )
    )
    run = Doubler()
    first, second, refused, whole = run_items([ones, twos, far, all_of_it], run, max_batch_size=8)
    assert len(run.runs) == 1
    assert values(first)["y"] == [[8, 10, 12]]
    assert values(second) == {"y": [[14, 16, 18]], "n": [[5]]}
    assert str(refused) == "rows 1 to 1 are wanted of an output that has 1."
    assert values(whole)["y"] == [[2, 2, 2]]


def test_rows_of_a_batch_are_counted_over_its_items() -> None:
    scores = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    assert pick_rows(scores, [0, 2, 3]).tolist() == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert pick_rows(scores, []).shape == (0, 4)
    with pytest.raises(RequestError):
        pick_rows(scores, [-1, 2])


def test_rows_above_a_number_stay_with_their_item() -> None:
    """Of [2, 3, 2], by column 1: the first item has rows 0 and 2, the other one has row 1."""
    tables = np.array([[[1, 9], [2, 5], [3, 7]], [[4, 0], [5, 6], [6, 5]]], np.float32)
    assert pick_rows_above(tables, 1, 5).tolist() == [[[1, 9], [3, 7]], [[5, 6], [0, 0]]]
    assert pick_rows_above(tables[0], 1, 5).tolist() == [[1, 9], [3, 7]]
    assert pick_rows_above(tables, 1, 9).shape == (2, 0, 2)
    assert pick_rows_above(tables[:0], 1, 5).shape == (0, 0, 2)
    assert pick_rows_above(tables[:, :0], 1, 5).shape == (2, 0, 2)
    tables[0, 0, 1] = np.nan
    assert pick_rows_above(tables, 1, 5).tolist() == [[[3, 7]], [[5, 6]]]


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((3, 2)), np.zeros((3, 3), object)])
def test_rows_are_not_told_apart_by_what_is_no_number(array: Array) -> None:
    with pytest.raises(RequestError, match="column 2 of an output of"):
        pick_rows_above(array, 2, 0.5)


def test_each_request_has_the_rows_that_it_wants() -> None:
    """Doubled rows are [2, 2, 2] and [4, 4, 4]; both requests are run together."""
    x = {"x": np.array([[1, 1, 1], [2, 2, 2]], np.float32)}
    many, few, none = (Item(x, ("y",), above={"y": (0, least)}) for least in (1, 2, 4))
    wrong = Item(x, ("y",), above={"y": (3, 0)})
    run = Doubler()
    *came, refused = run_items([many, few, none, wrong], run, max_batch_size=8)
    assert len(run.runs) == 1
    assert [values(one)["y"] for one in came] == [[[2, 2, 2], [4, 4, 4]], [[4, 4, 4]], []]
    assert isinstance(refused, RequestError)


def test_rows_of_an_output_without_columns_fail_alone() -> None:
    x = {"x": np.ones((1, 0), np.float32)}
    wrong, right = run_items([Item(x, ("y",), {"y": []}), item(1)], Doubler(), max_batch_size=4)
    assert isinstance(wrong, ValueError)
    assert values(right)["y"] == [[2, 2]]


def test_texts_of_unequal_lengths_are_one_run_and_get_back_their_own_length() -> None:
    run = Texts()
    answers = run_items([text([1]), text([2, 3, 4]), text([5, 6], [8, 9])], run, max_batch_size=4)
    assert run.runs == [
        {
            "ids": [[1, 7, 7], [2, 3, 4], [5, 6, 7], [8, 9, 7]],
            "mask": [[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]],
        }
    ]
    assert [values(answer) for answer in answers] == [
        {"y": [[[1, -1]]], "sum": [[1]]},
        {"y": [[[2, -2], [3, -3], [4, -4]]], "sum": [[9]]},
        {"y": [[[5, -5], [6, -6]], [[8, -8], [9, -9]]], "sum": [[11], [17]]},
    ]
    for answer in answers:
        assert answer["y"].flags.c_contiguous
        assert answer["y"].dtype == np.int32


def test_rows_that_are_wanted_are_counted_in_what_was_sent() -> None:
    """Of [2, 2] tokens rows 1 and 2 are the first text's second token, the second's first."""
    run = Texts()
    long, short = run_items(
        [text([1, 2, 3, 4]), text([5, 6], [8, 9], outputs=("y",), picked={"y": [1, 2]})],
        run,
        max_batch_size=4,
    )
    assert len(run.runs) == 1
    assert values(short) == {"y": [[6, -6], [8, -8]]}
    assert values(long)["sum"] == [[10]]


@pytest.mark.parametrize(
    "padding",
    [
        PaddedTensors({"ids": 8, "mask": 0}, ("y",)),  # with something else
        PaddedTensors({"ids": 7}, ("y",)),
        PaddedTensors({}, ()),
    ],
)
def test_only_what_may_be_filled_up_alike_is(padding: PaddedTensors) -> None:
    run = Texts()
    one, two = run_items([text([1]), text([2, 3, 4], padding=padding)], run, max_batch_size=4)
    assert run.shapes == [(1, 1), (1, 3)]
    assert values(one)["sum"] == [[1]]
    assert values(two)["sum"] == [[9]]


def test_requests_are_filled_up_where_that_costs_less_than_a_run() -> None:
    run = Texts()
    answers = run_items(
        [text([1]), text([1] * 8), text([2] * 5, [3] * 5), text([4] * 8)], run, max_batch_size=8
    )
    assert run.shapes == [(5, 8)]
    assert [values(answer)["sum"] for answer in answers] == [[[1]], [[8]], [[10], [15]], [[32]]]


@pytest.mark.parametrize(
    ("items", "shapes"),
    [
        ([1 + OWN_RUN, 1], [(2, 1 + OWN_RUN)]),
        ([2 + OWN_RUN, 1], [(1, 2 + OWN_RUN), (1, 1)]),
        ([1 + OWN_RUN // 3, 1, 1, 1], [(4, 1 + OWN_RUN // 3)]),
        ([2 + OWN_RUN // 3, 1, 1, 1], [(1, 2 + OWN_RUN // 3), (3, 1)]),
    ],
)
@pytest.mark.parametrize("is_one", [False, True], ids=["of many requests", "of one"])
def test_a_long_text_lengthens_short_ones_by_no_more_than_a_run_costs(
    items: list[int], shapes: list[tuple[int, int]], is_one: bool
) -> None:
    long, *short = [[1] * size for size in items]
    others = [text(*short)] if is_one else [text(one) for one in short]
    run = Texts()
    run_items([text(long), *others], run, max_batch_size=8)
    assert run.shapes == shapes


def test_where_an_output_is_not_as_long_as_was_said_each_is_run_alone() -> None:
    run = Texts()
    wrong = PaddedTensors({"ids": 7, "mask": 0}, ("sum",))
    short, long = run_items(
        [text([1], padding=wrong), text([2, 3, 4], padding=wrong)], run, max_batch_size=4
    )
    assert [inputs["ids"] for inputs in run.runs[1:]] == [[[1]], [[2, 3, 4]]]
    assert values(short) == {"y": [[[1, -1]]], "sum": [[1]]}
    assert values(long)["sum"] == [[9]]


def test_types_are_not_mixed() -> None:
    items = [item(1), Item({"x": np.ones((1, 2), np.float64)}, ("y",))]
    assert groups(items, {0: 1, 1: 1}, 8) == [[0], [1]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([4, 4], [[0], [1]]), ([2, 2, 1], [[0, 1], [2]]), ([3, 1, 4, 1], [[0, 1], [2], [3]])],
)
def test_a_run_never_exceeds_the_maximum(rows: list[int], expected: list[list[int]]) -> None:
    items = [item(count) for count in rows]
    assert groups(items, dict(enumerate(rows)), 4) == expected


def test_a_request_beyond_the_maximum_is_refused_alone() -> None:
    run = Doubler()
    too_big, fine = run_items([item(5), item(1)], run, max_batch_size=4)
    assert isinstance(too_big, RequestError)
    assert "the batch size is 5, but at most 4 is expected" in str(too_big)
    assert values(fine) == {"y": [[2, 2]]}


def test_inputs_of_unequal_batch_sizes_are_refused() -> None:
    unequal = Item({"x": np.ones((1, 2)), "z": np.ones((2, 2))}, ("y",))
    (answer,) = run_items([unequal], Doubler(), max_batch_size=4)
    assert isinstance(answer, RequestError)
    assert "'x' has 1, 'z' has 2" in str(answer)


def test_without_batching_every_request_is_a_run() -> None:
    run = Doubler()
    answers = run_items([item(2), item(2)], run, max_batch_size=0)
    assert [shape for shape, _ in run.runs] == [(2, 2), (2, 2)]
    assert len(answers) == 2


def test_only_the_culprit_of_a_failed_run_fails() -> None:
    run = Doubler()
    answers = run_items([item(1), item(1, fill=13), item(2)], run, max_batch_size=8)
    assert [shape[0] for shape, _ in run.runs] == [4, 1, 1, 2]
    assert values(answers[0]) == {"y": [[2, 2]]}
    assert isinstance(answers[1], ArithmeticError)
    assert values(answers[2]) == {"y": [[2, 2], [2, 2]]}
    alone = Doubler()
    (answer,) = run_items([item(1, fill=13)], alone, max_batch_size=8)
    assert isinstance(answer, ArithmeticError)
    assert len(alone.runs) == 1, "it is not run again"


def test_a_run_is_asked_for_what_its_requests_want() -> None:
    run = Doubler()
    first, second = run_items(
        [item(1, outputs=("y",)), item(1, outputs=("n", "y"))], run, max_batch_size=8
    )
    assert run.runs == [((2, 2), ("y", "n"))]
    assert values(first) == {"y": [[2, 2]]}
    assert values(second) == {"n": [2], "y": [[2, 2]]}


def test_an_empty_batch_takes_part() -> None:
    empty, full = run_items([item(0), item(1)], Doubler(), max_batch_size=8)
    assert values(empty) == {"y": []}
    assert values(full) == {"y": [[2, 2]]}


def test_an_output_without_the_batch_dimension_is_an_error() -> None:
    def total(inputs: Mapping[str, Array], _outputs: Sequence[str]) -> dict[str, Array]:
        return {"y": inputs["x"].sum()[None]}

    (answer,) = run_items([item(2)], total, max_batch_size=8)
    assert "output 'y' has shape [1], but a first dimension of 2 was expected" in str(answer)


def test_outputs_are_contiguous() -> None:
    def turned(inputs: Mapping[str, Array], _outputs: Sequence[str]) -> dict[str, Array]:
        return {"y": np.ones((3, len(inputs["x"]))).T}

    for maximum in (0, 8):
        for answer in run_items([item(2), item(1)], turned, max_batch_size=maximum):
            assert answer["y"].flags.c_contiguous
    (scalar,) = run_items([item(1)], lambda *_: {"y": np.float32(1)[...]}, max_batch_size=0)
    assert scalar["y"].shape == ()


class TestConform:
    SPECS = {
        "x": FileTensor("x", "TYPE_FP32", (-1, 3)),
        "s": FileTensor("s", "TYPE_FP32", ()),
        "u": FileTensor("u", "TYPE_FP32", (), has_rank=False),
    }

    @pytest.mark.parametrize("shape", [(1,), (2,), (1, 1), (3, 2), ()])
    def test_a_scalar_loses_its_dimension_and_an_unknown_rank_is_passed_on(
        self, shape: tuple[int, ...]
    ) -> None:
        assert conform({"u": np.ones(shape)}, self.SPECS)["u"].shape == shape
        assert conform({"s": np.ones([1] * len(shape))}, self.SPECS)["s"].shape == ()

    @pytest.mark.parametrize("shape", [(2, 4), (3,), (1, 1, 3), ()])
    def test_other_shapes_and_unknown_tensors_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(RequestError, match=r"input 'x' has shape \[.*\], but .* \[-1, 3\]\."):
            conform({"x": np.ones(shape)}, self.SPECS)
        with pytest.raises(RequestError, match=r"input 's' has shape \[2.*\], but .* \[\]\."):
            conform({"s": np.ones((2, *shape))}, self.SPECS)
        with pytest.raises(RequestError, match=r"input 'q' is unknown, .* expects x, s, u"):
            conform({"q": np.ones(shape)}, self.SPECS)
