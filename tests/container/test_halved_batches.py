"""What a client does where a batch has no room in shared memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from backends.machine.shared_memory import MIB
from clients.base import Client, Environment, Payload
from clients.errors import TooLargeAtOnce
from clients.plugins.registry import Registry
from dispatcher.codecs.metadata import Metadata
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.prepared import prepare
from dispatcher.model_request import ModelRequest
from tests.conftest import PICTURES, PROJECT, Endpoint, picture, running
from tests.support.fake_triton import FakeTriton


class Halving(Client):
    """Has room for three payloads at a time."""

    modelname = "halving"
    example = {}
    max_batch_size = 16  # type: ignore[assignment]
    runs: list[int]

    def inference(self, payload: Payload) -> Any:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Any) -> list[Any]:
        self.runs.append(len(payloads))
        numbers = [payload.pop("n") for payload in payloads]  # as authors do
        if len(payloads) > 3 or any("large" in payload for payload in payloads):
            raise TooLargeAtOnce("too large")
        return numbers


def halving() -> Halving:
    client = Halving.__new__(Halving)
    client.runs = []
    return client


def result(client: Client, payloads: list[Any]) -> Any:
    registry, environment = Registry({"halving": client}), Environment(FakeTriton(), PROJECT)
    lookup = ModelLookup(registry, environment, lambda _: None)
    request = ModelRequest("halving", payloads, is_list=True)
    return prepare(lookup, request, Metadata(), time.monotonic() + 10).result()


def test_a_batch_that_has_no_room_is_halved_until_it_has() -> None:
    client = halving()
    assert result(client, [{"n": n} for n in range(10)]) == list(range(10))
    assert client.runs == [10, 5, 3, 2, 5, 3, 2]


def test_a_payload_that_has_no_room_by_itself_is_named() -> None:
    with pytest.raises(TooLargeAtOnce) as caught:
        result(halving(), [{"n": 0}, {"n": 1, "large": 1}])
    assert caught.value.message == "payload[1]: too large"


# Python imports this at its start: `serve` finds 64 MiB of /dev/shm free.
SCARCE = """
import os

def statvfs(path, real=os.statvfs):
    found = list(real(path))
    if str(path) == "/dev/shm":
        found[4] = 64 * 2**20 // found[1]  # f_bavail, in f_frsize
    return os.statvfs_result(found)

os.statvfs = statvfs
"""


@pytest.fixture(scope="module")
def scarce(models: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The container with as much shared memory as Docker gives by default."""
    folder = tmp_path_factory.mktemp("scarce")
    (folder / "sitecustomize.py").write_text(SCARCE)
    with running(folder, PYTHONPATH=str(folder)) as endpoint:
        yield endpoint


def masks(count: int) -> dict[str, str]:
    """122 kB of the model's answer for each."""
    return {"text": "[MASK] " * count}


@pytest.mark.slow
def test_the_largest_batches_and_mixed_load_stay_within_it(scarce: Endpoint) -> None:
    """Regions in /dev/shm keep their sizes; what never has room is refused with the fix."""
    img = {"img": picture(PICTURES / "coffee.png")}
    cases: list[tuple[str, Any]] = [
        ("resnet", [img] * 16),
        ("yolov5", [img] * 8),
        ("bert_base", [masks(30)] * 16),
        ("bert_base", [masks(110)] * 3),
        ("yolov5", img),
        ("resnet", img),
    ]
    failed: list[Any] = []

    def call(place: int) -> None:
        name, payload = cases[place % len(cases)]
        answer = scarce.ask(modelname=name, payload=payload)
        if answer.status != 200:
            failed.append(answer.body)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    regions = Path("/dev/shm").glob(f"triton_dispatcher_{scarce.process.pid}_*")
    assert 0 < sum(path.stat().st_size for path in regions) <= 64 * MIB
    answer = scarce.ask(modelname="bert_base", payload=masks(170))
    assert answer.status == 507
    error = answer.json["error"]
    assert error["code"] == "too_large_at_once"
    assert "--shm-size" in error["message"]
    assert scarce.ask(modelname="bert_base", payload=masks(1)).status == 200
