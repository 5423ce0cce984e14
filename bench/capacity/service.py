"""Service times of models, as they were measured: a file, or a server's own counts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tool.cost.read import ASKED, BUSY, CPU, MICRO, REQUESTS, RUNS, Page
from tool.trouble import Trouble

CORES_OF_A_RUN = 4  # at most, as the server divides more of them
EXAMPLE = "`python -m bench.capacity --measure resnet --into FILE` writes one"


@dataclass(frozen=True)
class Times:
    """A distribution of seconds: sorted samples, and everything between two neighbours."""

    seconds: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Times:
        """Return the distribution of some samples."""
        return cls(tuple(sorted(seconds)))

    def at(self, share: float) -> float:
        """Return the time within which this share (0 to 1) is done."""
        place = share * (len(self.seconds) - 1)
        below = int(place)
        least = self.seconds[below]
        if below + 1 == len(self.seconds):
            return least
        return least + (self.seconds[below + 1] - least) * (place - below)

    @property
    def mean(self) -> float:
        return math.fsum(self.seconds) / len(self.seconds)

    def plus(self, more: float) -> Times:
        """Return the same distribution, all times longer; none is below 0."""
        return Times(tuple(max(0.0, one + more) for one in self.seconds))

    def times(self, factor: float) -> Times:
        """Return the same distribution, all times multiplied."""
        return Times(tuple(one * factor for one in self.seconds))


@dataclass(frozen=True)
class Run:
    """Runs of one batch size, each on an idle machine.

    Args:
        times: of the runs.
        width: how many cores a run keeps busy on average.

    """

    times: Times
    width: float


@dataclass(frozen=True)
class Service:
    """One model on a machine of some size.

    Args:
        batch: the most requests that share a run.
        front: what a request takes besides its run, on one core: reading, decoding, answering.
        runs: by batch size; sizes between two that were measured are interpolated.
        streams: runs at a time.
        bytes_in: of a request.
        bytes_out: of a response.

    """

    batch: int
    front: Times
    runs: Mapping[int, Run]
    streams: int = 1
    bytes_in: int = 0
    bytes_out: int = 0
    _between: dict[int, tuple[Run, Run, float]] = field(default_factory=dict, compare=False)

    def run(self, size: int, share: float) -> tuple[float, float]:
        """Return seconds and width of a run, at a share of its distribution."""
        if size not in self._between:
            self._between[size] = self._neighbours(size)
        low, high, weight = self._between[size]
        seconds = low.times.at(share)
        seconds += (high.times.at(share) - seconds) * weight
        return seconds, low.width + (high.width - low.width) * min(1.0, weight)

    def _neighbours(self, size: int) -> tuple[Run, Run, float]:
        sizes = sorted(self.runs)
        if len(sizes) == 1:
            run = self.runs[sizes[0]]
            return run, Run(run.times.times(2), run.width), (size - sizes[0]) / sizes[0]
        index = min(max(1, sum(one < size for one in sizes)), len(sizes) - 1)
        low, high = sizes[index - 1], sizes[index]
        return self.runs[low], self.runs[high], (size - low) / (high - low)

    def core_seconds(self) -> float:
        """Return what one request takes of the cores where batches are full."""
        size = max(self.runs)
        return self.front.mean + self.runs[size].times.mean * self.runs[size].width / size

    def alone(self, share: float) -> float:
        """Return the time of a lone request: its front and its run both at this share."""
        return self.front.at(share) + self.runs[min(self.runs)].times.at(share)


Sizes = dict[int, Service]
"""One model's service by the number of cores that were measured."""


