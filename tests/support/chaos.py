"""Faults under load, counted: what every caller got while processes were killed and stopped.

    python -m tests.support.chaos --minutes 10

serves two small models, asks them all the time, does something to one of the processes every few
seconds, and says in the end what became of the requests and how much memory is held.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals

from bench.servers.processes import memory_mb
from tests.conftest import Endpoint, commands, descendants, running, wait_for

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
CALLERS = 4
LONGEST_S = 300.0  # the promise of MODEL_SERVER_TIMEOUT, as `start` sets it

MODEL = """
import os, time
import triton_python_backend_utils as pb

HELD = []

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            numbers = pb.get_input_tensor_by_name(request, "INPUT").as_numpy()
            asked = numbers.flat[0]
            if asked == -1:
                os._exit(1)
            elif asked == -2:
                time.sleep(3600)
            elif asked == -3:
                raise ValueError("this model does not like -3")
            elif asked == -4:
                HELD.append(request)  # to be answered some time
                open(os.path.join(os.path.dirname(__file__), "held"), "w").close()
                answers.append(None)
                continue
            answers.append(pb.InferenceResponse([pb.Tensor("OUTPUT", numbers * 2)]))
        return answers
"""

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 8
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
"""

CLIENTS = """
from clients.base import Client

class Steady(Client):
    modelname = "steady"
    example = {"numbers": [1, 2]}

    def inference(self, payload):
        numbers = self.numbers(payload, "numbers")
        return self.infer({"INPUT": numbers[None]})["OUTPUT"][0].tolist()

class Frail(Steady):
    modelname = "frail"
"""

CRASH, HANG, RAISE, HOLD = -1, -2, -3, -4


def lay_out(folder: Path, *models: str) -> dict[str, str]:
    """Write models that double numbers, and their clients; return the settings that serve them."""
    for name in models:
        model = folder / "repository" / name
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG.format(name=name))
        (model / "1" / "model.py").write_text(MODEL)
    (folder / "clients").mkdir()
    (folder / "clients" / "doubling.py").write_text(CLIENTS)
    return {
        "MODEL_REPOSITORY": str(folder / "repository"),
        "CLIENTS_PATH": str(folder / "clients"),
        "MODEL_DIR_USE": "ignore",
    }


# What the processes of a container are found by, besides their place below `serve`.
PROCESSES = {
    "Triton": r"/tritonserver --",
    "a model's process": r"triton_python_backend_stub \S*/steady/",
    "gunicorn's master": r"gunicorn",
    "gunicorn's worker": r"gunicorn",
    "NGINX's master": r"nginx: (master|worker)",
    "NGINX's worker": r"nginx: (master|worker)",
}


def find(endpoint: Endpoint, name: str) -> list[int]:
    """Return the processes of one kind; there are none where one is being started.

    One that has just been forked has its parent's command line.
    """
    found = commands(endpoint.process.pid, PROCESSES[name])
    if name.endswith("worker"):
        found = {pid: found[pid] for pid in found.keys() & descendants(*found)}
    return sorted(found.keys() - descendants(*found))


def hit(endpoint: Endpoint, name: str, number: Signals) -> bool:
    """Send a signal to a process; return whether there was one."""
    found = find(endpoint, name)[:1]
    for pid in found:
        os.kill(pid, number)
    return bool(found)


