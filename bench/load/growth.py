"""Measure how cost grows with batches, pictures, texts, models and callers."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.load import load, models, work
from bench.load.limit import Limit
from bench.measure import Results, say
from bench.servers.contenders import PRECISION, Contender, this_server
from bench.servers.processes import cpu_ms, memory_mb
from bench.servers.sessions import EXACT

BATCHES = (1, 2, 4, 8, 16, 32, 64)
MEGAPIXELS = (0.1, 0.44, 1.0, 4.0, 12.0, 25.0)
TOKENS = (8, 16, 32, 64, 128, 256, 512)
MODELS = (1, 5, 10, 20)
FIGURES = ("items/s", "p50 ms", "p99 ms", "CPU-ms each", "of them gunicorn")
LEAST_ANSWERS = 4
CALLERS = (1, 2, 4, 8, 16, 32, 64)

Row = dict[str, Any]


def measure(results: Results, cache: Path) -> None:
    """Answer the five questions."""
    repository = models.lay_out(cache)
    with serving(repository, cache, "resnet", results.precision) as server:
        results.growth["Pictures in one ResNet-50 request"] = [
            batch(results, server, size) for size in BATCHES
        ]
        results.growth["Megapixels of a JPEG, ResNet-50, one caller"] = [
            point(results, server, work.payload("resnet", megapixels=size), 1, megapixels=size)
            for size in MEGAPIXELS
        ]
        picture = work.payload("resnet")
        results.growth["Callers, ResNet-50"] = [
            point(results, server, picture, count, callers=count) for count in CALLERS
        ]
    with serving(repository, cache, "bert_base", results.precision) as server:
        results.growth["Tokens of a text, BERT-base shape, one caller"] = [
            point(results, server, work.payload("bert_base", tokens=tokens), 1, tokens=tokens)
            for tokens in TOKENS
        ]
    results.growth["Models loaded, all but three of them tiny"] = [
        loaded(cache, count, results.seconds) for count in MODELS
    ]


@contextmanager
def serving(
    repository: Path, cache: Path, model: str, precision: str = EXACT
) -> Iterator[Contender]:
    settings = {PRECISION: precision}
    server = this_server(repository, cache / "run", model, settings=settings)
    server.start()
    try:
        payload = work.payload(model)
        with Limit(repository, model) as limit:
            server.wait(payload, model, limit.answer(payload))
        yield server
    finally:
        server.stop()


def point(
    results: Results, server: Contender, payload: Any, count: int, *, items: int = 1, **where: Any
) -> Row:
    """Measure with `count` callers; `where` says in the table what was varied."""
    asked = server.request(payload)
    since = time.monotonic()
    status, body = load.once(server.port, asked)
    if status != 200:
        say(f"growth {where}: {status} {body[:200]!r}")
        return {**where, **dict.fromkeys(FIGURES, f"refused: {status}")}
    # Enough for some answers of each caller, after each has waited for all the others.
    queue = (time.monotonic() - since) * max(1, count / results.cpus)
    before = cpu_ms(server.pid)
    loop = load.closed_loop(
        server.port, [asked], count, max(results.seconds, LEAST_ANSWERS * queue), queue
    )
    used = cpu_ms(server.pid) - before
    each = [
        items * per_second(loop, count),
        loop.percentile(0.5),
        loop.percentile(0.99),
        used.total() / loop.answers / items,
        used["gunicorn"] / loop.answers / items,
    ]
    row = {**where, **dict(zip(FIGURES, each, strict=True))}
    say(f"growth {row}")
    return row


def per_second(loop: load.Loop, callers: int) -> float:
    """Return the answers per second; a lone caller's few by what each took."""
    return 1 / statistics.mean(loop.times) if callers == 1 else loop.per_second


def batch(results: Results, server: Contender, size: int) -> Row:
    payloads = [work.payload("resnet")] * size
    return point(results, server, payloads, 1, items=size, pictures=size)


def loaded(cache: Path, count: int, seconds: float) -> Row:
    """Start with so many models: one nothing, or the three and the rest nothings."""
    folder = cache / "growth"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    repository = folder / "repository"
    if count > len(work.WORKS):
        for name in work.WORKS:
            shutil.copytree(
                work.PROJECT / "model_repository" / name,
                repository / name,
                copy_function=models.link,
            )
    tiny = count - len(work.WORKS) if count > len(work.WORKS) else count
    for number in range(tiny):
        models.add_nothing(repository, "nothing" + (str(number) if number else ""))
    server = this_server(repository, cache / "run", "nothing")
    before = time.monotonic()
    server.start()
    try:
        asked = server.request({"number": [1]})
        server.wait_for({"number": [1]})
        took = time.monotonic() - before
        memory = sum(size for _, size in memory_mb(server.pid))
        loop = load.closed_loop(server.port, [asked], 8, seconds)
    finally:
        server.stop()
    row = {
        "models": count,
        "seconds to the first answer": took,
        "MB (PSS)": memory,
        "nothing-model, 8 callers: requests/s": loop.per_second,
    }
    say(f"growth {row}")
    return row
