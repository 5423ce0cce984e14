"""The family of tables: columns, missing values, and what a row is answered."""

from __future__ import annotations

from typing import Any

import jsonschema
import numpy as np
import pytest

from clients.annotations import json_schema
from clients.errors import BadPayload, ClientDisabled
from clients.request import Request, SentRows
from clients.triton.server import Signature, Tensors, TensorSpec
from tests.support.family_bench import Bench, bench

__all__ = ["bench"]  # the fixture

LABEL = TensorSpec("label", "INT64", (-1,))
SHARES = TensorSpec("probabilities", "FP32", (-1, 3))


def table(inputs: dict[str, tuple[str, tuple[int, ...]]], *outputs: TensorSpec) -> Signature:
    specs = (TensorSpec(name, *one) for name, one in inputs.items())
    return Signature(8, tuple(specs), outputs or (LABEL, SHARES), shares_runs=True)


ONE = table({"x": ("FP32", (-1, 3))})
EACH = table({
    "age": ("FP32", (-1, 1)), "city": ("BYTES", (-1, 1)), "rooms": ("INT64", (-1,)),
})  # fmt: skip


@pytest.fixture
def seen(bench: Bench) -> list[Tensors]:
    """What the model is run with; it answers class 1, with shares of 1/8, 5/8 and 2/8."""
    seen: list[Tensors] = []

    def run(inputs: Tensors) -> Any:
        seen.append(inputs)
        rows = len(next(iter(inputs.values())))
        shares = np.tile(np.array([[0.125, 0.625, 0.25]], np.float32), (rows, 1))
        return {"label": np.ones(rows, np.int64), "probabilities": shares}

    bench.answers(run)
    return seen


def test_a_column_each_is_sent_in_its_own_type(bench: Bench, seen: list[Tensors]) -> None:
    """In the order of the key for rows, by name for objects; `missing` has the author's values."""
    bench.set_up('family = "table"\ncolumns = ["rooms", "city", "age"]\n[missing]\nrooms = 2', EACH)
    answer = {"label": "b", "probabilities": {"a": 0.125, "b": 0.625, "c": 0.25}}
    assert bench.ask({"age": None, "city": "Rome", "rooms": None}) == answer
    (inputs,) = seen
    assert {name: (one.dtype.name, one.shape) for name, one in inputs.items()} == {
        "rooms": ("int64", (1,)), "city": ("object", (1, 1)), "age": ("float32", (1, 1)),
    }  # fmt: skip
    assert (inputs["rooms"][0], inputs["city"][0, 0]) == (2, b"Rome")
    assert np.isnan(inputs["age"][0, 0])
    bench.ask([4, "Oslo", 30.5])
    assert [seen[1][name].ravel()[0] for name in ("rooms", "city", "age")] == [4, b"Oslo", 30.5]


def test_categories_are_sent_as_their_numbers(bench: Bench, seen: list[Tensors]) -> None:
    columns = 'columns = { age = "number", home = ["rent", "own"], debt = "number" }'
    bench.set_up(f'family = "table"\n{columns}', ONE)
    bench.ask({"age": 30, "home": "own", "debt": 5})
    bench.ask([30, None, 5])
    assert seen[0]["x"].tolist() == [[30, 1, 5]]
    assert np.isnan(seen[1]["x"][0, 1])
    with pytest.raises(BadPayload, match="`home` is 'castle'") as caught:
        bench.ask([30, "castle", 5])
    assert caught.value.hint == "expected one of rent, own"
    kind = jsonschema.Draft202012Validator(json_schema(bench.client().payload_type))
    rows = [{"age": 30, "home": home, "debt": None} for home in ("own", None, 1)]
    assert [kind.is_valid(one) for one in (*rows, [30, "own", 5])] == [True, True, False, True]


def test_a_single_input_has_the_name_that_its_author_gives(
    bench: Bench, seen: list[Tensors]
) -> None:
    columns = 'columns = { review = "text" }'
    bench.set_up(f'family = "table"\n{columns}', table({"input": ("BYTES", (-1, 1))}))
    bench.ask({"review": "good"})
    assert seen[0]["input"].tolist() == [[b"good"]]
    assert bench.client().media == {"text": "review"}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"age": 1, "city": "a"}, "lacks 'rooms'"),
        ({"age": 1, "city": "a", "rooms": 1, "Rooms": 1}, "unknown field 'Rooms'"),
        ({"age": "1", "city": "a", "rooms": 1}, "`age` is '1'"),
        ({"age": 1, "city": 5, "rooms": 1}, "`city` is 5"),
        ({"age": 1, "city": None, "rooms": 1}, "`city` is missing, for which BYTES has no value"),
        ({"age": 1, "city": "a", "rooms": 1.5}, "`rooms` is 1.5"),
        ({"age": 1e39, "city": "a", "rooms": 1}, "`age` is 1e\\+39"),
        ([1, "a"], "2 cells, not 3"),
    ],
)
def test_what_does_not_suit_a_column_is_refused_by_its_name(
    bench: Bench, seen: list[Tensors], payload: Any, words: str
) -> None:
    bench.set_up('family = "table"', EACH)
    with pytest.raises(BadPayload, match=words):
        bench.ask(payload)
    assert seen == []


