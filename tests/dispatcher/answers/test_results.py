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


def test_top_k_is_settable(client: FlaskClient) -> None:
    response = ask(client, modelname="resnet", payload={"img": image(Red)}, parameters={"top_k": 1})
    assert (response.json or {})["result"] == ["1.000000:7:cock"]


def test_yolov5_answers_pixels_of_the_picture_sent(client: FlaskClient) -> None:
    """100×50 is scaled by 6.4: 64×32 of the square are 10×5, around the middle at 50, 25."""
    response = ask(client, modelname="yolov5", payload={"img": image(Red, (100, 50))})
    assert (response.json or {})["result"] == [[2, 0.75, 45.0, 55.0, 22.5, 27.5, 100, 50]]


def test_yolov5_takes_confidence(client: FlaskClient) -> None:
    response = ask(
        client, modelname="yolov5", payload={"img": image(Red)}, parameters={"confidence": 0.8}
    )
    assert (response.json or {})["result"] == []


def test_bert_fills_the_mask(client: FlaskClient) -> None:
    text = "The world has [MASK] people."
    response = ask(client, modelname="bert_base", payload={"text": text}, parameters={"top_k": 1})
    assert (response.json or {})["result"] == [
        {"token": "The world has many people.", "score": 0.5}
    ]


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


def test_a_list_is_answered_in_order_in_batches_of_the_model(
    client: FlaskClient, server: FakeTriton
) -> None:
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255]] * 2
    response = ask(
        client,
        modelname="resnet",
        payload=[{"img": image(colour)} for colour in colours],
        parameters={"top_k": 1},
    )
    best = [result[0].split(":")[1] for result in (response.json or {})["result"]]
    assert best == ["7", "3", "5"] * 2
    assert sorted(len(call["inputs"]["input"]) for call in server.calls) == [2, 4]  # batches of 4


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


def test_the_version_is_passed_on_and_answered(client: FlaskClient, server: FakeTriton) -> None:
    response = ask(client, modelname="resnet", modelversion=1, payload={"img": image(Red)})
    assert (response.json or {})["modelversion"] == "1"
    assert server.calls[-1]["version"] == "1"


def test_the_model_gets_what_is_left_of_the_time(client: FlaskClient, server: FakeTriton) -> None:
    ask(client, modelname="resnet", payload={"img": image(Red)})
    assert 50 < server.calls[-1]["timeout"] <= 54  # 90 % of 60 s
