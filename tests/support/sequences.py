"""A container with stateful and decoupled models, and two callers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import PROJECT, Answer, Endpoint, running
from tests.support.front import key_lines

KEYS = {name: {"x-api-key": f"key-of-{name}"} for name in ("alice", "bob")}
IDLE_S = 1.5
SLOTS = 4

CLIENTS = """
from clients.base import Client
from clients.errors import ModelFailed


class Running(Client):
    modelname = "running"
    model = "total"
    example = {"number": [1]}

    def inference(self, payload):
        return self.infer({"X": self.numbers(payload, "number")})["TOTAL"].tolist()


class Down(Client):
    modelname = "down"
    model = "countdown"
    example = {"number": [1]}

    def inference(self, payload):
        number = self.numbers(payload, "number").astype("int32")
        for answer in self.stream({"FROM": number}):
            left = answer["LEFT"].item()
            if payload.get("fails") == left:
                raise ModelFailed("it fell over")
            yield left


class Crawling(Down):
    modelname = "crawling"
    model = "crawl"
"""


@contextmanager
def stateful_container(folder: Path) -> Iterator[Endpoint]:
    """Serve `total`, `named` (whose ids are texts), `countdown` and `crawl` to who has a key."""
    repository = folder / "repository"
    for example in ("sequence", "streaming"):
        shutil.copytree(PROJECT / "examples" / example / "models", repository, dirs_exist_ok=True)
    config = (repository / "total" / "config.pbtxt").read_text()
    config = config.replace("60000000", f"{IDLE_S * 1e6:.0f}").replace(": 100 }", f": {SLOTS} }}")
    (repository / "total" / "config.pbtxt").write_text(config)
    shutil.copytree(repository / "total", repository / "named")
    (repository / "named" / "config.pbtxt").write_text(config.replace("TYPE_UINT64", "TYPE_STRING"))
    shutil.copytree(repository / "countdown", repository / "crawl")
    model = repository / "crawl" / "1" / "model.py"
    model.write_text(model.read_text().replace("PAUSE_S = 0.2", "PAUSE_S = 1.0"))
    # With a process for each probe that may come in between.
    with (repository / "crawl" / "config.pbtxt").open("a") as file:
        file.write("instance_group [ { count: 3 kind: KIND_CPU } ]\n")
    (folder / "clients").mkdir()
    (folder / "clients" / "own.py").write_text(CLIENTS)
    keys = {name: headers["x-api-key"] for name, headers in KEYS.items()}
    (folder / "keys").write_text(key_lines("inference", **keys))
    with running(
        folder,
        MODEL_REPOSITORY=str(repository),
        CLIENTS_PATH=str(folder / "clients"),
        API_KEYS_FILE=str(folder / "keys"),
        MODEL_SERVER_WORKERS="2",
        CANARY_INTERVAL="60",
    ) as endpoint:
        yield endpoint


def tensors(number: float, model: str = "total", **parameters: Any) -> dict[str, Any]:
    """Return a V2 body."""
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [number]}
    return {"modelname": model, "inputs": [tensor], "parameters": parameters}


def ask(
    endpoint: Endpoint, body: dict[str, Any], caller: str = "alice", query: str = "", **headers: str
) -> Answer:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return endpoint.call(
        f"/invocations{query}", json.dumps(body), headers={**KEYS[caller], **headers}
    )


def total(answer: Answer) -> float:
    assert answer.status == 200, answer.body
    return float(answer.json["outputs"][0]["data"][0])
