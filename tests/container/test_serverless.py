"""`SERVERLESS`: Triton's Python backend without /dev/shm, and bodies of 4 MB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from container.programs import shared_memory
from container.trouble import Trouble
from dispatcher.settings import read_settings
from tests.conftest import Endpoint, start, stop, wait_until_announced
from tests.end_to_end.test_remote_triton import X, make_models

pytestmark = pytest.mark.slow

LARGE = {"name": "x", "shape": [4, 3], "datatype": "FP32", "data": [0.5] * 12}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("serverless")
    make_models(folder)
    endpoint = start(
        folder,
        MODEL_REPOSITORY=str(folder / "models"),
        REQUIRED_MODELS="plus",
        SERVERLESS="true",
        RUN_DIR=str(folder / "run"),
        SERVE_STOP_TIMEOUT="250",  # Triton has a share of it
    )
    try:
        wait_until_announced(endpoint)
        yield endpoint
    finally:
        assert stop(endpoint) == 0
    assert not list((folder / "run" / "dispatch-run" / "shm").iterdir())


def test_models_answer_without_a_file_in_dev_shm(house: Endpoint) -> None:
    prefix = f"triton_dispatcher_{house.process.pid}_"
    folder = house.log.parent / "run" / "dispatch-run" / "shm"
    assert f"serve: SERVERLESS: shared memory is in {folder}, " in house.log.read_text()
    assert list(folder.glob(f"{prefix}*"))
    assert not list(Path("/dev/shm").glob(f"{prefix}*"))
    assert house.call("/ping").status == 200
    answer = house.ask(modelname="plus", payload=X)
    assert answer.json["result"]["outputs"][0]["data"] == [2, 3, 4]
    answer = house.ask(modelname="plus", payload={"inputs": [LARGE]})
    assert answer.json["result"]["outputs"][0]["data"] == [1.5] * 12


def test_a_body_has_4_mb_at_most(house: Endpoint) -> None:
    typed = {"Content-Type": "application/json"}
    allowed = house.call("/invocations", b" " * (4 * 2**20), headers=typed)
    assert (allowed.status, allowed.json["error"]["code"]) == (400, "bad_body")
    refused = house.call("/invocations", b" " * (4 * 2**20 + 1), headers=typed)
    assert (refused.status, refused.json["error"]["code"]) == (413, "too_large")
    assert house.call("/execution-parameters").json["MaxPayloadInMB"] == 4


def test_without_dev_shm_the_start_says_what_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "nothing")
    with pytest.raises(Trouble, match="SERVERLESS=true uses a folder in RUN_DIR"):
        shared_memory.prepare(read_settings({}), tmp_path)

    monkeypatch.setattr(shared_memory, "LIBRARY", tmp_path / "shm_elsewhere.so")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Trouble, match=r"which the image has; a C compiler"):
        shared_memory.prepare(read_settings({"SERVERLESS": "true"}), tmp_path)
