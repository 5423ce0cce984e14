"""`dispatcher cost`: its numbers are those of the traffic, and its bills are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.readiness.instances import STUB
from tests.conftest import PICTURES, PROJECT, Endpoint, descendants, picture
from tests.support.telemetry import difference, scraped, settled, value
from tests.tool.cost.conftest import Cost
from tool.__main__ import main
from tool.cost import cost as command
from tool.cost.read import asks

HERE = Path(__file__).parent
GIB = 2**30
ASKED = 'dispatcher_requests_total{method="POST",model="%s",route="/invocations",status="%s"} %d'


def of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["model"]: one for one in found["models"]}


def instances(found: dict[str, Any], which: str) -> dict[str, tuple[str, int]]:
    those = found["endpoints"][which]["instances"]
    return {one["model"]: (one["instance"], one["count"]) for one in those}


def page(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in ("dispatcher_ready 1", *lines)))
    return path


def counters(model: str, cpu: float, seconds: float, queued: float, memory: float) -> list[str]:
    labels = f'{{program="triton",model="{model}"}}'
    return [
        f"dispatcher_cpu_seconds_total{labels} {cpu}",
        f"dispatcher_memory_bytes{labels} {memory}",
        f'dispatcher_request_seconds_sum{{model="{model}",status="200"}} {seconds}',
        f'dispatcher_queue_seconds_sum{{model="{model}",status="200"}} {queued}',
    ]


@pytest.fixture
def pages(tmp_path: Path) -> tuple[Path, Path]:
    """An hour: a and b use 840 and 1680 s of CPU, the front 180 s."""
    front = 'dispatcher_cpu_seconds_total{program="gunicorn",model=""}'
    before = page(
        tmp_path / "before",
        *(ASKED % ("a", 200, 7), f"{front} 20"),
        *counters("b", cpu=100, seconds=10, queued=10, memory=GIB),
    )
    after = page(
        tmp_path / "after",
        *(ASKED % ("a", 200, 97), ASKED % ("a", 500, 10), ASKED % ("b", 200, 200)),
        *(ASKED % ("other", 404, 50), f"{front} 200"),
        'dispatcher_requests_total{method="POST",model="a",route="/models",status="200"} 3',
        f'dispatcher_memory_bytes{{program="gunicorn",model=""}} {0.5 * GIB}',
        *counters("a", cpu=840, seconds=40, queued=10, memory=GIB),
        *counters("b", cpu=1780, seconds=85, queued=25, memory=1.5 * GIB),
        *counters("idle", cpu=0, seconds=0, queued=0, memory=0.1 * GIB),
    )
    return before, after


def test_a_bill_by_hand(cost: Cost, pages: tuple[Path, Path]) -> None:
    found = cost("--metrics", *pages, "--seconds", 3600, "--hours-per-day", 10)
    models = of(found)
    assert {
        name: (one["requests"], one["failed"], one["answers"]) for name, one in models.items()
    } == {
        "a": (100, 10, 90),
        "b": (200, 0, 200),
        "idle": (0, 0, 0),
    }
    assert models["a"]["seconds"] == 30
    assert models["b"]["seconds"] == 60
    # The front's 180 s are theirs as 30 to 60.
    assert models["a"]["cpu_seconds"] == 840 + 60
    assert models["b"]["cpu_seconds"] == 1680 + 120
    # 3.1 GiB are more than 70 % of 4, so all of them need the large one. It has 8 × 3600 s.
    assert instances(found, "shared") == {"": ("large", 1)}
    assert models["a"]["machine_share"] == pytest.approx(900 / 28800)
    assert models["b"]["machine_share"] == pytest.approx(1800 / 28800)
    # 3 USD in this hour, a third and two thirds.
    assert models["a"]["usd_per_1000_answers"] == pytest.approx(1 / 90 * 1000)
    assert models["b"]["usd_per_1000_answers"] == pytest.approx(2 / 200 * 1000)
    assert models["idle"]["usd_per_1000_answers"] is None
    assert instances(found, "separate") == {"a": ("small", 1), "b": ("small", 1)}
    assert instances(found, "separate_same_type") == {"a": ("large", 1), "b": ("large", 1)}
    bills = {
        name: (one["usd_per_hour"], one["usd_per_day"], one["usd_per_30_days"])
        for name, one in found["endpoints"].items()
    }
    assert bills == {
        "shared": (3, 30, 900),
        "separate": (2, 20, 600),
        "separate_same_type": (6, 60, 1800),
    }
    assert found["notes"] == ["not asked, and without an endpoint of their own: idle"]


def test_a_load_that_one_instance_cannot_carry_takes_several(
    cost: Cost, pages: tuple[Path, Path]
) -> None:
    found = cost("--metrics", *pages, "--seconds", 360, "--instance", "large")
    # 2700 s of CPU in 360 s are 7.5 cores, of which an instance may use 0.7 × 8.
    assert instances(found, "shared") == {"": ("large", 2)}
    # 2.5 cores of 1.4; 5 cores of 1.4 are 4 small ones, dearer than one large one.
    assert instances(found, "separate") == {"a": ("small", 2), "b": ("large", 1)}
    assert of(found)["b"]["machine_share"] == pytest.approx(1800 / (2 * 8 * 360))


def test_a_model_on_a_gpu_counts_the_time_of_its_batches(cost: Cost, tmp_path: Path) -> None:
    label = 'gpu_uuid="GPU-1",model="a",version="1"'
    triton = [
        f"nv_inference_request_success{{{label}}} 40",
        f"nv_inference_exec_count{{{label}}} 10",
        f"nv_inference_compute_infer_duration_us{{{label}}} 80000000",
    ]
    lines = (ASKED % ("a", 200, 40), *triton)
    found = cost("--metrics", page(tmp_path / "after", *lines), "--seconds", 100)
    assert of(found)["a"]["gpu_seconds"] == 80 * 10 / 40
    assert of(found)["a"]["machine_share"] == pytest.approx(0.2)
    assert instances(found, "separate") == {"a": ("gpu", 1)}
    assert of(found)["a"]["usd_per_1000_answers"] == pytest.approx(5.5 / 36 / 40 * 1000)


def test_without_cpu_seconds_they_are_estimated_and_it_says_so(cost: Cost, tmp_path: Path) -> None:
    label = 'model="a",version="1"'
    lines = [
        ASKED % ("a", 200, 4),
        *(f"nv_inference_{name}{{{label}}} 4" for name in ("request_success", "exec_count")),
        f"nv_inference_compute_input_duration_us{{{label}}} 1000000",
        f"nv_inference_compute_infer_duration_us{{{label}}} 3000000",
    ]
    found = cost("--metrics", page(tmp_path / "after", *lines), "--seconds", 100, "--cores", 2)
    assert of(found)["a"]["cpu_seconds"] == 8
    assert any("estimated" in note for note in found["notes"])


def test_counts_that_began_again_are_taken_as_they_are(cost: Cost, tmp_path: Path) -> None:
    before = page(tmp_path / "before", ASKED % ("a", 200, 50))
    after = page(
        tmp_path / "after",
        ASKED % ("a", 200, 5),
        *counters("a", cpu=1, seconds=1, queued=0, memory=1),
    )
    found = cost("--metrics", before, after, "--seconds", 10)
    assert of(found)["a"]["requests"] == 5
    assert any("restarted" in note for note in found["notes"])


def test_the_seconds_of_an_unloaded_model_are_nobody_elses(cost: Cost, tmp_path: Path) -> None:
    triton = 'dispatcher_cpu_seconds_total{program="triton",model=""}'
    model = 'dispatcher_cpu_seconds_total{program="triton",model="%s"} %d'
    before = page(tmp_path / "before", f"{triton} 10", model % ("a", 5), model % ("gone", 500))
    after = page(
        tmp_path / "after",
        *(f"{triton} 12", ASKED % ("a", 200, 5)),
        *counters("a", cpu=8, seconds=1, queued=0, memory=1),
    )
    found = cost("--metrics", before, after, "--seconds", 10)
    assert {name: one["cpu_seconds"] for name, one in of(found).items()} == {"a": 3 + 2}
    assert "unloaded meanwhile, so their CPU seconds are missing: gone" in found["notes"]


def log_line(at: str, **fields: Any) -> str:
    request = {"time": f"2026-01-31T12:{at}Z", "program": "dispatcher", "route": "/invocations"}
    return json.dumps(request | {"status": 200, "queue_s": 0.5, "total_s": 10.0} | fields)


def test_a_log_by_hand(cost: Cost, tmp_path: Path) -> None:
    log = tmp_path / "log"
    times = {"decode_s": 1.0, "inference_s": 4.0, "postprocess_s": 0.5}
    lines = [
        "triton: I0131 12:00:00 ready",
        log_line("00:00.000", model="a", **times),
        log_line("00:30.000", model="a", status=502, code="inference_failed", total_s=2.5),
        log_line("00:40.000", model="made-up", status=404),
        log_line("00:45.000", route="/models", model="a"),
        '{"program": "dispatcher", "level": "warning", "message": "something else"}',
        log_line("01:30.000", model="a,b", items=6, failed=2, total_s=10.5),
    ]
    log.write_text("".join(f"{line}\n" for line in lines))
    found = cost("--log", log, "--cores", 2)
    assert found["seconds"] == pytest.approx(100.5)
    models = of(found)
    assert set(models) == {"a", "b"}
    assert (models["a"]["requests"], models["a"]["failed"], models["a"]["answers"]) == (2, 1, 3)
    assert (models["b"]["requests"], models["b"]["answers"]) == (0, 2)
    assert models["a"]["seconds"] == pytest.approx(9.5 + 2 + 5)
    assert models["a"]["cpu_seconds"] == pytest.approx((1.5 + 2 * 4) + 2 * 2 + 2 * 10 / 2)
    assert any("memory" in note for note in found["notes"])


def ask(endpoint: Endpoint, counts: dict[str, int]) -> None:
    image = {"img": picture(PICTURES / "chelsea.png")}
    payloads = {"bert_base": {"text": "The world has [MASK] people."}, "resnet": image}
    for name, count in counts.items():
        for _ in range(count):
            assert endpoint.ask(modelname=name, payload=payloads.get(name, image)).status == 200


def test_the_real_chain_is_counted_as_it_was_asked(
    endpoint: Endpoint, cost: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"bert_base": 7, "resnet": 5, "yolov5": 3}
    sums: list[Any] = [settled(endpoint)]

    def meanwhile(_: float) -> None:
        ask(endpoint, counts)
        sums.append(settled(endpoint))

    clock = SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic)
    monkeypatch.setattr(command, "time", clock)
    models = of(found := cost(f"http://127.0.0.1:{endpoint.port}"))
    assert {name: one["requests"] for name, one in models.items()} == counts
    assert {name: one["answers"] for name, one in models.items()} == counts
    now = difference(sums[1], sums[0])
    for name, one in models.items():
        total = value(now, "dispatcher_request_seconds_sum", model=name)
        assert 0 < one["seconds"] <= total
        assert 0 < one["cpu_seconds"] < found["seconds"] * 64
        assert one["memory_bytes"] > 2**20
    assert set(instances(found, "separate")) == set(counts)


def test_what_models_use_is_what_ps_shows(endpoint: Endpoint) -> None:
    ask(endpoint, {"resnet": 3})
    now = scraped(endpoint)
    models: dict[str, list[float]] = {}
    for pid in descendants(endpoint.process.pid):
        stub = STUB.search(Path(f"/proc/{pid}/cmdline").read_bytes())
        if stub:
            shown = subprocess.check_output(["ps", "-o", "cputimes=,rss=", "-p", str(pid)]).split()
            total = models.setdefault(stub[1].decode(), [0.0, 0.0])
            # `ps` leaves out ended children, as those that compare engines at the first load.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ended = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
            total[0] += float(shown[0]) + ended
            total[1] += float(shown[1]) * 1024
    assert set(models) == {"bert_base", "resnet", "yolov5"}
    for name, (cpu, resident) in models.items():
        labels = {"program": "triton", "model": name}
        # `ps` shows whole seconds, of each process.
        assert value(now, "dispatcher_cpu_seconds_total", **labels) == pytest.approx(cpu, abs=4)
        assert resident / 5 < value(now, "dispatcher_memory_bytes", **labels) <= resident * 1.05
    assert value(now, "dispatcher_cpu_seconds_total", program="gunicorn") > 0
    assert value(now, "dispatcher_memory_bytes", program="triton", model="") > 2**20


def commands() -> list[tuple[str, str]]:
    """Return the commands of the page with what it shows of each."""
    text = (PROJECT / "docs" / "cost.md").read_text()
    return re.findall(
        r"```sh\n(dispatcher cost --metrics [^\n]*)\n```\n\n```\n(.*?)```", text, re.DOTALL
    )


@pytest.mark.parametrize(("line", "shown"), commands())
def test_the_page_shows_what_the_command_prints(
    line: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(HERE)
    assert main(line.split()[1:]) == 0
    assert capsys.readouterr().out == shown


def test_the_page_has_the_arithmetic_of_its_examples() -> None:
    assert len(commands()) == 2
    shipped = json.loads((PROJECT / "tool" / "cost" / "prices.json").read_text())["instances"]
    for line, shown in commands():
        kind = line.split("--instance ")[1].split()[0]
        hours = float(line.split("--hours-per-day ")[1].split()[0])
        hourly = shipped[kind]["usd_per_hour"]
        for start, number in (
            ("one endpoint: 1 ×", 1),
            ("one for each model, of the same type: 3 ×", 3),
        ):
            row = next(row for row in shown.splitlines() if row.startswith(f"{start} {kind}"))
            expected = [
                f"{hourly * number:.3f}",
                *(f"{hourly * number * hours * days:.2f}" for days in (1, 30)),
            ]
            assert row.split()[-3:] == expected


def test_every_route_that_asks_a_model_is_counted() -> None:
    """As documented: those that take a model's input, and no others."""
    routes = json.loads((PROJECT / "dispatcher" / "routes" / "openapi.json").read_text())["paths"]
    asking = {re.sub(r"{(\w+)}", r"<\1>", path) for path in routes}
    refused = {"/endpoints/<name>/<call>"}
    words = ("invocations", "predict", "infer", "invoke", "generate")
    assert {path for path in asking if asks(path)} == {
        path for path in asking - refused if any(word in path for word in words)
    }
