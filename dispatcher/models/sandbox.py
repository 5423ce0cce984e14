"""Tests clients in a separate process, so that they cannot affect the web workers.

`python -m dispatcher.models.sandbox FILE` reads a job from its input, as JSON. It appends
a line to FILE when it begins with a source, and another with what it found. If it hangs or dies,
the last line names the source that is the cause.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from clients.base import Client
from clients.families.base.dispatch_toml import authors
from clients.plugins.discovery import Source, names_in, sources
from clients.plugins.registry import Loaded, Registry, find_client, load
from clients.triton.client import Triton, TritonEnvironment
from clients.triton.connection import Address
from dispatcher.exit_codes import in_words
from dispatcher.models.links import link_repair
from dispatcher.settings import Settings, read_settings, remote_triton
from dispatcher.status.checks import failures

MODULE = "dispatcher.models.sandbox"
PROCESS_SHARE = 0.6  # of the time that is left, for one process: one that hangs leaves the rest
# At the start at least, in seconds: while all programs start, imports alone take several.
LEAST_AT_START_S = 30.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Tried(NamedTuple):
    """What was found of a source."""

    reason: str = ""
    """Why some of its clients do not work; empty where all do."""
    is_fatal: bool = False
    """Whether it has ended the process, or kept it from its end."""


def environment_of(
    settings: Settings, shared_bytes: int = 0, *, scarce: bool = False
) -> TritonEnvironment:
    """Return the environment that clients are made with.

    Large tensors take so much shared memory, of which each model gets a part where it is scarce.
    """
    repository = settings.model_repository
    repair = link_repair(settings)
    server = Triton(address_of(settings), shared_bytes, repository, scarce=scarce, repair=repair)
    return TritonEnvironment(server, repository, max_pixels=settings.max_megapixels * 1_000_000)


def address_of(settings: Settings) -> Address:
    url = settings.triton_url or f"127.0.0.1:{settings.triton_ports['grpc']}"
    metadata = settings.triton_metadata
    return Address(
        url.removeprefix(remote_triton.TLS).removeprefix("grpc://"),
        tls=url.startswith(remote_triton.TLS),
        ca_file=settings.triton_ca_file,
        certificate_file=settings.triton_certificate_file,
        metadata=remote_triton.TritonMetadata(metadata) if metadata else tuple,
    )


def try_sources(
    found: Iterable[Source],
    kept: Mapping[str, str],
    settings: Settings,
    *,
    at_start: bool = False,
) -> dict[str, Tried]:
    """Try clients in processes of their own; return what was found of each source.

    A process that ends early costs its source alone: the next process tries the others. All of it
    takes no longer than a request may, or at the start LEAST_AT_START_S, if that is longer. At the
    start no examples are asked: Triton may not run yet.
    `kept` are the sources of the clients that stay, by name.
    """
    within = settings.client_timeout
    if at_start:  # the rest of the start takes time too
        within = min(max(within, LEAST_AT_START_S), settings.start_timeout / 2)
    deadline = time.monotonic() + within
    left = [source.where for source in found]
    tried: dict[str, Tried] = {}
    while left:
        job = {"try": left, "taken": dict(kept), "ask": not at_start, "within": within}
        done, begun, end = run_process(job, settings, deadline)
        failed = [begun] if begun in left else [] if done else left
        tried |= done
        tried |= {where: Tried(f"{authors(where)}: {end}", is_fatal=True) for where in failed}
        left = [where for where in left if where not in tried]
    return tried


def run_process(
    job: Mapping[str, object], settings: Settings, deadline: float
) -> tuple[dict[str, Tried], str, str]:
    """Run one process; return what it found, the source that it did not finish, and its end."""
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir=settings.run_dir) as folder:
        lines = Path(folder) / "lines"
        lines.touch()
        timeout = max(0.0, deadline - time.monotonic()) * PROCESS_SHARE
        with subprocess.Popen(
            [sys.executable, "-m", MODULE, str(lines)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            env={**os.environ, **settings.environment()},
            process_group=0,  # processes that a class starts belong to it
        ) as process:
            try:
                process.communicate(json.dumps(job).encode(), timeout=timeout)
                end = f"the process that tested it ended with {in_words(process.returncode)}"
            except subprocess.TimeoutExpired:
                end = f"it was not done within {timeout:.0f} s, and was stopped"
            finally:
                with suppress(ProcessLookupError):  # the whole group has ended
                    os.killpg(process.pid, signal.SIGKILL)
        written = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    done = {line["where"]: Tried(line["reason"]) for line in written if "reason" in line}
    begun = written[-1]["where"] if written and "reason" not in written[-1] else ""
    return done, begun, end


def main(arguments: list[str]) -> int:
    """Try the sources that the input names; return the exit code."""
    settings = read_settings(os.environ)
    # If the worker that waits for this process dies, the whole group ends. (Not by SIGTERM: a class
    # may end processes of its own by that, and forked processes have the same handlers.)
    signal.signal(signal.SIGRTMIN, lambda *_: os.killpg(0, signal.SIGKILL))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGRTMIN)
    with suppress(OSError):  # when memory runs out, the kernel kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(levelname)s sandbox %(name)s: %(message)s"
    )
    job = json.load(sys.stdin)
    signal.alarm(math.ceil(job["within"]))
    environment, registry, taken = environment_of(settings), Registry(), dict(job["taken"])
    there = list(sources(settings.model_repository, settings.clients_path))

    def make(source: Source, taken: Mapping[str, str]) -> Loaded:
        loaded = load(source, environment, taken)
        registry.put({**registry.loaded, source.where: loaded})
        return loaded

    def find(asked: str, until: float) -> Client:
        """Return the client that a tried class asks; make one that is not tried here."""
        others = {name for one in there for name in names_in(one) if name != one.where}
        for source in there:
            is_its = source.where == taken.get(asked) or asked in names_in(source)
            if is_its and source.where not in registry.loaded:
                make(source, {})
        return find_client(registry, environment, asked, until, others)

    environment.others.find = find
    with Path(arguments[0]).open("a", buffering=1, encoding="utf-8") as lines:
        for source in there:
            if source.where not in job["try"]:
                continue
            lines.write(json.dumps({"where": source.where}) + "\n")
            loaded = make(source, taken)
            failing = failures(loaded.clients, settings.client_timeout) if job["ask"] else {}
            taken |= dict.fromkeys(loaded.clients.keys() - failing, source.where)
            found = {"where": source.where, "reason": in_one({**loaded.broken, **failing})}
            lines.write(json.dumps(found) + "\n")
    return 0


def in_one(reasons: Mapping[str, str]) -> str:
    """Return the reasons why clients of one source do not work as one text."""
    return "; ".join(dict.fromkeys(reasons.values()))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # The usual exit would wait for threads that a class has started.
    os._exit(code)