def on_cores(sizes: Sizes, cores: int) -> Service:
    """Return a model's service on a machine of some size, extrapolated where not measured.

    A run keeps its processor time; what two cores save of one core's time gives by Amdahl's law the
    part that more cores save. Runs at a time follow the server's own rule.
    """
    if cores in sizes:
        return sizes[cores]
    nearest = sizes[max((one for one in sizes if one < cores), default=min(sizes))]
    used = min(cores, CORES_OF_A_RUN)
    runs = {}
    for size, run in nearest.runs.items():
        work = run.times.mean * run.width
        serial = serial_share(sizes, size)
        seconds = work * (serial + (1 - serial) / used)
        factor = seconds / run.times.mean if run.times.mean else 1.0
        runs[size] = Run(run.times.times(factor), min(used, work / seconds if seconds else 1.0))
    streams = max(1, cores // CORES_OF_A_RUN)
    return Service(nearest.batch, nearest.front, runs, streams, nearest.bytes_in, nearest.bytes_out)


def serial_share(sizes: Sizes, batch: int) -> float:
    """Return which part of a run one core does while the others wait: 0 where not known."""
    widest = max(sizes)
    run = sizes[widest].runs.get(batch)
    if widest == 1 or run is None or not run.width:
        return 0.0
    # Of a time T on n cores, T × width is work: width = 1 / (serial + (1 - serial) / n).
    most = min(widest, CORES_OF_A_RUN)
    return min(1.0, max(0.0, (1 / run.width - 1 / most) / (1 - 1 / most)))


def read_services(path: Path) -> dict[str, Sizes]:
    """Read a file of service times: of each model, by the number of cores.

    Raises:
        Trouble: it cannot be read, or a field is not what it should be.

    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Trouble(f"{path} cannot be read: {error.strerror}; {EXAMPLE}") from error
    except ValueError as error:
        raise Trouble(f"{path} is not JSON: {error}; {EXAMPLE}") from error
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, dict) or not models:
        raise Trouble(f'{path} has no object "models" with at least one; {EXAMPLE}')
    found = {}
    for name, sizes in models.items():
        if not isinstance(sizes, dict) or not sizes:
            raise Trouble(f"{path}: {name} has no measurement; expected one by cores; {EXAMPLE}")
        found[name] = {
            whole(cores, f"{path}: cores of {name}"): service(one, f"{path}: {name} on {cores}")
            for cores, one in sizes.items()
        }
    return found


def service(given: Any, where: str) -> Service:
    if not isinstance(given, dict):
        raise Trouble(f"{where} is no object; {EXAMPLE}")
    runs = given.get("runs")
    if not isinstance(runs, dict) or not runs:
        raise Trouble(f'{where} has no object "runs" by batch size; {EXAMPLE}')
    return Service(
        whole(given.get("batch", 1), f"{where}: batch"),
        times(given.get("front_ms"), f"{where}: front_ms"),
        {
            whole(size, f"{where}: size of a batch"): Run(
                times((run if isinstance(run, dict) else {}).get("ms"), f"{where}: ms of {size}"),
                number((run if isinstance(run, dict) else {}).get("width"), f"{where}: width"),
            )
            for size, run in runs.items()
        },
        whole(given.get("streams", 1), f"{where}: streams"),
        int(number(given.get("bytes_in", 0), f"{where}: bytes_in")),
        int(number(given.get("bytes_out", 0), f"{where}: bytes_out")),
    )


def times(given: Any, where: str) -> Times:
    if not isinstance(given, list) or not given:
        raise Trouble(f"{where} is no list of milliseconds; {EXAMPLE}")
    return Times.of(number(one, where) / 1e3 for one in given)


def number(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise Trouble(f"{where} is {json.dumps(given)}; expected a number from 0")
    if not 0 <= given < math.inf:
        raise Trouble(f"{where} is {given}; expected a number from 0")
    return float(given)


def whole(given: Any, where: str) -> int:
    text = str(given)
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise Trouble(f"{where} is {json.dumps(given)}; expected a whole number from 1 to 10000")
    return int(text)


def written(services: Mapping[str, Sizes], notes: str) -> str:
    """Return the file that `read_services` reads."""
    models = {
        name: {
            str(cores): {
                "batch": one.batch,
                "streams": one.streams,
                "bytes_in": one.bytes_in,
                "bytes_out": one.bytes_out,
                "front_ms": milliseconds(one.front),
                "runs": {
                    str(size): {"width": round(run.width, 3), "ms": milliseconds(run.times)}
                    for size, run in one.runs.items()
                },
            }
            for cores, one in sizes.items()
        }
        for name, sizes in services.items()
    }
    text = json.dumps({"notes": notes, "models": models}, indent=1)
    # A list of times on one line.
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


QUANTILES = 200


def milliseconds(found: Times) -> list[float]:
    """Return the samples, or as many quantiles as say the same."""
    if len(found.seconds) <= QUANTILES:
        return [round(one * 1e3, 3) for one in found.seconds]
    return [round(found.at(place / QUANTILES) * 1e3, 3) for place in range(QUANTILES + 1)]


def from_metrics(page: Page, cores: int) -> dict[str, Sizes]:
    """Return mean service times by a page of /metrics: they have no spread.

    Raises:
        Trouble: no model of it was asked, or it has no CPU seconds of models.

    """
    asked, runs = page.by_model(ASKED), page.by_model(RUNS)
    busy, used = page.by_model(*BUSY), page.by_model(CPU)
    inside = page.by_model("nv_inference_request_duration_us")
    took = page.by_model("dispatcher_request_seconds_sum", status="200")
    queued = page.by_model("dispatcher_queue_seconds_sum", status="200")
    answered = page.by_model("dispatcher_request_seconds_count", status="200")
    found: dict[str, Sizes] = {}
    for name, count in answered.items():
        if not count or not asked[name] or not runs[name] or not used[name]:
            continue
        # Triton counts the time of a run once for each request in it.
        run = busy[name] * MICRO / asked[name]
        front = (took[name] - queued[name]) / count - inside[name] * MICRO / asked[name]
        size = max(1, round(asked[name] / runs[name]))
        width = used[name] / (run * runs[name]) if run else 1.0
        one = Run(Times((run,)), max(0.1, min(width, cores)))
        found[name] = {cores: Service(size, Times((max(0.0, front),)), {size: one})}
    if not found:
        raise Trouble(
            f"the page has no model with answers and CPU seconds ({REQUESTS}, {CPU}): send "
            "requests first, or measure with --measure"
        )
    return found


def mix_of(words: Sequence[str], known: Mapping[str, Sizes], where: str) -> dict[str, float]:
    """Return the share of each model by words such as resnet=3.

    Raises:
        Trouble: a word is not of that form, or names a model without service times.

    """
    parts: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if name not in known:
            raise Trouble(f"{where} has no service times of {name!r}; it has: {', '.join(known)}")
        try:
            parts[name] = float(text) if equals else 1.0
        except ValueError:
            parts[name] = 0.0
        if not 0 < parts[name] < math.inf:
            raise Trouble(f"{word!r} is not MODEL or MODEL=WEIGHT, with a weight above 0")
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()}
