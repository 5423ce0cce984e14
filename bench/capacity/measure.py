"""Measure the service times of models on this machine, and compare simulation and server."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.capacity.service import Run, Service, Sizes, Times
from bench.capacity.simulation import Outcome, arrivals, simulate
from bench.load import load, work
from bench.measure import BUSY_ELSEWHERE, Elsewhere, Results, quietly, say
from bench.servers.contenders import Contender, this_server
from bench.servers.processes import cpu_ms

LOG_S = 0.3  # lines are written ten times a second
WARM_S = 0.5
SEEDS = range(1, 10)
ALL = sorted(os.sched_getaffinity(0))


@contextmanager
def serving(model: str, cores: int, cache: Path) -> Iterator[Contender]:
    """Serve one model alone on the first cores of this process, and stop it afterwards.

    Meanwhile this process, which asks, keeps to the other cores, if there are any.

    Raises:
        Skipped: it does not start.

    """
    repository = cache / "capacity" / model
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(
        work.PROJECT / "model_repository" / model, repository / model, copy_function=linked
    )
    server = this_server(repository, cache / "run", model, f"{model} on {cores}")
    server.command = ["taskset", "--cpu-list", ",".join(map(str, ALL[:cores])), *server.command]
    server.start()
    os.sched_setaffinity(0, ALL[cores:] or ALL)
    try:
        server.wait_for(work.payload(model))
        yield server
    finally:
        os.sched_setaffinity(0, ALL)
        server.stop()


def machine() -> str:
    """Return what these measurements are of."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    name = found[1].strip() if found else "an unknown processor"
    return f"{time.strftime('%d %B %Y')}, {name}, {len(ALL)} cores, MODEL_PRECISION=exact"


def linked(source: str, target: str) -> None:
    Path(target).symlink_to(Path(source).resolve())


