"""Measure how long `./serve` takes until `/ping` is 200, and its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.load.load import once
from bench.servers.processes import memory_mb

PROJECT = Path(__file__).resolve().parent.parent
PORT = 18080
PING = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PATIENCE_S = 120


def one_start(settings: Mapping[str, str] = {}) -> tuple[float, list[tuple[str, float]]]:
    """Start the container once; return seconds to readiness and the memory."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "SAGEMAKER_BIND_TO_PORT": str(PORT),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{PORT + 1}-{PORT + 9}",
        **settings,
    }
    with tempfile.TemporaryFile() as log:
        before = time.monotonic()
        serve = subprocess.Popen([PROJECT / "serve"], env=environment, stdout=log, stderr=log)
        try:
            while once(PORT, PING)[0] != 200:
                if serve.poll() is not None or time.monotonic() > before + PATIENCE_S:
                    log.seek(0)
                    sys.exit(f"it does not start:\n{log.read().decode()[-2000:]}")
                time.sleep(0.02)
            return time.monotonic() - before, memory_mb(serve.pid)
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait()
