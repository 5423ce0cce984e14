"""Asks a server what was captured, in order: at the captured pace, or as fast as it answers."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar
from urllib.error import HTTPError
from urllib.parse import quote

from dispatcher.codecs.metadata import ATTRIBUTES, REPLAY, format_attributes, read_attributes
from tool.commands.invoke import send
from tool.replay.captured import CapturedLine, own_time, parse_json

A = TypeVar("A")

MODEL_PATH = re.compile("(/v2/models|/infer|/models)/([^/?]+)(?:/versions/[^/?]+)?([/?].*)?")
PHASE = re.compile(r"(\w+);dur=([0-9.]+)")


@dataclass(frozen=True)
class ReplayedAnswer:
    """What a server answered to a captured request."""

    status: int  # 0 where there is no answer
    content_type: str
    body: bytes  # or why there is none
    ms: float  # in the model and its client, without waiting for a slot


def ask(options: argparse.Namespace, line: CapturedLine, body: bytes) -> ReplayedAnswer:
    """Send a captured request with its body."""
    path, headers, body = redirect(line, body, vars(options)["as"], options.version)
    headers[REPLAY] = "true"
    begun = time.monotonic()
    try:
        try:
            response = send(options, path, body, headers)
        except HTTPError as error:
            response = error
        with response:
            body, headers = response.read(), response.headers
    except (OSError, TypeError, ValueError, http.client.HTTPException) as error:
        return ReplayedAnswer(0, "", str(getattr(error, "reason", error)).encode(), 0.0)
    phases = dict(PHASE.findall(headers.get("Server-Timing", "")))
    ms = own_time(phases) if phases else 1000 * (time.monotonic() - begun)
    return ReplayedAnswer(response.status, headers.get("Content-Type", ""), body, ms)


def redirect(
    line: CapturedLine, body: bytes, model: str, version: str
) -> tuple[str, dict[str, str], bytes]:
    """Return the path, the headers and the body that ask a model and a version, where given."""
    path, headers = line.path, dict(line.headers)
    wanted = {"modelname": model, "modelversion": version, "model": model}
    wanted = {name: value for name, value in wanted.items() if value}
    if wanted:
        if match := MODEL_PATH.fullmatch(path):
            room, name, call = match.groups("")
            name = quote(model) or name
            if version and room == "/v2/models":
                name += f"/versions/{version}"
            path = f"{room}/{name}{call}"
        attributes = {**read_attributes(headers.get(ATTRIBUTES, "")), **wanted}
        headers[ATTRIBUTES] = format_attributes(attributes)  # before those of the query
        if isinstance(document := parse_json(body), dict):
            several = document.get("requests")
            for one in (document, *(several if isinstance(several, list) else ())):
                if isinstance(one, dict):
                    one.update((name, wanted[name]) for name in wanted if name in one)
            body = json.dumps(document).encode()
    return path, headers, body


def in_order(
    lines: Iterable[CapturedLine], call: Callable[[CapturedLine], A], threads: int, pace: float
) -> Iterator[A]:
    """Yield the result of a call for each line, in their order; few of them are held at a time.

    A pace of 2 is twice as fast as they came; 0 as fast as `threads` calls at a time are answered.
    """
    begun, first, waiting = time.monotonic(), None, deque[Future[A]]()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for line in lines:
                if pace:
                    first = line.at if first is None else first
                    time.sleep(max(0.0, begun + (line.at - first) / pace - time.monotonic()))
                waiting.append(pool.submit(call, line))
                while waiting and (len(waiting) >= 2 * threads or waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
