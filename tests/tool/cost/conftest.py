from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tool.__main__ import main

Cost = Callable[..., dict[str, Any]]

# Round numbers, for arithmetic by hand.
PRICES = {
    "date": "2026-01-31",
    "region": "nowhere",
    "source": "made up",
    "instances": {
        "small": {"usd_per_hour": 1, "vcpus": 2, "memory_gib": 4, "gpus": 0},
        "large": {"usd_per_hour": 3, "vcpus": 8, "memory_gib": 32, "gpus": 0},
        "gpu": {"usd_per_hour": 5.5, "vcpus": 4, "memory_gib": 16, "gpus": 1},
    },
}


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(PRICES))
    return path


@pytest.fixture
def cost(prices: Path, capsys: pytest.CaptureFixture[str]) -> Cost:
    """Run the command with those prices; return what it prints as JSON."""

    def run(*arguments: object) -> dict[str, Any]:
        assert main(["cost", *map(str, arguments), "--prices", str(prices), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run
