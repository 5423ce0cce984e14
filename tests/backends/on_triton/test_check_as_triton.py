"""What `dispatcher check` calls an error is what the real Triton refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.mistakes import MISTAKES, TAKEN, write_mistake, write_right
from tests.support.triton import process as triton_process


@pytest.mark.slow
def test_triton_refuses_what_check_says_it_refuses(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_right(repository, "right")
    for mistake in MISTAKES:
        write_mistake(repository, mistake)
    for name, make in TAKEN.items():
        make(write_right(repository, name))
    refused = set()
    with triton_process.running(tmp_path, ["right"], compares=False) as triton:
        assert triton.states()["right"][0] == "READY"
        for name in (*(mistake.name for mistake in MISTAKES), *TAKEN):
            try:
                triton.client.load_model(name, client_timeout=600)
            except InferenceServerException:
                refused.add(name)
    assert refused == {mistake.name for mistake in MISTAKES if mistake.refused}
