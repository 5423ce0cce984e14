"""`dispatcher replay` sends what was captured again, and compares answer by answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import PICTURES, picture
from tests.support.s3 import BUCKET, S3Server
from tests.support.serving import serve
from tool.__main__ import main
from tool.replay.asking import ReplayedAnswer, in_order
from tool.replay.captured import CapturedLine, read_line
from tool.replay.comparing import judge

COFFEE = PICTURES / "coffee.png"
REQUESTS = {"requests": [{"modelname": "n"}, 5]}
OWN = {"status": 200, "path": "/invocations"}
Asked = tuple[str, dict[str, str], bytes]
JSON = "application/json"
CAT, DOG = [15, 0.9, 10, 60, 20, 80, 600, 400], [16, 0.8, 100, 200, 50, 150, 600, 400]


class Replayed(BaseHTTPRequestHandler):
    """Notes what is asked; answers what `answer` makes of its path and its JSON, if it has that."""

    asked: list[Asked] = []
    answer: Callable[[str, Any], tuple[int, Any]]

    def do_GET(self) -> None:
        self.send(200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        document = json.loads(body) if body[:1] == b"{" else None
        status, answer = type(self).answer(self.path, document)
        self.send(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Server-Timing", "queue;dur=900.0, decode;dur=2.0, inference;dur=18.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def echo(path: str, document: Any) -> tuple[int, Any]:
    sent = document["payload"]
    return 200, {"result": [one["r"] for one in sent] if isinstance(sent, list) else sent["r"]}


@pytest.fixture
def server() -> Iterator[str]:
    Replayed.asked.clear()
    Replayed.answer = staticmethod(echo)
    with serve(Replayed) as url:
        yield url


def line(
    sent: Any, result: Any, model: str = "m", kind: str = "values", second: int = 0, **own: Any
) -> dict[str, Any]:
    """Return a captured line: the body, and the result that was answered."""
    body = json.dumps({"modelname": model, "payload": sent})
    sides = {"endpointInput": body, "endpointOutput": json.dumps({"result": result})}
    json_type = {"observedContentType": "application/json", "encoding": "JSON"}
    phases = {"queue": 5.0, "total": 15.0, "inference": 10.0}
    return {
        "captureData": {name: {**json_type, "data": data} for name, data in sides.items()},
        "eventMetadata": {
            "eventId": f"id-{second}",
            "inferenceTime": f"2026-11-28T02:07:{second:02}.000Z",
        },
        "eventVersion": "0",
        "dispatcher": {"model": model, "compared_as": kind, "phases_ms": phases, **OWN, **own},
    }


def keep(folder: Path, *lines: Any, name: str = "07-00.jsonl") -> Path:
    place = folder / "captured" / "2026/11/28/02"
    place.mkdir(parents=True, exist_ok=True)
    texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
    (place / name).write_text("".join(f"{text}\n" for text in texts))
    return folder / "captured"


def replay(place: Path | str, server: str, *options: str) -> int:
    return main(["replay", str(place), "--against", server, *options])


def test_answers_are_compared_by_their_family_and_counted_by_model(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is sent is what is answered, so each line says what differs."""
    best = ["0.9:0:a", "0.1:1:b"]
    place = keep(
        tmp_path,
        line({"r": ["0.9:0:a", "0.1:1:b"]}, best, "net", "classes", 1),
        line({"r": ["0.88:0:a", "0.12:1:b"]}, best, "net", "classes", 2),
        line({"r": ["0.6:1:b", "0.4:0:a"]}, best, "net", "classes", 3),
        line([{"r": [CAT]}, {"r": [CAT]}], [[CAT], [CAT, DOG]], "yolo", "objects", 4),
        line({"r": [CAT]}, [CAT], "yolo", "objects", 5, status=400),
        line({"r": {"x": 1.0}}, {"x": 1.001}, "m", "no such kind", 6),
    )
    assert replay(place, server, "--json", "--max-different", "0.4") == 1
    found = json.loads(capsys.readouterr().out)
    counts = {
        model: [one[name] for name in ("requests", "same", "close", "different", "error")]
        for model, one in found["models"].items()
    }
    assert counts == {"net": [3, 1, 1, 1, 0], "yolo": [2, 0, 0, 2, 0], "m": [1, 0, 1, 0, 0]}
    assert found["models"]["net"]["p99_ms"] == [10.0, 20.0]
    assert [one["words"] for one in found["worst"]] == [
        "an object of class 16 with the score 0.800 is missing",
        "the status is 200, not 400",
        "the first is 1:b, not 0:a",
        "the probability of '0:a' differs by 0.02 (0.8800, not 0.9000)",
        "the result differs by 0.001 of its range",
    ]
    assert [*found["models"]["yolo"]["passed"]] == ["different"]
    assert not found["models"]["net"]["passed"]


