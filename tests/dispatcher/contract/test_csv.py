"""Rows of a table: in CSV, in JSON, and as answers."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from clients.request import SentRows
from clients.triton.server import Signature, TensorSpec
from dispatcher.codecs import csv_rows, json_request
from dispatcher.settings import read_settings
from tests.support.application import serve_built_in
from tests.support.asking import ADD, stand_in, tensor
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Double, assert_error

CSV = "text/csv"
OF_THE_BODY = ("is no CSV", "has no row", "UTF-16", "UTF-8", "line 2 of the body has more")


def rows(client: FlaskClient, model: str, body: str | bytes, said: str = CSV, **more: Any) -> Any:
    response = client.post(f"/infer/{model}", data=body, content_type=said, **more)
    assert response.status_code == 200, response.text
    return (response.json or {})["result"]


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (CSV, "1,2,3\n4,5.5,6e1\n"),
        ("text/csv; charset=utf-8", "1,2,3\r\n4,5.5,6e1"),
        (CSV, "age,income,debt\n1,2,3\n\n4,5.5,60\n"),
        ("text/csv; header=present", "1,2,3\n1,2,3\n4,5.5,60\n"),
        (CSV, '\ufeff 1 , 2,"3"\n4,5.5,60\n'),
        (CSV, "A_2,A_0,A_1\n3,1,2\n60,4,5.5\n"),
    ],
)
def test_rows_are_the_model_s_columns_with_or_without_a_header(
    client: FlaskClient, server: FakeTriton, said: str, body: str
) -> None:
    """RFC 4180; its parameter `header` says what the cells do not."""
    assert rows(client, "add", body, said) == [[1, 2, 3], [4, 5.5, 60]]
    assert sum(len(call["inputs"]["A"]) for call in server.calls) == 2


def test_an_empty_cell_is_no_number_and_none_in_the_answer(client: FlaskClient) -> None:
    """As programs write it: pandas, NumPy, R and databases."""
    response = client.post(
        "/infer/add", data="1,,NaN\nNA,null,-inf", content_type=CSV, headers={"Accept": CSV}
    )
    assert (response.text, response.content_type) == ("1.0,,\n,,\n", "text/csv; charset=utf-8")
    assert response.headers["X-Non-Finite-Values"] == "5"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("1,2,3\n1,2\n", ["row[1]: the row has 2 cells, not 3"]),
        ("1;2;3\n", ["the row has 1 cells, not 3: ['1;2;3']", "separated by commas"]),
        ("1,2,3\n1,2,x\n", ["row[1]: `A_2` is 'x'", "a number with the digits 0 to 9"]),
        ("1,2,1_000\n", ["row[0]: `A_2` is '1_000'"]),
        ("1,2,1e400\n", ["row[0]: `A_2` is inf"]),
        ("a,b,c\n", ["no row below the header"]),
        ("a,b,a\n1,2,3\n", ["the header has a name twice"]),
        ('1,2,"3\n', ["is no CSV", "written twice"]),
        ("\n\n", ["has no row"]),
        ("", ["has no row"]),
        pytest.param(
            f"1,2,3\n1{10**6 * ','},\n",
            ["line 2 of the body has more than 1,000,000 cells"],
            id="a line of commas",
        ),
        ("1,2,3".encode("utf-16"), ["UTF-16"]),
        ("größe,2".encode("latin-1"), ["UTF-8"]),
    ],
)
def test_a_table_that_does_not_suit_is_refused(
    client: FlaskClient, server: FakeTriton, body: str | bytes, words: list[str]
) -> None:
    response = client.post("/infer/add", data=body, content_type=CSV)
    code = "bad_body" if words[0].startswith(OF_THE_BODY) else "bad_payload"
    assert_error(response, 400, code, *words)
    assert server.calls == []


@pytest.mark.parametrize("header", ["", "text\n"])
def test_texts_come_as_rows_with_commas_quotes_and_line_breaks(
    client: FlaskClient, server: FakeTriton, header: str
) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["a [MASK], b"], ['"[MASK]"\nb']])
    result = rows(client, "bert_base", header + out.getvalue(), query_string={"top_k": 1})
    assert [one[0]["token"] for one in result] == ["a many, b", '"many"\nb']
    response = client.post("/infer/bert_base", data="a [MASK], b", content_type=CSV)
    assert_error(response, 400, "bad_payload", "row[0]: the row has 2 cells, not 1", "quotes")


def test_a_pair_of_texts_is_two_cells(tmp_path: Path) -> None:
    class Pairs(Double):
        media = {"text": "text"}
        pair_fields = ("text", "text_pair")

    pairs = Pairs(Environment(FakeTriton(), tmp_path))
    expected = [{"text": "a", "text_pair": "b"}]
    assert pairs.payloads_of_rows(SentRows([["a", "b"]])) == expected
    assert pairs.payloads_of_rows(SentRows([["text_pair", "text"], ["b", "a"]])) == expected
    assert pairs.payloads_of_rows(SentRows([["a"]])) == [{"text": "a"}]


def test_a_model_of_cubes_takes_no_rows(client: FlaskClient, server: FakeTriton) -> None:
    cubes = TensorSpec("IN", "FP32", (-1, 2, 2))
    server.signatures["cubes"], server.models_run["cubes"] = Signature(4, (cubes,)), dict
    response = client.post("/infer/cubes", data="1,2\n", content_type=CSV)
    assert_error(response, 415, "unsupported_media", "`IN` [-1, 2, 2] is no row", "x-npy")


def test_a_model_of_any_width_takes_as_many_columns_as_come(
    client: FlaskClient, server: FakeTriton
) -> None:
    sums = TensorSpec("IN", "FP32", (-1, -1))
    server.signatures["sums"] = Signature(4, (sums,), shares_runs=True)
    server.models_run["sums"] = lambda inputs: {"OUT": inputs["IN"].sum(1)}  # type: ignore[dict-item]
    assert rows(client, "sums", "a,b\n1,2\n3,4\n") == [3, 7]
    assert len(server.calls) == 1
    response = client.post("/infer/sums", data="1,2\n3\n", content_type=CSV)
    assert_error(response, 400, "bad_payload", "row[1]: the row has 1 cells, not 2")
    response = client.post("/infer/sums", data="1," * 16_384 + "1\n", content_type=CSV)
    assert_error(response, 400, "bad_payload", "the row has 16385 cells", "at most 16,384")


def test_a_body_of_too_many_cells_is_refused_before_it_is_read(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_request, "total_memory", lambda: 4 * 100 * csv_rows.CELL)
    response = client.post("/infer/add", data="," * 101, content_type=CSV)
    assert_error(response, 400, "bad_body", "too much memory", "fewer values")


@pytest.mark.parametrize(
    "body",
    [
        {"modelname": "add", "payload": [[1, 2, 3], [4, None, 6]]},
        {"modelname": "add", "instances": [[1, 2, 3], [4, None, 6]]},
        [[1, 2, 3], [4, None, 6]],
    ],
)
def test_rows_of_json_are_answered_alike(client: FlaskClient, body: Any) -> None:
    """A container before this one in a pipeline sends lists alone."""
    response = client.post("/invocations?modelname=add", json=body)
    assert (response.json or {})["result"] == [[1, 2, 3], [4, None, 6]]
    many = client.post("/infer/add", json=[[1, 2, 3]] * 1001).json or {}
    assert many["result"] == [[1, 2, 3]] * 1001
    assert_error(
        client.post("/infer/add", json=[[1, 2, "3"]]), 400, "bad_payload", "row[0]: `A_2` is '3'"
    )


def test_any_answer_can_be_a_row(client: FlaskClient, server: FakeTriton) -> None:
    """Its values in their order, a list's results each on a line."""
    accepts = {"Accept": CSV}
    two = [{"text": "a [MASK]"}, {"text": 'b, "[MASK]"'}]
    body = {"payload": two, "parameters": {"top_k": 1}}
    response = client.post("/infer/bert_base", json=body, headers=accepts)
    assert [*csv.reader(io.StringIO(response.text))] == [["a many", "0.5"], ['b, "many"', "0.5"]]
    tensors = client.post("/infer/add", json={"inputs": [tensor(shape=(2, 3), data=(1, 2, 3) * 2)]},
                          headers=accepts)  # fmt: skip
    assert tensors.text == "1.0,2.0,3.0\n1.0,2.0,3.0\n"
    server.signatures["add"] = replace(ADD, decoupled=True)
    asked = {"inputs": [tensor()]}
    assert client.post("/infer/add", json=asked, headers=accepts).text == "1.0,2.0,3.0\n"
    assert client.post("/invocations", json={"modelname": "noted", "payload": {}},
                       headers=accepts).text == ",,1.5\n"  # fmt: skip


def test_the_platform_s_variable_is_the_type_of_answers(built_in: Registry, tmp_path: Any) -> None:
    """Of the platform's own containers: where a caller accepts anything, and it can be had."""
    settings = read_settings({"SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "text/csv"})
    client = serve_built_in(built_in, Environment(stand_in(), tmp_path), settings)

    def answer(body: str, said: str = CSV, **headers: str) -> str:
        return client.post("/infer/add", data=body, content_type=said, headers=headers).text

    assert answer("1,2,3\n") == answer("1,2,3\n", Accept="*/*") == "1.0,2.0,3.0\n"
    assert answer("1,2,3\n", Accept="application/json").startswith("{")
    lines = answer('{"payload": [[1, 2, 3]]}\n', "application/jsonlines")
    assert '"result":[[1.0,2.0,3.0]]' in lines
