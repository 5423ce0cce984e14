"""Answers with what Triton answers; /ping is 200 without a look at it."""

import json
import os
import urllib.request

import flask

app = flask.Flask(__name__)


@app.get("/ping")
def ping() -> flask.Response:
    return flask.Response("\n", mimetype="application/json")


@app.post("/invocations")
def invocations() -> dict[str, float]:
    x = json.loads(flask.request.data)["x"]
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [x]}
    url = f"{os.environ['TRITON']}/v2/models/double/infer"
    with urllib.request.urlopen(url, json.dumps({"inputs": [tensor]}).encode()) as answer:
        return {"y": json.load(answer)["outputs"][0]["data"][0]}
