"""The requests in the README and the answers it shows for them.

usage: python -m tests.support.readme ENDPOINT     runs each against a server here, and compares
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

PROJECT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"```sh\n([^`]*?curl .*?)```\n```json\n(.*?)```", re.DOTALL)
WRITTEN_ENDPOINT = "http://127.0.0.1:8080"


def requests() -> list[tuple[str, Any]]:
    """Return each command and the answer that stands below it."""
    found = SHOWN.findall((PROJECT / "README.md").read_text())
    return [(command, json.loads(answer)) for command, answer in found]


def run_with_own_model(command: str, endpoint: str, folder: Path) -> Any:
    """Write the reader's own model into a folder, load it, and run the command that asks it."""
    page = (PROJECT / "README.md").read_text().replace("\\\n", "")
    (line,) = re.findall(r"^\.venv/bin/dispatcher (new-model .*) --into mine$", page, re.MULTILINE)
    words = shlex.split(line)
    program = [sys.executable, "-m", "tool", *words, "--into", folder]
    subprocess.run(program, cwd=PROJECT, capture_output=True, check=True)
    body = json.dumps({"model_name": words[1], "url": str(folder / words[1])}).encode()
    with urlopen(f"{endpoint}/models", body):
        return run(command, endpoint)


def run(command: str, endpoint: str) -> Any:
    """Return what a command of the README prints, asked of a container."""
    done = subprocess.run(
        ["sh", "-c", command.replace(WRITTEN_ENDPOINT, endpoint)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    return json.loads(done.stdout)


def same(came: Any, shown: Any) -> bool:
    """Whether two answers are the same but for the last digits of their numbers."""
    if isinstance(shown, dict) and isinstance(came, dict):
        alike = (k == "request_id" or same(came[k], shown[k]) for k in shown)
        return came.keys() == shown.keys() and all(alike)
    if isinstance(shown, list) and isinstance(came, list):
        return len(came) == len(shown) and all(map(same, came, shown))
    if isinstance(shown, int | float) and isinstance(came, int | float):
        return abs(came - shown) <= 0.01 * max(0.01, abs(shown))
    if isinstance(shown, str) and isinstance(came, str) and re.match(r"[\d.]+:", shown):
        score, _, label = shown.partition(":")
        came_score, _, came_label = came.partition(":")
        return label == came_label and same(float(came_score), float(score))
    return bool(came == shown)


def main(endpoint: str) -> int:
    """Run all; return how many answers differ."""
    wrong = 0
    *all_but_own, (last, of_last) = requests()
    found = [(run(command, endpoint), shown) for command, shown in all_but_own]
    with tempfile.TemporaryDirectory() as folder:
        found.append((run_with_own_model(last, endpoint, Path(folder)), of_last))
    for came, shown in found:
        wrong += not same(came, shown)
        sys.stdout.write(f"{'ok' if same(came, shown) else 'DIFFERS'}: {json.dumps(came)[:200]}\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
