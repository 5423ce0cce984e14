"""Compares what a server answers now with what was captured."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clients.tensors.agreement import compare, worst_of
from tool.commands.invoke import describe_error
from tool.replay.asking import ReplayedAnswer
from tool.replay.captured import CapturedLine, parse_json

ERROR = "error"
NPY = "application/x-npy"
FORMS = {NPY: "values", "image/png": "pictures", "image/jpeg": "pictures"}  # whatever the model is
FIRST_ERROR = 400
# Fields of an answer that say who answered, and when.
ABOUT = ("modelname", "modelversion", "model_name", "model_version", "model", "id", "created")


@dataclass(frozen=True)
class ReplayedRequest:
    """A captured request, what is answered to it now, and how both answers agree."""

    line: CapturedLine
    answer: ReplayedAnswer
    verdict: str  # that of `Agreement`, or `ERROR`
    words: str  # the worst difference, or the error
    difference: float = math.inf  # in limits
    # Of the captured answer and the one now, the result that differs the most
    results: tuple[Any, Any] = (None, None)
    place: int = 0  # of that result, where a list was sent


def judge(line: CapturedLine, expected: bytes, answer: ReplayedAnswer) -> ReplayedRequest:
    """Compare an answer with the captured one."""
    was, now = line.status, answer.status
    if was >= FIRST_ERROR:
        words, gap = f"the status is {now}, not {was}", 0.0 if was == now else math.inf
        return ReplayedRequest(line, answer, "different" if gap else "same", words, gap)
    if not 0 < now < FIRST_ERROR:
        words = " ".join("; ".join(describe_error(now or "no answer", answer.body)).split())
        return ReplayedRequest(line, answer, ERROR, words)
    sent = parse_json(line.sent["data"])
    payload = sent.get("payload", sent.get("instances")) if isinstance(sent, Mapping) else None
    one, other = (
        results_of(read_answer(*side), several=isinstance(payload, list))
        for side in ((line.answer_type, expected), (answer.content_type, answer.body))
    )
    if len(one) != len(other):
        words = f"there are {len(other)} results, not {len(one)}"
        return ReplayedRequest(line, answer, "different", words, results=(one, other))
    by_form = FORMS.get(line.answer_type.partition(";")[0])
    kind = by_form or line.kinds.get(line.model, "values")
    pairs = list(zip(one, other, strict=True)) or [(("", ""), ("", ""))]
    found = [
        compare(line.kinds.get(name, kind), first, second, confidence=line.confidence)
        for (name, first), (_, second) in pairs
    ]
    worst = worst_of(found)
    place = found.index(worst)
    results = pairs[place][0][1], pairs[place][1][1]
    return ReplayedRequest(
        line, answer, worst.verdict, worst.worst, worst.difference, results, place
    )


def read_answer(media_type: str, body: bytes) -> Any:
    """Return an answer as JSON; a text where it cannot be read."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return {"picture": base64.b64encode(body).decode()}
    text = body.decode(errors="replace")
    try:
        if kind == NPY:
            return np.load(io.BytesIO(body), allow_pickle=False).tolist()
        if kind == "text/csv":
            return [[*map(read_cell, row)] for row in csv.reader(io.StringIO(text))]
        if kind == "text/event-stream" or "lines" in kind or "ndjson" in kind:
            lines = (one.removeprefix("data:") for one in text.splitlines() if one.strip())
            return {"results": [json.loads(one) for one in lines]}
        return json.loads(text)
    except (ValueError, csv.Error):
        return text


def read_cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def results_of(document: Any, *, several: bool, name: str = "") -> Sequence[tuple[str, Any]]:
    """Return the results in an answer, each as its model's client has made it, with its model."""
    if not isinstance(document, Mapping):
        return [(name, document)]
    name = name or str(document.get("modelname", ""))
    if "result" in document:
        result = document["result"]
        each = result if several and isinstance(result, list) else [result]
        return [(name, one) for one in each]
    items = document.get("results")
    if isinstance(items, Mapping | list):
        named = items.items() if isinstance(items, Mapping) else (("", item) for item in items)
        return [one for name, item in named for one in results_of(item, several=False, name=name)]
    return [(name, {key: value for key, value in document.items() if key not in ABOUT})]
