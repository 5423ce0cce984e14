"""Results of the ready-made models, with a Triton that is a dictionary of functions."""

from __future__ import annotations

import numpy as np
from flask.testing import FlaskClient

from tests.support.answers import ask
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, image

# Answers


def test_resnet_answers_as_triton_writes_classes_best_first(client: FlaskClient) -> None:
    response = ask(client, modelname="resnet", payload={"img": image([255, 102, 51])})
    assert response.status_code == 200
    assert response.json == {
        "modelname": "resnet",
        "result": [
            "1.000000:7:cock",
            "0.400000:3:tiger shark, Galeocerdo cuvieri",
            "0.200000:5:electric ray, crampfish, numbfish, torpedo",
        ],
    }


def test_yolov5_takes_confidence(client: FlaskClient) -> None:
    response = ask(
        client, modelname="yolov5", payload={"img": image(Red)}, parameters={"confidence": 0.8}
    )
    assert (response.json or {})["result"] == []


def test_bert_fills_each_mask_by_itself(client: FlaskClient) -> None:
    response = ask(
        client,
        modelname="bert_base",
        payload={"text": "[MASK] of the [MASK]."},
        parameters={"top_k": 1},
    )
    assert (response.json or {})["result"] == [
        [{"token": "many of the [MASK].", "score": 0.5}],
        [{"token": "[MASK] of the many.", "score": 0.5}],
    ]


def test_a_list_is_run_one_by_one_where_rows_may_change_each_other(
    client: FlaskClient, server: FakeTriton
) -> None:
    """yolov5 has no `dynamic_batching`, by which its author says that they do not."""
    ask(client, modelname="yolov5", payload=[{"img": image(Red)}] * 3)
    assert [len(call["inputs"]["images"]) for call in server.calls] == [1, 1, 1]


def test_sentences_of_different_length_share_a_batch(
    client: FlaskClient, server: FakeTriton
) -> None:
    texts = ["A [MASK].", "A much longer [MASK] than the first, with a [MASK]."]
    response = ask(client, modelname="bert_base", payload=[{"text": text} for text in texts])
    short, long = (response.json or {})["result"]
    assert short[0]["token"] == "A many."
    assert [len(mask) for mask in long] == [5, 5]
    (call,) = server.calls
    attention = call["inputs"]["attention_mask"]
    assert attention.dtype == np.int64
    assert attention.sum(1).tolist() == [5, 14]  # what pads the first is not looked at


def test_a_client_without_batches_answers_lists_too(client: FlaskClient) -> None:
    response = ask(client, modelname="double", payload=[{"numbers": [1, 2]}, {"numbers": [3]}])
    assert (response.json or {})["result"] == [[2, 4], [6]]


def test_the_model_gets_what_is_left_of_the_time(client: FlaskClient, server: FakeTriton) -> None:
    ask(client, modelname="resnet", payload={"img": image(Red)})
    assert 50 < server.calls[-1]["timeout"] <= 54  # 90 % of 60 s