def batch_of(server: Contender, model: str) -> int:
    """Return the most requests that share a run, by the configuration that Triton has."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", f"/v2/models/{model}/config")
    config = json.loads(connection.getresponse().read())
    connection.close()
    if "dynamic_batching" not in config:
        return 1
    preferred = config["dynamic_batching"].get("preferred_batch_size", [])
    return int(max(preferred, default=config["max_batch_size"]))


def measured(
    server: Contender, model: str, cores: int, seconds: float, results: Results
) -> Service:
    """Return a model's service times by lone requests, of one payload and of lists.

    A list of payloads is one batch in one run. What others disturb is measured again, as long as
    `results.patience_s` lasts.
    """
    most = batch_of(server, model)
    found: dict[int, Lone] = {}
    for size in (size for size in (1, 2, 4, 8, 16) if size <= most):
        found[size] = one = quietly(results, partial(lone, server, model, size, cores, seconds))
        say(
            f"{model} on {cores}, {size} in a run: {one.inference.at(0.5) * 1e3:.1f} ms; others "
            f"used {one.elsewhere:.0%}"
        )
    # What web worker, NGINX and Triton compute is done for each request, not for each run,
    # whatever phase of the request it is in.
    alone = found[1]
    moved = max(0.0, alone.front_cpu - alone.front.mean)
    runs = {size: one.run(cores, moved) for size, one in found.items()}
    return Service(most, alone.front.plus(moved), runs, 1, alone.bytes_in, alone.bytes_out)


@dataclass(frozen=True)
class Lone:
    """What requests of one size took, one at a time; times in seconds, of a request.

    Args:
        elsewhere: the share of its cores that other programs used meanwhile.
        inference: waiting for the model.
        front: the rest, until the caller has the answer.
        model_cpu: processor time of the model's process.
        front_cpu: processor time of web worker, NGINX and Triton.

    """

    elsewhere: float
    inference: Times
    front: Times
    model_cpu: float
    front_cpu: float
    bytes_in: int
    bytes_out: int

    def run(self, cores: int, moved: float) -> Run:
        """Return the run alone, without what belongs to the request."""
        times = self.inference.plus(-moved)
        return Run(times, min(float(cores), max(0.05, self.model_cpu / times.mean)))


def lone(server: Contender, model: str, size: int, cores: int, seconds: float) -> Lone:
    """Ask with lists of a size, one at a time."""
    payload = work.payload(model)
    body = {"modelname": model, "payload": payload if size == 1 else [payload] * size}
    asked = load.request(server.path, json.dumps(body).encode())
    time.sleep(LOG_S)
    begin = server.log.stat().st_size
    elsewhere, before = Elsewhere(cores, ALL[:cores]), cpu_ms(*server.pids)
    loop = load.closed_loop(server.port, [asked], 1, seconds, WARM_S)
    used = cpu_ms(*server.pids) - before
    share = elsewhere.share(used.total())
    time.sleep(LOG_S)
    with server.log.open("rb") as log:
        log.seek(begin)
        lines = [json.loads(line) for line in log if line.startswith(b"{")]
    answers = [line for line in lines if line.get("model") == model and "inference_s" in line]
    answers = answers[-len(loop.times) :]  # without those before it had got going
    outside = statistics.mean(loop.times) - statistics.mean(one["total_s"] for one in answers)
    return Lone(
        share,
        Times.of(one["inference_s"] for one in answers),
        Times.of(one["total_s"] - one["inference_s"] + outside for one in answers),
        used[f"model process of {model}"] / loop.answers / 1e3,
        (used["gunicorn"] + used["NGINX"] + used["Triton"]) / loop.answers / 1e3,
        answers[-1]["bytes_in"],
        answers[-1]["bytes_out"],
    )


@dataclass(frozen=True)
class Comparison:
    """One load: what was measured beside what was simulated; times in ms."""

    model: str
    cores: int
    share: float
    requests: int
    rate: float
    per_second: tuple[float, float]
    p50: tuple[float, float]
    p99: tuple[float, float]
    refused: tuple[float, float]
    elsewhere: float


def compare(
    server: Contender, model: str, cores: int, service: Service, share: float, seconds: float
) -> Comparison:
    """Send Poisson arrivals at a share of the capacity, and simulate the same arrivals."""
    rate = share * cores / service.core_seconds()
    rates = [(0.0, rate), (seconds, rate)]
    when = arrivals(rates, seed=1)
    elsewhere, before = Elsewhere(cores, ALL[:cores]), cpu_ms(*server.pids)
    asked = server.request(work.payload(model))
    took = load.at_times(server.port, asked, when.tolist())
    used = (cpu_ms(*server.pids) - before).total()
    others = elsewhere.share(used)
    runs = [
        simulate(rates, {model: 1.0}, {model: service}, 1, cores, seed=1, service_seed=seed)
        for seed in SEEDS
    ]
    real = replace(runs[0], took=np.array(took))
    middle = partial(median_of, runs)
    return Comparison(
        model,
        cores,
        share,
        len(when),
        rate,
        (real.per_second(), middle(lambda one: one.per_second())),
        (real.quantile(0.5) * 1e3, middle(lambda one: one.quantile(0.5)) * 1e3),
        (real.quantile(0.99) * 1e3, middle(lambda one: one.quantile(0.99)) * 1e3),
        (real.refused, middle(lambda one: one.refused)),
        others,
    )


def median_of(runs: Sequence[Outcome], figure: Callable[[Outcome], float]) -> float:
    return statistics.median(figure(one) for one in runs)


def check(
    models: Sequence[str],
    cores: Sequence[int],
    shares: Sequence[float],
    results: Results,
    cache: Path,
    save: Callable[[Mapping[str, Sizes]], None],
) -> tuple[dict[str, Sizes], list[Comparison]]:
    """Measure service times and loads of real servers; return them, and what was simulated.

    `save` is called with what there is after each measurement of service times.
    """
    services: dict[str, Sizes] = {}
    found = []
    for model in models:
        for number in cores:
            with serving(model, number, cache) as server:
                one = measured(server, model, number, results.seconds / 6, results)
                services.setdefault(model, {})[number] = one
                save(services)
                for share in shares:
                    at = partial(compare, server, model, number, one, share, results.seconds)
                    found.append(quietly(results, at))
                    sys.stderr.write(row(found[-1]) + "\n")
    return services, found


HEAD = (
    "| model | cores | load | requests | answers/s | simulated | p50 ms | simulated | p99 ms "
    "| simulated | others used |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(one: Comparison) -> str:
    """Return a comparison as a row of a table, with the errors of the simulation."""
    pairs = " | ".join(
        f"{real:.{places}f} | {simulated:.{places}f} ({error(real, simulated)})"
        for (real, simulated), places in ((one.per_second, 1), (one.p50, 0), (one.p99, 0))
    )
    mark = "*" * (one.elsewhere > BUSY_ELSEWHERE)
    return (
        f"| {one.model} | {one.cores} | {one.share:.0%} | {one.requests} | {pairs} "
        f"| {one.elsewhere:.0%}{mark} |"
    )


def error(real: float, simulated: float) -> str:
    return f"{simulated / real - 1:+.0%}" if real else "–"


def table(found: Sequence[Comparison]) -> str:
    """Return all comparisons, and the errors in a sentence."""
    lines = [HEAD, *map(row, found), ""]
    for what, quiet in (
        ("all", found),
        ("undisturbed", [one for one in found if one.elsewhere <= BUSY_ELSEWHERE]),
    ):
        if quiet:
            errors = [
                f"{name} {statistics.median(abs(s / r - 1) for r, s in pairs):.0%} "
                f"(at most {max(abs(s / r - 1) for r, s in pairs):.0%})"
                for name, pairs in (
                    ("answers/s", [one.per_second for one in quiet]),
                    ("p50", [one.p50 for one in quiet]),
                    ("p99", [one.p99 for one in quiet]),
                )
            ]
            lines.append(f"Median error of {len(quiet)} runs ({what}): {', '.join(errors)}.")
    if any(one.elsewhere > BUSY_ELSEWHERE for one in found):
        lines.append(
            f"* Other programs used more than {BUSY_ELSEWHERE:.0%} of the cores: repeat it on a "
            "quiet machine."
        )
    return "\n".join(lines) + "\n"