@dataclass
class Load:
    """Callers that ask all the time, and what they got.

    An answer is `right` or `wrong`, or an honest error: its status and code. A caller who got none
    was `refused`, when nothing was taken in, or `cut` off.
    """

    endpoint: Endpoint
    models: tuple[str, ...] = ("steady",)
    counts: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    slowest: float = 0.0
    oddities: list[str] = field(default_factory=list)

    def one(self, model: str, numbers: list[float]) -> str:
        """Ask once; return what came of it."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.endpoint.port, timeout=2 * LONGEST_S
        )
        body = json.dumps({"modelname": model, "payload": {"numbers": numbers}})
        began = time.monotonic()
        try:
            connection.request("POST", "/invocations", body)
            response = connection.getresponse()
            return self.judged(response.status, response.headers, response.read(), numbers)
        except ConnectionRefusedError:
            return "refused"
        except (OSError, http.client.HTTPException) as error:
            self.oddities.append(repr(error))
            return "hung" if isinstance(error, TimeoutError) else "cut"
        finally:
            connection.close()
            self.slowest = max(self.slowest, time.monotonic() - began)

    def judged(
        self, status: int, headers: Mapping[str, str], body: bytes, numbers: list[float]
    ) -> str:
        with suppress(ValueError, KeyError):
            answer = json.loads(body)
            if status == 200:
                return "right" if answer["result"] == [2 * n for n in numbers] else "wrong"
            if status != 503 or "Retry-After" in headers:
                return f"{status} {answer['error']['code']}"
        self.oddities.append(f"{status} {dict(headers)} {body[:200]!r}")
        return "wrong"

    @contextmanager
    def going_on(self) -> Iterator[Load]:
        done, lock = threading.Event(), threading.Lock()

        def ask_on(seed: int) -> None:
            dice = random.Random(seed)
            while not done.wait(0.02):
                numbers = [float(dice.randrange(1000)) for _ in range(3)]
                with lock:
                    self.sent += 1
                outcome = self.one(dice.choice(self.models), numbers)
                with lock:
                    self.counts[outcome] += 1

        callers = [threading.Thread(target=ask_on, args=(seed,)) for seed in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            yield self
        finally:
            done.set()
            for caller in callers:
                caller.join()

    def check(self, *, cut: bool = False) -> None:
        """See that everyone was answered once, rightly or honestly, and in time.

        Args:
            cut: NGINX itself was hit: nobody else can tell its callers.

        """
        assert sum(self.counts.values()) == self.sent
        honest = {"right", "503 unavailable", "503 model_unavailable", "502 model_failed"}
        honest |= {"503 model_busy", "504 deadline_exceeded"} | (
            {"cut", "refused"} if cut else set()
        )
        assert set(self.counts) <= honest, (self.counts, self.oddities[:5])
        assert self.slowest < LONGEST_S


def ping(endpoint: Endpoint, timeout: float = 3.0) -> int:
    """Return the status of /ping; 0 where there was no answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=timeout)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def soak(endpoint: Endpoint, seconds: float, every: float) -> None:
    """Do something to one of the processes every few seconds, in a fixed order of chance."""
    dice = random.Random(6)
    faults: Counter[str] = Counter()
    load = Load(endpoint)
    with load.going_on():
        time.sleep(10)
        wait_for(lambda: load.counts["right"] > 500, "answers that make it warm")
        warm = held_mb(endpoint)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            name = dice.choice(list(PROCESSES))
            number = dice.choice([KILL, KILL, STOP])
            if hit(endpoint, name, number):
                faults[f"{number.name} {name}"] += 1
            time.sleep(dice.uniform(0.5, 1.5) * every)
        wait_for(lambda: ping(endpoint) == 200, "/ping turning 200")
        time.sleep(5)
        held = held_mb(endpoint)
    say(f"faults: {dict(sorted(faults.items()))}")
    say(f"requests: {load.sent}, answers: {dict(load.counts)}, slowest: {load.slowest:.1f} s")
    say(f"memory: {warm:.0f} MB after warm-up, {held:.0f} MB in the end")
    say(f"restarts: {endpoint.call('/health').json['programs']}")
    load.check(cut=True)
    assert held < 1.1 * warm


def held_mb(endpoint: Endpoint) -> float:
    """Return what the container's processes hold; shared pages count in parts."""
    return memory_mb(endpoint.process.pid)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--port", type=int, help="the server's, for a Prometheus; else a free one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        settings = lay_out(Path(name), "steady", "frail")
        if chosen.port:
            settings["SAGEMAKER_BIND_TO_PORT"] = str(chosen.port)
        with running(Path(name), SERVE_RESTARTS="1000000", **settings) as started:
            endpoint = replace(started, port=chosen.port or started.port)
            say(f"serving on port {endpoint.port}")
            soak(endpoint, 60 * chosen.minutes, 6)


if __name__ == "__main__":
    main()
