"""Tries clients in a process of its own: whatever they do there, the web workers go on.

`python -m dispatcher.model_control.sandbox FILE` reads from its input what is to be kept and passed
over, as JSON, and writes to FILE a line when it begins with a source, and one with what it found.
Where it hangs or dies, the last line says over what.
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
from dataclasses import asdict
from pathlib import Path

from clients.base import Client
from clients.errors import ClientDisabled, InferenceError
from clients.plugins.discovery import Source, names_in, sources, tried
from clients.plugins.dispatch_toml import authors
from clients.plugins.registry import Loaded, Verdict, described, load
from clients.triton.client import Triton, TritonEnvironment
from dispatcher.exit_codes import in_words
from dispatcher.readiness.prober import ask_example
from dispatcher.settings import Settings, read_settings

log = logging.getLogger(__name__)

MODULE = "dispatcher.model_control.sandbox"
MOST_OF_IT = 0.6
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def environment_of(
    settings: Settings, shared_bytes: int = 0, *, scarce: bool = False
) -> TritonEnvironment:
    """Return what clients are made with.

    Args:
        settings: of the container.
        shared_bytes: of shared memory, for large tensors.
        scarce: whether models have no more than parts of it.

    """
    address = f"127.0.0.1:{settings.triton_grpc_port}"
    return TritonEnvironment(
        Triton(address, shared_bytes, settings.model_repository, scarce=scarce),
        settings.model_repository,
        max_pixels=settings.max_megapixels * 1_000_000,
    )


def try_sources(
    found: Iterable[Source],
    kept: Mapping[str, str],
    settings: Settings,
    *,
    at_start: bool = False,
    command: Iterable[str] = (sys.executable, "-m", MODULE),
) -> dict[str, Verdict]:
    """Try clients in processes of their own; return what is to be thought of each source.

    Args:
        found: what is tried.
        kept: the sources of the names that others have.
        settings: of the container; all of it may take as long as a request.
        at_start: whether Triton may not be there yet: they are made, and not asked.
        command: starts the process; its last argument is added.

    """
    within = settings.client_timeout
    if at_start:  # the rest of it is needed too
        within = min(within, settings.start_timeout / 2)
    deadline = time.monotonic() + within
    left = {source.where: source for source in found}
    verdicts: dict[str, Verdict] = {}
    while left:
        done, guilty, end = one_process(
            list(command),
            {"try": list(left), "taken": dict(kept), "ask": not at_start},
            settings,
            deadline,
        )
        verdicts |= done
        if guilty in left:
            verdicts[guilty] = fallen(left[guilty], end)
        elif not done:
            verdicts |= {where: fallen(source, end) for where, source in left.items()}
        left = {where: source for where, source in left.items() if where not in verdicts}
    return verdicts


def fallen(source: Source, end: str) -> Verdict:
    """Return what is to be thought of a source over which a process ended."""
    return Verdict(
        tried(source), bad=dict.fromkeys(names_in(source), f"{authors(source.where)}: {end}")
    )


def one_process(
    command: list[str], job: Mapping[str, object], settings: Settings, deadline: float
) -> tuple[dict[str, Verdict], str, str]:
    """Run one process; return what it found, over which source it ended, and how."""
    with tempfile.TemporaryDirectory(prefix="trial-", dir=settings.run_dir) as folder:
        lines = Path(folder) / "lines"
        lines.touch()
        # What hangs must leave some time to the others.
        time_left = max(0.0, deadline - time.monotonic()) * MOST_OF_IT
        with subprocess.Popen(
            [*command, str(lines)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            env={**os.environ, **settings.environment()},
            process_group=0,  # what a class starts belongs to it
        ) as process:
            try:
                process.communicate(json.dumps(job).encode(), timeout=time_left)
                end = f"the process that tried it ended with {in_words(process.returncode)}"
            except subprocess.TimeoutExpired:
                end = f"it was not done within {time_left:.0f} s, and was stopped"
            finally:
                with suppress(ProcessLookupError):  # there is nothing left of it
                    os.killpg(process.pid, signal.SIGKILL)
        told = [json.loads(line) for line in lines.read_text().splitlines()]
    done = {line["where"]: Verdict.of_json(line) for line in told if "mark" in line}
    begun = told[-1]["where"] if told and "mark" not in told[-1] else ""
    return done, begun, end


def main(arguments: list[str]) -> int:
    """Try what the input names; return the exit code."""
    settings = read_settings(os.environ)
    # Where the worker that waits for this one dies, nobody else would stop it and what it started.
    # (Not by SIGTERM: forked processes have the same handlers, and a class ends its own by that.)
    signal.signal(signal.SIGRTMIN, lambda *_: os.killpg(0, signal.SIGKILL))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGRTMIN)
    signal.alarm(math.ceil(settings.client_timeout))
    with suppress(OSError):  # where memory runs out, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000")
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(levelname)s trial %(name)s: %(message)s"
    )
    job = json.load(sys.stdin)
    environment, taken = environment_of(settings), dict(job["taken"])
    with Path(arguments[0]).open("a", buffering=1) as lines:
        for source in sources(settings.model_repository, settings.clients_path):
            if source.where not in job["try"]:
                continue
            lines.write(json.dumps({"where": source.where}) + "\n")
            loaded = load(source, environment, taken)
            failing = failures(loaded, settings.client_timeout) if job["ask"] else {}
            good = tuple(name for name in loaded.clients if name not in failing)
            verdict = Verdict(tried(source), good, loaded.broken | failing)
            taken |= dict.fromkeys(good, source.where)
            lines.write(json.dumps({"where": source.where, **asdict(verdict)}) + "\n")
    return 0


def failures(loaded: Loaded, timeout: float) -> dict[str, str]:
    """Return why a client of a source fails its own example, for each that does."""
    return {
        name: f"the client of {name!r} fails on its own example: {reason}"
        for name, client in loaded.clients.items()
        if (reason := failure(name, client, timeout))
    }


def failure(name: str, client: Client, timeout: float) -> str:
    """Return why a client fails its own example; nothing where it does not."""
    try:
        ask_example(client, timeout)
    except ClientDisabled as error:  # its hint is to do what is being done
        return error.message
    except InferenceError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    except (Exception, SystemExit) as error:
        log.exception("the example of %s fails in its client", name)
        return f"{described(error)}; the log has the traceback"
    return ""


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Not by the usual way: it would wait for threads that a class has started.
    os._exit(code)
