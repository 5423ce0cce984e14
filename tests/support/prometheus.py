"""A real Prometheus with the project's configuration, which scrapes what tests run."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PATIENCE_S, PROJECT, free_ports, wait_for

OBSERVE = PROJECT / "deploy" / "observe"
JOB = "triton-dispatcher"

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="there is no Prometheus: `make test` installs it, by apt-get install prometheus",
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool in the folder of the rules."""
    return subprocess.run(
        ["promtool", *arguments], cwd=OBSERVE, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    port: int

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API; fail with its message if it has none."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{query}") as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{parameters}: {error.read().decode()}")

    def series(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression as they are now."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found


@contextmanager
def prometheus(folder: Path, *targets: int, every: str = "3s") -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes some ports of this machine; it is gone afterwards."""
    settings = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": every, "evaluation_interval": every}
    settings["rule_files"] = [str(OBSERVE / name) for name in settings["rule_files"]]
    (job,) = settings["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in targets]}]
    file, log = folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(settings))
    (port,) = free_ports(1)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=output,
        )
    running = Prometheus(port)
    try:
        wait_for(lambda: is_ready(port, process), log.read_text)
        yield running
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def is_ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "Prometheus has ended"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def judged(folder: Path, test: dict[str, Any], *rules: Path) -> str:
    """Return what `promtool test rules` says against a test; empty where it agrees."""
    file = folder / "judged.test.yml"
    tests = {"rule_files": [str(one) for one in rules], "evaluation_interval": "15s"}
    file.write_text(yaml.safe_dump({**tests, "tests": [test]}))
    done = promtool("test", "rules", file)
    return done.stdout + done.stderr if done.returncode else ""
