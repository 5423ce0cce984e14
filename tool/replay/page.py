"""The worst differences as a page of HTML, with both pictures drawn, that a person can look at."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import Any

from PIL import Image

from clients.errors import InferenceError
from clients.images.drawing import draw_objects, from_base64, lay_over, save_picture
from clients.images.pictures import Picture, decode_base64, decode_picture
from tool.replay.captured import CapturedRequests, parse_json
from tool.replay.comparing import ReplayedRequest
from tool.replay.report import ReplayReport

MOST_PIXELS = 50_000_000  # of a picture that is drawn
SIDE = 640  # pixels of a drawn picture on the page
MOST_TEXT = 2000  # characters of an answer
JPEG = "image/jpeg"
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The worst differences</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 86rem; padding: 0 1rem }
section { border-top: 1px solid #ccc; margin-top: 2rem }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem }
figure { margin: 0; min-width: 0 }
img { max-width: 100% }
pre { white-space: pre-wrap; overflow: auto; max-height: 12rem; background: #f4f4f4; padding: 1ex }
</style>
"""


def write_page(report: ReplayReport, captured: CapturedRequests, url: str) -> str:
    text = f"<h1>The worst {len(report.worst)} differences of {report.total} requests</h1>"
    text += f"<p>Left what was captured, right what {escape(url)} answers now.</p>"
    for one in report.worst:
        line, picture = one.line, find_picture(one, captured)
        sides = "".join(show_result(result, picture) for result in one.results)
        text += (
            f"<section><h2>{escape(line.model)}: {one.verdict}</h2>"
            f"<p>{escape(one.words)}. Request {escape(line.request_id)}.</p>"
            f'<div class="sides">{sides}</div><details><summary>The request</summary>'
            f"<pre>{shorten(str(line.sent['data']))}</pre></details></section>"
        )
    return f"{PAGE}{text}</html>\n"


def show_result(result: Any, picture: Picture | None) -> str:
    file = draw_result(result, picture)
    shown = f'<img alt="" src="data:{JPEG};base64,{file}">' if file else ""
    if isinstance(result, Mapping):
        result = {key: "…" if key in ("mask", "picture") else result[key] for key in result}
    items = result if isinstance(result, list) else [result]
    text = shorten("\n".join(json.dumps(one, ensure_ascii=False) for one in items))
    return f"<figure>{shown}<pre>{text}</pre></figure>"


def shorten(text: str) -> str:
    return escape(text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …")


def find_picture(one: ReplayedRequest, captured: CapturedRequests) -> Picture | None:
    """Return the pixels of the picture that was sent; None where there is none."""
    try:
        file = captured.restore(one.line, one.line.sent)
        if isinstance(document := parse_json(file), Mapping):
            payload = document.get("payload", document.get("instances"))
            payload = payload[one.place] if isinstance(payload, list) else payload
            texts = (text for text in payload.values() if isinstance(text, str))
            file = decode_base64(max(texts, key=len), "")
        return decode_picture(file, "", MOST_PIXELS)
    except (AttributeError, InferenceError, LookupError, OSError, ValueError):
        return None


def draw_result(result: Any, picture: Picture | None) -> str:
    """Return the picture with what was answered for it, as base64 of a JPEG; empty without one."""
    drawn = None if picture is None else Image.fromarray(picture)
    with suppress(AttributeError, LookupError, OSError, TypeError, ValueError):  # another answer
        if isinstance(result, Mapping) and "picture" in result:
            drawn = from_base64(result["picture"])
        elif isinstance(result, Mapping) and picture is not None:
            drawn = lay_over(picture, from_base64(result["mask"]))
        elif picture is not None:
            objects = map(as_object, result)
            drawn = Image.open(io.BytesIO(draw_objects(picture, objects, JPEG, lambda: None)))
    if drawn is None:
        return ""
    drawn.thumbnail((SIDE, SIDE))
    return base64.b64encode(save_picture(drawn, JPEG)).decode()


def as_object(one: Any) -> dict[str, Any]:
    """Return an object, or a line of text, as it is drawn; raise where it is neither."""
    if isinstance(one, list):
        index, score, x1, x2, y1, y2, *_ = one
        box = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        return {"label": str(index), "index": index, "score": score, "box": box}
    x, y = ([at[side] for at in one.get("corners", ())] or [0] for side in "xy")
    box = {"x1": min(x), "y1": min(y), "x2": max(x), "y2": max(y)}
    return {"label": one.get("text", ""), "index": 0, "score": 1.0, "box": box, **one}
