"""A canary on the whole container: all web workers, and one that is started again."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import commands, running, wait_for
from tests.end_to_end.test_on_demand import added, ask_adder, write_adder


@pytest.mark.slow
def test_all_web_workers_follow_a_rollout_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """Version 1 adds 1, and version 2, the latest, adds 2."""
    model = tmp_path / "models" / "adder"
    for version in (2, 1):
        write_adder(model, version)
        if version == 2:
            (model / "1").rename(model / "2")
    with (model / "config.pbtxt").open("a") as config:
        config.write("version_policy { all { } }")
    # (Else it falls back where the machine, busy with something else, makes it slow.)
    (model / "dispatch.toml").write_text("canary = {version = 2, share = 0.0, p99_ms = 300_000}")
    settings = {"MODEL_REPOSITORY": str(tmp_path / "models"), "MODEL_SERVER_WORKERS": "2"}
    with running(tmp_path, **settings) as endpoint, ThreadPoolExecutor(8) as callers:
        wait_for(lambda: endpoint.call("/ping").status == 200, "the model")

        def answers(name: str = "adder") -> Counter[tuple[float, str | None]]:
            came = callers.map(lambda _: ask_adder(endpoint, name), range(24))
            return Counter((added(one)[0], one.headers.get("X-Canary")) for one in came)

        def put(**canary: Any) -> None:
            body = json.dumps({"canary": canary})
            answer = endpoint.call("/models/adder/rollout", body, "PUT")
            assert (answer.status, answer.json["waiting"]) == (200, {}), answer

        assert answers() == {(1, None): 24}
        for _ in range(5):
            put(share=1)
            assert answers() == {(2, "version=2"): 24}
            assert endpoint.call("/models/adder/rollout/back", "", "POST").json["back"]
            assert answers() == {(1, None): 24}
        put(share=1)
        assert answers("adder?modelversion=1") == {(1, None): 24}
        workers = [*commands(endpoint.process.pid, "gunicorn")]
        for worker in workers[1:]:
            os.kill(worker, signal.SIGKILL)
        wait_for(
            lambda: len({*commands(endpoint.process.pid, "gunicorn")} - {*workers}) >= 2,
            "new web workers",
        )
        wait_for(lambda: endpoint.call("/ping").status == 200, "a new web worker")
        assert answers() == {(2, "version=2"): 24}
        assert endpoint.call("/models/adder/rollout/promote", "", "POST").status == 200
        assert answers() == {(2, None): 24}
        assert (
            endpoint.call("/models/adder/rollout", None, "DELETE").json["stable"]["version"] == "1"
        )
        assert answers() == {(1, None): 24}
        for choice in ("canary version=2", "stable version=1"):
            assert f'"choice": "{choice}"' in endpoint.log.read_text()
