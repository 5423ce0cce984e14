"""Change a model that is in use: to a good version, a wrong one and a slow one.

usage: python play.py http://127.0.0.1:8080

Counts go to stdout, times to stderr. It ends with an error as soon as the story goes otherwise.
"""

import base64
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

HERE = Path(__file__).resolve().parent
MADE = HERE / "made"
URL = sys.argv[1]
ROLLOUT = "/models/resnet/rollout"
PATIENCE_S = 30  # for what takes a second or two on an idle machine
BETWEEN_S = 0.05  # two callers

PICTURES = {
    path.name: base64.b64encode(path.read_bytes()).decode()
    for path in sorted((MADE / "pictures").iterdir())
}
callers = zip(count(1), cycle(PICTURES))


class Answer(NamedTuple):
    picture: str
    label: str
    by_canary: bool
    ms: float


def call(method: str, path: str, body: Any = None, **headers: str) -> tuple[Any, Any]:
    """Return an answer's document and headers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    with urlopen(Request(URL + path, data, headers, method=method)) as answer:
        return json.load(answer), answer.headers


def ask(requests: int) -> Iterator[Answer]:
    """Ask as so many callers, one after another, who name no version."""
    for _ in range(requests):
        number, picture = next(callers)
        began = time.monotonic()
        body = {"payload": {"img": PICTURES[picture]}, "parameters": {"format": "objects"}}
        document, headers = call("POST", "/infer/resnet", body, X_Request_Id=f"caller-{number}")
        ms = 1000 * (time.monotonic() - began)
        yield Answer(picture, document["result"][0]["label"], "X-Canary" in headers, ms)
        time.sleep(BETWEEN_S)


def make_sure(condition: object, what: str) -> None:
    if not condition:
        raise SystemExit(f"the story goes otherwise: {what}; {ROLLOUT}: {call('GET', ROLLOUT)[0]}")


def wait_for(condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """Wait until the rollout is as wanted; return it."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition(rollout := call("GET", ROLLOUT)[0]):
        make_sure(time.monotonic() < deadline, what)
        time.sleep(0.1)
    return rollout


def bring(version: int, **plan: Any) -> None:
    """Say how a version is tried, then put it there and load it: it is never the latest."""
    call("PUT", ROLLOUT, plan)
    source = MADE / "versions" / str(version)
    shutil.copytree(source, HERE / "models" / "resnet" / str(version), dirs_exist_ok=True)
    call("POST", "/load_model/resnet", {})
    wait_for(lambda rollout: not rollout["waiting"], f"version {version} is not ready")


def compare_in_shadow(requests: int) -> dict[str, int]:
    """Return what was found of the answers to some callers, who must not notice."""
    answers = list(ask(requests))
    make_sure(are_right(answers), "a caller got a wrong class")
    make_sure(not any(one.by_canary for one in answers), "a caller was answered by a canary")

    def found(rollout: dict[str, Any]) -> dict[str, int]:
        shadow = rollout["counts"].get("shadow", {})
        return {name: shadow.get(name, 0) for name in ("same", "close", "different", "error")}

    rollout = wait_for(lambda one: sum(found(one).values()) >= requests, "no shadow was computed")
    return found(rollout)


def replay(version: int) -> int:
    """Ask a version what was captured; return how many answers are the same or close."""
    command = [Path(sys.executable).with_name("dispatcher"), "replay", MADE / "captured"]
    command += ["--against", URL, "--version", str(version), "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    make_sure(done.returncode == 0, f"{done.stderr}{done.stdout}")
    report = json.loads(done.stdout)["models"]["resnet"]
    return report["same"] + report["close"]


def are_right(answers: list[Answer]) -> bool:
    return all(one.label == RIGHT[one.picture] for one in answers)


def show_times(what: str, answers: list[Answer]) -> None:
    times = [one.ms for one in answers]
    sys.stderr.write(f"  {what}: {statistics.median(times):.0f} ms in the median\n")


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


first = list(ask(len(PICTURES)))
RIGHT = {one.picture: one.label for one in first}
show(f"version 1 (f32) answers {len(first)} callers")
show_times("version 1", first)

# A good version: it is asked what was captured, then what callers ask, before it answers any.
bring(2, shadow={"version": 2, "share": 0})
show(f"version 2 (int8), replay: {replay(2)} of {len(first)} captured answers the same or close")
call("PUT", ROLLOUT, {"shadow": {"share": 1}})
found = compare_in_shadow(24)
show(f"version 2 (int8), shadow: {found['same'] + found['close']} of 24 answers the same or close")
make_sure(not found["different"] + found["error"], "int8 is different")
call("PUT", ROLLOUT, {"shadow": None, "canary": {"version": 2, "share": 0.25}})
answers = list(ask(48))
make_sure(are_right(answers), "a caller got a wrong class")
lucky = [one for one in answers if one.by_canary]
show(f"version 2, canary of 25 %: it answers {len(lucky)} of 48 callers, all with the right class")
show_times("version 1", [one for one in answers if not one.by_canary])
show_times("version 2", lucky)
call("POST", f"{ROLLOUT}/promote")
answers = list(ask(12))
make_sure(are_right(answers) and not any(one.by_canary for one in answers), "it was not promoted")
show("version 2 is promoted, and answers all")
show_times("version 2", answers)

# A wrong one: its classes are seen in the shadow alone.
bring(3, shadow={"version": 3, "share": 1})
found = compare_in_shadow(24)
show(
    f"version 3 (no mean), shadow: {found['different']} of 24 answers different, seen by no caller"
)
make_sure(found["different"] == 24, "it has not found all wrong answers")
call("PUT", ROLLOUT, {"shadow": None})
make_sure(are_right(list(ask(12))), "the wrong version answers")

# A slow one: right, and so it has become a canary.
bring(4, canary={"version": 4, "share": 0.1})
slow, began = [], time.monotonic()
while not (back := call("GET", ROLLOUT)[0]["back"]):
    slow += [one for one in ask(4) if one.by_canary]
    make_sure(time.monotonic() - began < PATIENCE_S, "the slow canary does not fall back")
show_times(f"version 4 ({back})", slow)
make_sure(len(slow) <= 12, f"{len(slow)} callers had to wait")
show("version 4 (12 times the work), canary of 10 %: it falls back by itself after 5 to 12 answers")
answers = list(ask(24))
make_sure(are_right(answers) and not any(one.by_canary for one in answers), "it is still asked")
show("version 2 answers all")