@pytest.mark.parametrize(
    ("header", "name"),
    [("age,town,rooms", "town"), ("Rooms,age,city", "Rooms"), ("age,city,rooms,more", "more")],
)
def test_a_header_with_a_wrong_name_is_no_row(bench: Bench, header: str, name: str) -> None:
    bench.set_up('family = "table"', EACH)
    sent = SentRows([header.split(","), ["1", "a", "2"]])
    with (
        Request().active(),
        pytest.raises(BadPayload, match=f"'{name}', which no column is") as caught,
    ):
        bench.client().payloads_of_rows(sent)
    assert caught.value.hint == "columns: age, city, rooms"


@pytest.mark.parametrize(
    ("toml", "outputs", "labels", "came", "expected"),
    [
        ("", [TensorSpec("y", "FP32", (-1, 1))], "", {"y": np.float32([[0.1]])}, 0.1),
        ("", [TensorSpec("y", "FP32", (-1,))], "", {"y": np.float32([1e6])}, 1e6),
        ("", [TensorSpec("y", "FP64", (-1, 2))], "", {"y": np.array([[0.1, 2]])}, [0.1, 2]),
        ("", [LABEL], "", {"label": np.array([-1])}, -1),
        ("", [LABEL], "no\nyes\n", {"label": np.array([1])}, "yes"),
        ("", [LABEL], "no\nyes\n", {"label": np.array([7])}, 7),
        ("", [TensorSpec("l", "BYTES", (-1, 1))], "", {"l": np.array([[b"ja"]], object)},
         "ja"),
        ("", [LABEL, TensorSpec("scores", "FP32", (-1, 1))], "",
         {"label": np.array([[1]]), "scores": np.float32([[0.2]])}, {"label": 1, "scores": 0.2}),
        ("", [LABEL, SHARES, TensorSpec("leaf", "INT64", (-1, 2))], "",
         {"label": np.array([2]), "probabilities": np.float32([[0, 0.25, 0.75]]),
          "leaf": np.array([[3, 4]])},
         {"label": 2, "probabilities": [0, 0.25, 0.75], "leaf": [3, 4]}),
        ("", [SHARES], "a\nb\nc\n", {"probabilities": np.float32([[0, 0.25, 0.75]])},
         {"label": "c", "probabilities": {"a": 0, "b": 0.25, "c": 0.75}}),
        ("softmax = true", [TensorSpec("y", "FP64", (-1, 2))], "no\nyes\n",
         {"y": np.log(np.array([[1.0, 3.0]]))},
         {"label": "yes", "probabilities": pytest.approx({"no": 0.25, "yes": 0.75})}),
        # The model's classes are 1, 2 and 3, as labels.txt has them: its own word counts.
        ("", [LABEL, SHARES], "1\n2\n3\n",
         {"label": np.array([1]), "probabilities": np.float32([[0.25, 0.5, 0.25]])},
         {"label": 1, "probabilities": {"1": 0.25, "2": 0.5, "3": 0.25}}),
    ],
)  # fmt: skip
def test_an_answer_has_the_class_and_numbers_by_name(
    bench: Bench, toml: str, outputs: list[TensorSpec], labels: str, came: Any, expected: Any
) -> None:
    bench.set_up(f'family = "table"\n{toml}', table({"x": ("FP32", (-1, 3))}, *outputs), labels)
    if not labels:
        (bench.folder / "labels.txt").unlink()
    bench.answers(lambda inputs: dict(came))
    assert bench.ask([1, 2, 3]) == expected


@pytest.mark.parametrize(
    ("toml", "signature", "words"),
    [
        ("", table({"x": ("FP32", (-1, 3, 8))}), "`x` [-1, 3, 8] is no row of cells"),
        ("", table({"x": ("FP32", (-1, -1)), "y": ("FP32", (-1, 1))}), "`x` [-1, -1] is no row"),
        ('columns = ["a", "b"]', ONE, "`columns` has 2: a, b; the model takes 3"),
        ('columns = ["age", "city", "room"]', EACH, 'the inputs are "age", "city", "rooms"'),
        ('columns = { age = "text", city = "text", rooms = "number" }', EACH,
         "says that age is 'text', but the model takes FP32; write \"number\""),
        ('columns = { age = "number", city = ["a"], rooms = "number" }', EACH, 'write "text"'),
        ('columns = { age = "int" }', ONE, "write names, or a table of names and types"),
        ("missing = { town = 1 }", EACH, '`missing` names "town"; the columns are age, city'),
        ('missing = { age = "old" }', EACH, "has 'old' for age; write numbers"),
        ("", table({"x": ("FP32", (-1, 3))}, LABEL, TensorSpec("p", "FP32", (-1, 2))),
         "names a file of 3 lines"),
    ],
)  # fmt: skip
def test_a_mistake_disables_the_model_with_a_sentence(
    bench: Bench, toml: str, signature: Signature, words: str
) -> None:
    bench.set_up(f'family = "table"\n{toml}', signature)
    registry = bench.registry()
    said = str(registry.broken)
    if not registry.broken:
        with pytest.raises(ClientDisabled) as caught:
            bench.ask({})
        said = caught.value.message
    assert words in said
