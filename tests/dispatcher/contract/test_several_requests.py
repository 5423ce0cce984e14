"""Results, and several models, several requests and JSON lines in one body."""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.errors import DeadlineExceeded
from clients.images.pictures import decode_picture
from clients.request import Once, Request
from dispatcher.codecs.json_request import LARGE_BODY, large_body_lock, parse_object
from tests.support.asking import ask, tensor
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, assert_error, image, resnet, yolov5

TWO = {"modelname": ["resnet", "yolov5"]}


def test_several_models_about_one_payload_decoded_once(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Mock(side_effect=decode_picture)
    monkeypatch.setattr("clients.base.decode_picture", decode)
    names, payload = ["resnet", "yolov5", "nosuch"], {"img": image(Red, (100, 50))}
    response = ask(client, modelname=names, payload=payload, parameters={"top_k": 1})
    assert response.status_code == 200
    results = (response.json or {})["results"]
    assert list(results) == names
    assert results["resnet"] == {"status": 200, "result": ["1.000000:7:cock"]}
    assert results["yolov5"]["result"][0][0] == 2
    assert results["nosuch"]["status"] == 404
    assert results["nosuch"]["error"]["code"] == "unknown_model"
    assert results["nosuch"]["error"]["modelname"] == "nosuch"
    assert decode.call_count == 1


def test_what_another_model_reads_is_waited_for_until_the_deadline() -> None:
    once, payload, reads, may_end = Once(), object(), threading.Event(), threading.Event()

    def read() -> str:
        reads.set()
        may_end.wait(10)
        return "read"

    first = threading.Thread(target=lambda: once(payload, read), daemon=True)
    first.start()
    assert reads.wait(10)
    soon = Request(deadline=time.monotonic() + 0.2)
    with soon.active(), pytest.raises(DeadlineExceeded):
        once(payload, lambda: "again")
    may_end.set()
    first.join(10)
    assert once(payload, lambda: "again") == "read"


def test_several_models_run_at_the_same_time(client: FlaskClient, server: FakeTriton) -> None:
    both = threading.Barrier(2, timeout=5)  # breaks unless both are inside together

    def waiting(run: Any) -> Any:
        def run_together(inputs: Any) -> Any:
            both.wait()
            return run(inputs)

        return run_together

    server.models_run |= {"resnet": waiting(resnet), "yolov5": waiting(yolov5)}
    response = ask(client, modelname=["resnet", "yolov5"], payload={"img": image(Red)})
    assert [one["status"] for one in (response.json or {})["results"].values()] == [200, 200]


def test_a_mixed_list_is_answered_in_order_each_with_its_status(client: FlaskClient) -> None:
    response = ask(
        client,
        requests=[
            {"modelname": "bert_base", "payload": {"text": "[MASK]"}, "parameters": {"top_k": 1}},
            {"modelname": "resnet"},
            {"modelname": "nosuch", "payload": {}},
            {"modelname": "add", "inputs": [tensor()]},
        ],
    )
    results = (response.json or {})["results"]
    assert [one["status"] for one in results] == [200, 400, 404, 200]
    assert results[0]["result"] == [{"token": "many", "score": 0.5}]
    assert "`payload` is missing" in results[1]["error"]["message"]
    assert results[3]["outputs"][0]["data"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"requests": []}, ["list of 0"]),
        ({"requests": {}}, ["`requests`"]),
        ({"requests": [], "modelname": "x"}, ["beside `requests`"]),
        ({"modelname": [], "payload": {}}, ["`modelname` is a list of 0"]),
        ({"modelname": ["resnet", 5], "payload": {}}, ["`modelname[1]` is 5"]),
        ({"modelname": ["resnet", "resnet"], "payload": {}}, ["twice"]),
        ({**TWO, "payload": {}, "parameters": {"tokp": 3}}, ["'tokp'", "none of the models"]),
        (
            {"modelname": ["resnet", "bert_base", "nosuch"], "payload": {"img": "", "top_k": 3}},
            ["'top_k'", "none of the models", "img, inputs"],
        ),
    ],
)
def test_several_that_cannot_be_read(client: FlaskClient, body: Any, words: list[str]) -> None:
    response = client.post("/invocations", json=body)
    assert response.status_code == 400
    for word in words:
        assert word in response.text


def test_one_large_body_of_json_is_read_at_a_time_and_small_ones_beside_it() -> None:
    """Python's parser keeps its lock to itself: several in a row leave nobody else a word."""
    large = json.dumps({"text": "a" * LARGE_BODY}).encode()
    came = []
    with large_body_lock:
        other = threading.Thread(target=lambda: came.append(parse_object(large)))
        other.start()
        assert parse_object(b'{"text": "a"}') == {"text": "a"}
        other.join(0.2)
        assert not came
    other.join(10)
    assert came == [{"text": "a" * LARGE_BODY}]


def test_a_large_body_waits_for_others_until_its_deadline(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.codecs.json_request.LARGE_BODY", 10)
    large = {"modelname": "bert_base", "payload": {"text": "a [MASK]"}}
    with large_body_lock:
        response = ask(client, "/invocations?timeout_ms=200", **large)
        path, line = "/invocations?timeout_ms=200", json.dumps(large)
        lines = client.post(path, data=line, content_type="application/jsonlines")
    assert_error(response, 504, "deadline_exceeded", "other large bodies")
    assert json.loads(lines.text)["error"]["code"] == "deadline_exceeded"
    assert ask(client, **large).status_code == 200, "nobody holds it any more"


def test_the_ready_made_models_answer(client: FlaskClient) -> None:
    """ResNet as Triton writes classes, best first; BERT fills each mask by itself."""
    response = ask(client, modelname="resnet", payload={"img": image([255, 102, 51])})
    best = ["1.000000:7:cock", "0.400000:3:tiger shark, Galeocerdo cuvieri"]
    best.append("0.200000:5:electric ray, crampfish, numbfish, torpedo")
    assert response.json == {"modelname": "resnet", "result": best}
    sure, one = {"confidence": 0.8}, {"top_k": 1}
    response = ask(client, modelname="yolov5", payload={"img": image(Red)}, parameters=sure)
    assert (response.json or {})["result"] == []
    masks = {"text": "[MASK] of the [MASK]."}
    response = ask(client, modelname="bert_base", payload=masks, parameters=one)
    assert (response.json or {})["result"] == [
        [{"token": "many of the [MASK].", "score": 0.5}],
        [{"token": "[MASK] of the many.", "score": 0.5}],
    ]


def test_a_list_is_run_one_by_one_where_there_are_no_batches_or_rows_may_change_each_other(
    client: FlaskClient, server: FakeTriton
) -> None:
    """yolov5 has no `dynamic_batching`, by which its author says that they do not."""
    ask(client, modelname="yolov5", payload=[{"img": image(Red)}] * 3)
    assert [len(call["inputs"]["images"]) for call in server.calls] == [1, 1, 1]
    response = ask(client, modelname="double", payload=[{"numbers": [1, 2]}, {"numbers": [3]}])
    assert (response.json or {})["result"] == [[2, 4], [6]]


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