def test_a_reader_a_program_and_ci_see_which_limit_is_passed(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = keep(tmp_path, *(line({"r": at}, 0, "net", second=at) for at in range(4)))
    assert replay(place, server, "--max-different", "0.75", "--max-slower", "2") == 0
    assert replay(place, server, "--max-different", "0.7", "--junit", str(tmp_path / "j")) == 1
    shown = capsys.readouterr().out
    assert "net           4     1      0          3      0  10.0 → 20.0  10.0 → 20.0\n" in shown
    assert "\nFAILED net: 75.0% of its answers differ, --max-different is 0.7\n" in shown
    (suite,) = ET.parse(tmp_path / "j").getroot()
    cases = {case.get("name"): [one.get("message") for one in case] for case in suite}
    words = "75.0% of its answers differ, --max-different is 0.7"
    assert cases == {"different": [words], "errors": [], "slower": []}
    Replayed.answer = staticmethod(lambda path, document: (404, b'{"error":\n "no such model"}'))
    assert replay(place, server) == 1
    words = '100.0% of its requests failed, --max-errors is 0; the first: 404: {"error": '
    assert f'FAILED net: {words}"no such model"}}\n' in capsys.readouterr().out
    Replayed.answer = staticmethod(lambda path, document: (200, {"result": 0}))
    assert replay(place, server, "--max-slower", "1.9") == 1


def test_files_beside_the_lines_are_sent_bit_for_bit(server: str, tmp_path: Path) -> None:
    name = "07-00.files/c.png"
    in_json = line({"img": f"@file:{name}", "text": "@file:other"}, 1, second=1, files=[name])
    raw = line(
        {}, 1, second=2, files=[name], path="/infer/a b", query="top_k=2", headers={"A": "b"}
    )
    part = {"observedContentType": "image/png", "data": f"@file:{name}", "encoding": "BASE64"}
    raw["captureData"]["endpointInput"] = part
    place = keep(tmp_path, in_json, raw)
    file = place / "2026/11/28/02" / name
    file.parent.mkdir()
    file.write_bytes(COFFEE.read_bytes())
    Replayed.answer = staticmethod(lambda path, document: (200, {"result": 1}))
    assert replay(place, server, "--concurrency", "1", "--api-key", "k") == 0
    (first, second) = Replayed.asked
    payload = {"img": picture(COFFEE), "text": "@file:other"}
    assert (first[0], json.loads(first[2])["payload"]) == ("/invocations", payload)
    assert (second[0], second[2]) == ("/infer/a%20b?top_k=2", COFFEE.read_bytes())
    sent = {name: second[1][name] for name in ("content-type", "a", "x-api-key", "x-request-id")}
    assert [*sent.values()] == ["image/png", "b", "k", "id-2"]


@pytest.mark.parametrize(
    ("path", "body", "new_path", "asked"),
    [
        ("/invocations", {"modelname": "m"}, "/invocations", {"modelname": "n"}),
        ("/invocations", {"modelversion": 1}, "/invocations", {"modelversion": "2"}),
        ("/predict", {"requests": [{"modelname": "m"}, 5]}, "/predict", REQUESTS),
        ("/infer/m", {"x": 1}, "/infer/n", {"x": 1}),
        ("/v2/models/m/infer", {"inputs": []}, "/v2/models/n/versions/2/infer", {"inputs": []}),
        ("/v2/models/m/versions/1/infer", {}, "/v2/models/n/versions/2/infer", {}),
        ("/v1/embeddings", {"model": "m"}, "/v1/embeddings", {"model": "n"}),
    ],
)  # fmt: skip
def test_another_model_or_version_is_asked(
    server: str, tmp_path: Path, path: str, body: Any, new_path: str, asked: Any
) -> None:
    attributes = "X-Amzn-SageMaker-Custom-Attributes"
    one = line({}, 1, path=path, query="a=b", headers={attributes: "modelversion=1;top_k=2"})
    one["captureData"]["endpointInput"]["data"] = json.dumps(body)
    Replayed.answer = staticmethod(lambda path, document: (200, {"result": 1}))
    assert replay(keep(tmp_path, one), server, "--as", "n", "--version", "2") == 0
    ((got, headers, sent),) = Replayed.asked
    assert (got, json.loads(sent)) == (f"{new_path}?a=b", asked)
    assert headers[attributes.lower()] == "modelversion=2;top_k=2;modelname=n;model=n"


@pytest.mark.parametrize(
    ("media_type", "was", "now", "verdict"),
    [
        ("application/x-ndjson", '{"result": 1.0}\n1\n', '{"result": 1.001}\n1\n', "close"),
        ("text/event-stream", 'data: {"result": 1}\n\n', 'data: {"result": 2}\n\n', "different"),
        ("text/csv", "a,1.0\n", "a,1.001\n", "close"),
        (JSON, '{"results": {"a": {"result": 1}}}', '{"results": {"a": {}}}', "different"),
        (JSON, '{"id": "1", "data": [0.5]}', '{"id": "2", "data": [0.5]}', "same"),
        (JSON, "not JSON", "not JSON", "same"),
        (JSON, '{"results": [{"result": 1}]}', '{"results": []}', "different"),
    ],
)  # fmt: skip
def test_answers_of_each_form_are_compared(
    media_type: str, was: str, now: str, verdict: str
) -> None:
    one = line({}, 1, kind="classes")
    one["captureData"]["endpointOutput"]["observedContentType"] = media_type
    answer = ReplayedAnswer(200, media_type, now.encode(), 1.0)
    assert judge(read_line(one, "file"), was.encode(), answer).verdict == verdict


def test_answers_of_several_models_are_each_compared_by_its_family() -> None:
    one = read_line(line({}, 1, "net,yolo", "classes,objects"), "file")
    was = {"net": {"result": ["0.9:0:a", "0.1:1:b"]}, "yolo": {"result": [CAT]}}
    now = {**was, "net": {"result": ["0.89:0:a", "0.11:1:b"]}}
    was_in_list, in_list = (
        [{"modelname": name, **item} for name, item in side.items()] for side in (was, now)
    )
    for expected, got in ((was, now), (was_in_list, in_list)):
        answer = ReplayedAnswer(200, JSON, json.dumps({"results": got}).encode(), 1.0)
        found = judge(one, json.dumps({"results": expected}).encode(), answer)
        assert (found.verdict, found.place) == ("close", 0), found.words


def test_lines_that_cannot_be_replayed_are_counted_and_the_others_are(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without, large = line({}, 1), line({}, 1)
    del without["captureData"]["endpointInput"]["data"]
    del large["captureData"]["endpointInput"]["data"]
    large["captureData"]["endpointInput"]["left_out"] = "it is larger than 8 MiB"
    half = json.dumps(line({}, {}))[:200]
    gone, link, outside = (line({}, 1, files=[one]) for one in ("a.png", "b.png", "../../secret"))
    gone["captureData"]["endpointInput"]["data"] = "@file:a.png"
    link["captureData"]["endpointInput"]["data"] = "@file:b.png"
    others = [without, large, half, "[1]", gone, link, outside, line({}, {}, status=503)]
    others += [line({}, 1, "\x1b[2J"), line({}, 1, path=".example.com/")]
    place = keep(tmp_path, *others, line({"r": 1}, 1))
    (tmp_path / "secret").write_text("secret")
    (place / "2026/11/28/02/b.png").symlink_to(tmp_path / "secret")
    (place / "a folder.jsonl").mkdir()
    assert replay(place, server) == 0
    shown = capsys.readouterr().out
    for words in (
        "1 requests have no payload; set CAPTURE_PAYLOADS=true where they are captured\n",
        "1 requests are not whole: it is larger than 8 MiB\n",
        "5 requests are cut off, or no captured requests\n",
        "2 requests have headers, or files beside their lines, that cannot be read\n",
        "1 requests had failed for want of time or of a slot\n",
    ):
        assert words in shown
    assert len(Replayed.asked) == 1


def test_answers_without_sense_are_reported_all_the_same(server: str, tmp_path: Path) -> None:
    answers = cycle([(200, {"result": "\x1b\ud800"}), (502, "\x01"), (200, {"result": [10**400]})])
    Replayed.answer = staticmethod(lambda *_: next(answers))
    place = keep(tmp_path, *(line({}, "a"), line({}, "a"), line({}, [1.0], kind="vectors")))
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    assert replay(place, server, f"--html={page}", f"--junit={junit}", "--concurrency=1") == 1
    assert len(ET.parse(junit).findall(".//failure")) == 2
    assert page.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "captured has no request to replay: 1 have no payload; set CAPTURE_PAYLOADS=true"),
        (["--model", "other"], "captured has no request of 'other' to replay: it is empty"),
        (["--rate", "0fast"], "--rate is '0fast'; expected max, or such as 1x or 2.5x"),
        (["--against", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
        (["--as", "x", "elsewhere"], "elsewhere has no .jsonl files; name what CAPTURE_TO names"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(
    server: str, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = line({}, 1)
    del one["captureData"]["endpointInput"]["data"]
    place = keep(tmp_path, one)
    given = [*options[:2], "--against", server] if "--against" not in options else options[:2]
    assert main(["replay", *(options[2:] or [str(place)]), *given]) == 2
    assert words in capsys.readouterr().err


def test_requests_are_sent_in_the_order_of_their_time(server: str, tmp_path: Path) -> None:
    keep(tmp_path, *(line({"r": at}, at, second=at) for at in (0, 2, 5)))
    place = keep(tmp_path, *(line({"r": at}, at, second=at) for at in (1, 3)), name="b.jsonl")
    assert replay(place, server, "--concurrency", "1", "--rate", "100000x") == 0
    assert [json.loads(body)["payload"]["r"] for _, _, body in Replayed.asked] == [0, 1, 2, 3, 5]


def test_what_the_server_captures_meanwhile_is_not_replayed(server: str, tmp_path: Path) -> None:
    place = keep(tmp_path, line({"r": 1}, 1))
    file = next(place.rglob("*.jsonl"))

    def answer(path: str, document: Any) -> tuple[int, Any]:
        with file.open("a") as out:
            out.write(json.dumps(line({"r": 1}, 1)) + "\n")
        return echo(path, document)

    Replayed.answer = staticmethod(answer)
    assert replay(place, server, "--concurrency", "1") == 0
    assert [headers["x-replay"] for _, headers, _ in Replayed.asked] == ["true"]  # not captured


def test_no_more_requests_are_held_than_are_sent_at_a_time() -> None:
    read = 0

    def lines() -> Iterator[CapturedLine]:
        nonlocal read
        for _ in range(10_000):
            read += 1
            yield one

    one = read_line(line({}, 1), "file")
    most = 0
    for done, _ in enumerate(in_order(lines(), lambda line: line.at, 4, 0)):
        most = max(most, read - done)
    assert (read, done) == (10_000, 9_999)
    assert most <= 2 * 4


def test_the_worst_are_shown_with_both_pictures(server: str, tmp_path: Path) -> None:
    sent = {"img": picture(COFFEE)}
    hostile = "<script>alert(1)</script>"
    box = {"x1": 10.0, "y1": 20.0, "x2": 60.0, "y2": 80.0}
    found = [{"label": "cup", "index": 1, "score": 0.9, "box": box}]
    place = keep(
        tmp_path,
        line(sent, found, "yolo", "objects", 1),
        line([sent], [[CAT]], "yolo", "objects", 2),
        line({"text": hostile}, hostile, "text", "values", 3),
        *(line({"x": 1.0}, {"x": 1.0 + at / 1e4}, second=at) for at in range(4, 30)),
    )
    Replayed.answer = staticmethod(lambda path, document: (200, {"result": []}))
    page = tmp_path / "page.html"
    assert replay(place, server, "--html", str(page)) == 1
    text = page.read_text()
    pictures = [part.split('"')[0] for part in text.split("data:image/jpeg;base64,")[1:]]
    assert len(pictures) == 2 * 2
    assert pictures[0] != pictures[1] == pictures[3]
    assert all(base64.b64decode(one).startswith(b"\xff\xd8\xff") for one in pictures)
    assert text.count("<section>") == 10
    assert "<script" not in text


@pytest.mark.slow
def test_captured_requests_are_read_from_s3(
    server: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "07-00.files/c.png"
    one = line({"r": f"@file:{name}"}, picture(COFFEE), files=[name])
    s3.put("captured/2026/11/28/02/07-00.jsonl", f"{json.dumps(one)}\n".encode())
    s3.put(f"captured/2026/11/28/02/{name}", COFFEE.read_bytes())
    for variable, value in s3.environment().items():
        monkeypatch.setenv(variable, value)
    assert replay(f"s3://{BUCKET}/captured", server) == 0
    assert len(Replayed.asked) == 1
