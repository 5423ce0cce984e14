"""What a key may ask, how often and how many at a time: on the real NGINX and two web workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.auth.api_keys import BadKeys, Key, KeyFile, KeyLimits, read_keys
from dispatcher.errors import KeyLimit
from tests.conftest import PROJECT, Answer, Endpoint, descendants, wait_for
from tests.support.front import front, key_lines

HASH = "0" * 64
NUMBERS = {"numbers": [1]}
DOUBLE = {"modelname": "double", "payload": NUMBERS}
OTHER = {"modelname": "odd", "payload": NUMBERS}


def limited(name: str, *words: str) -> str:
    """Return the line of a key that is called as its owner."""
    return " ".join((key_lines("inference", **{name: f"key-of-{name}"}).strip(), *words)) + "\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("house")
    lines = (
        limited("some", "models=double,naps"),
        limited("fast", "per_minute=30"),
        limited("few", "concurrent=2"),
        limited("all"),
        key_lines("management", ops="key-of-ops"),
    )
    (folder / "keys").write_text("".join(lines))
    with front(folder, API_KEYS_FILE=str(folder / "keys"), MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint


def ask(
    house: Endpoint, who: str, body: Any = DOUBLE, path: str = "/invocations", **headers: str
) -> Answer:
    text = body if isinstance(body, str | None) else json.dumps(body)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    method = "GET" if text is None else "POST"
    return house.call(path, text, method, {"x-api-key": f"key-of-{who}", **headers})


TENSORS = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


SAGEMAKER = "X_Amzn_SageMaker_"
SHOWN = "/models/odd /models/odd/rollout /v1/models/odd /v2/models/odd /v2/models/odd/config"
SHOWN += " /v2/models/odd/ready /v2/models/stats /health /metrics"


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/invocations", OTHER, {}),
        ("/predict", OTHER, {}),
        ("/infer/odd", DOUBLE, {}),
        ("/infer/%6fdd", DOUBLE, {}),
        ("/infer/double%20", DOUBLE, {}),
        ("/infer/Double", DOUBLE, {}),
        ("/infer/odd", DOUBLE, {"Prefer": "respond-async"}),
        ("/models/no-such-model/invoke", DOUBLE, {}),
        ("/invocations?modelname=odd", {"payload": NUMBERS}, {}),
        ("/invocations", {"payload": NUMBERS}, {f"{SAGEMAKER}Target_Model": "odd.tar.gz"}),
        ("/invocations", {"payload": NUMBERS}, {f"{SAGEMAKER}Custom_Attributes": "modelname=odd"}),
        ("/invocations", {"modelname": ["double", "odd"], "payload": NUMBERS}, {}),
        ("/invocations", {"requests": [DOUBLE, OTHER]}, {}),
        ("/invocations", {**OTHER, "payload": [NUMBERS, NUMBERS]}, {}),
        ("/invocations", OTHER, {"Accept": "text/event-stream"}),
        ("/invocations", {**TENSORS, "modelname": "odd"}, {}),
        ("/v1/embeddings", {"model": "odd", "input": "a"}, {}),
        ("/v1/rerank", {"model": "odd", "query": "a", "documents": ["b"]}, {}),
        ("/v2/models/odd/infer", TENSORS, {}),
        ("/v2/models/odd/generate", {"x": 1}, {}),
        ("/v2/models/odd/generate_stream", {"x": 1}, {}),
        ("/v2/repository/index", "{}", {}),
        *((path, None, {}) for path in SHOWN.split()),
    ],
)
def test_a_key_for_some_models_asks_no_other_however_it_is_named(
    house: Endpoint, path: str, body: Any, headers: dict[str, str]
) -> None:
    answer = ask(house, "some", body, path, **headers)
    assert answer.status == 403, answer
    assert "the key of 'some'" in answer.body.decode()
    assert "it may ask double, sleeps" in answer.body.decode()
    assert path.startswith("/v") or answer.json["error"]["code"] == "model_forbidden"
    # The same with the key where OpenAI's clients put it, and nowhere by the query.
    moved = {"Authorization": "Bearer key-of-some", "x-api-key": ""}
    assert ask(house, "", body, path, **headers, **moved).status == 403
    sign = "&" if "?" in path else "?"
    stolen = ask(house, "some", body, f"{path}{sign}x-api-key=key-of-all", **headers)
    assert stolen.status == 403
    assert ask(house, "all", body, path, **headers).status != 403


def test_a_key_for_some_models_asks_those_by_all_of_their_names(house: Endpoint) -> None:
    for model in ("sleeps", "naps"):
        answer = ask(house, "some", {"payload": {"seconds": [0]}}, f"/infer/{model}")
        assert answer.status == 200, answer
    several = {"modelname": ["double", "naps"], "payload": {"numbers": [1], "seconds": [0]}}
    assert ask(house, "some", several).status == 200
    assert ask(house, "some", {"requests": [DOUBLE, DOUBLE]}).status == 200
    assert ask(house, "some", OTHER, "/infer/double").status == 200, "the path goes first"
    listed = ask(house, "some", None, "/v1/models").json["data"]
    assert [one["id"] for one in listed] == ["double", "naps", "sleeps"]
    assert len(ask(house, "all", None, "/v1/models").json["data"]) > 3
    there = ask(house, "some", None, "/models").json
    assert {one["modelName"] for one in there["models"]} == {"double", "sleeps"}
    paths = ask(house, "some", None, "/openapi.json").json["paths"]
    assert "/infer/double" in paths
    assert "odd" not in json.dumps([there, paths])


def test_of_lines_each_is_refused_by_itself(house: Endpoint) -> None:
    lines = "".join(f"{json.dumps(one)}\n" for one in (DOUBLE, OTHER, DOUBLE))
    answer = ask(house, "some", lines, Content_Type="application/jsonlines")
    came = [json.loads(line) for line in answer.body.splitlines()]
    assert [one["status"] for one in came] == [200, 403, 200]
    assert came[1]["error"]["code"] == "model_forbidden"


def test_a_job_may_ask_what_its_key_might_and_is_its_owner_s(house: Endpoint) -> None:
    for body, status in ((DOUBLE, 200), (OTHER, 403)):
        accepted = ask(house, "some", body, Prefer="respond-async")
        assert accepted.status == 202
        path = f"{accepted.json['status_url']}/result"
        wait_for(lambda path=path: ask(house, "some", None, path).status != 409, "its end")
        assert ask(house, "some", None, path).status == status
        for other in ("all", "few", "ops"):
            assert ask(house, other, None, path).status == 404


def test_requests_a_minute_are_counted_over_all_web_workers(house: Endpoint) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        came = list(pool.map(lambda _: ask(house, "fast"), range(60)))
    found = Counter(one.status for one in came)
    refilled = (time.monotonic() - began) / 2  # one each two seconds
    assert 30 <= found[200] <= 31 + refilled
    assert found[429] == 60 - found[200]
    refused = next(one for one in came if one.status == 429)
    assert refused.json["error"]["code"] == "key_limit"
    assert "30 requests a minute (per_minute)" in refused.json["error"]["message"]
    assert refused.headers["Retry-After"] in {"1", "2"}
    assert ask(house, "all").status == 200, "others are not affected"
    assert ask(house, "fast", None, "/models").status == 200, "looking is not counted"
    # A large body, about which NGINX asks first, counts once.
    large = json.dumps(DOUBLE) + " " * 20_000
    wait_for(lambda: ask(house, "fast", large).status == 200, "one for which one is left")


def test_requests_at_a_time_are_counted_and_a_dead_worker_holds_none(house: Endpoint) -> None:
    nap = {"modelname": "sleeps", "payload": {"seconds": [20]}}
    statuses: list[int] = []

    def hold() -> None:
        while (status := ask(house, "few", nap).status) == 429:
            pass  # the place is that of the request that looks whether both are taken
        statuses.append(status)

    held = [threading.Thread(target=hold) for _ in range(2)]
    for one in held:
        one.start()
    wait_for(lambda: ask(house, "few").status == 429, "both places are taken")
    refused = ask(house, "few")
    assert "2 requests at a time (concurrent)" in refused.json["error"]["message"]
    assert refused.headers["Retry-After"] == "1"
    workers = descendants(house.process.pid)
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for one in held:
        one.join()
    assert 200 not in statuses
    wait_for(lambda: ask(house, "few").status == 200, "a new worker")
    with ThreadPoolExecutor(2) as pool:
        naps = [pool.submit(ask, house, "few", {**nap, "payload": {"seconds": [0.5]}})
                for _ in range(2)]  # fmt: skip
        assert [one.result().status for one in naps] == [200, 200]
    assert ask(house, "few").status == 200, "an answered request holds no place"


def test_metrics_count_by_the_key_s_name_and_limit(house: Endpoint) -> None:
    ask(house, "some", OTHER)
    page = ask(house, "ops", None, "/metrics").body.decode()
    found = {
        (sample.labels["key"], sample.labels["refused_by"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "dispatcher_key_requests_total"
    }
    assert found["some", "models"] >= 1
    assert {("fast", "per_minute"), ("few", "concurrent"), ("all", "")} <= found.keys()
    assert not re.search("key-of-|[0-9a-f]{64}", page)


# The file, and counting


@pytest.mark.parametrize(
    "words",
    ["models=", "models=a,", "models=a b", "models=a models=b",
     "per_minute=5 models=a", "per_minute=0", "per_minute=-1",
     "per_minute=1.5", "per_minute=1000000", "concurrent=x", "concurrent", "rate=5", "a,b"],
)  # fmt: skip
def test_bad_limits_are_named_and_not_shown(words: str) -> None:
    for line in (f"inference shop {HASH} {words}", f"management ops {HASH} per_minute=5"):
        with pytest.raises(BadKeys, match="line 1 is no key; expected"):
            read_keys(line)


def test_the_kept_copy_has_the_limits(tmp_path: Path) -> None:
    """A worker that starts while the file is broken would let a key ask all models otherwise."""
    line = limited("some", "models=a,b", "per_minute=600", "concurrent=4")
    (tmp_path / "keys").write_text(line + limited("all"))
    (read,) = KeyFile(tmp_path / "keys", tmp_path / "kept").matching("key-of-some")
    assert (read.models, read.per_minute, read.concurrent) == (("a", "b"), 600, 4)
    (tmp_path / "keys").write_text("broken")
    assert KeyFile(tmp_path / "keys", tmp_path / "kept").matching("key-of-some") == [read]


def test_the_program_makes_a_limited_key() -> None:
    def make(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tool", "new-key", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)

    (key,) = read_keys(make("inference", "shop", "models=a,b", "per_minute=600").stdout)
    assert (key.models, key.per_minute, key.concurrent) == (("a", "b"), 600, 0)
    refused = make("inference", "shop", "per_minute=many")
    assert refused.returncode != 0
    assert "no such inference key as 'shop per_minute=many'" in refused.stderr
    assert "models=NAME,NAME" in refused.stderr
    assert make("inference", "a b").returncode == make("management", "a", "concurrent=1").returncode


def test_the_rate_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    limits, key = KeyLimits(tmp_path), Key("inference", "a", b"", per_minute=7)
    # A seventh of a minute is 8.57 s; of an hour without requests a minute's is kept.
    for later, admitted, wait in ((0.0, 7, 9), (8.5, 0, 1), (0.1, 1, 9), (3600.0, 7, 9)):
        now[0] += later
        for _ in range(admitted):
            limits.enter(key)
        with pytest.raises(KeyLimit) as caught:
            limits.enter(key)
        assert caught.value.retry_after == wait


def test_a_place_is_free_once_it_is_left_and_a_refusal_takes_none(tmp_path: Path) -> None:
    limits = KeyLimits(tmp_path)
    key, other = (Key("inference", name, b"", concurrent=1) for name in ("a", "a.1"))
    held = limits.enter(key)
    limits.enter(other).close()
    with pytest.raises(KeyLimit):
        limits.enter(key)
    held.close()
    limits.enter(key)  # let go of: nothing holds it any more
    both = Key("inference", "b", b"", concurrent=1, per_minute=1)
    limits.enter(both).close()
    for _ in range(2):
        with pytest.raises(KeyLimit, match="per_minute"):
            limits.enter(both)
