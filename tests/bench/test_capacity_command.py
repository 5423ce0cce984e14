"""`python -m bench.capacity`: what it reads and prints, and what it makes of bad input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.capacity import __main__
from bench.capacity.service import (
    Run,
    Service,
    Times,
    from_metrics,
    mix_of,
    read_services,
    written,
)
from tests.conftest import PROJECT
from tool.cost.read import Page
from tool.trouble import Trouble

SIZES = {
    1: Service(1, Times((0.004, 0.006)), {1: Run(Times((0.06, 0.07)), 1.0)}),
    2: Service(1, Times((0.004, 0.006)), {1: Run(Times((0.035, 0.045)), 1.75)}),
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "service.json"
    file.write_text(written({"model": SIZES}, "a note"))
    assert read_services(file) == {"model": SIZES}
    long = Times(tuple(number / 1e3 for number in range(1001)))
    file.write_text(written({"m": {1: Service(1, long, {1: Run(long, 1)})}}, ""))
    assert read_services(file)["m"][1].front.at(0.25) == pytest.approx(0.25)


GOOD = {"batch": 1, "front_ms": [5], "runs": {"1": {"ms": [60], "width": 1}}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ("[]", '"models"'),
        ('{"models": {}}', '"models"'),
        ({"m": {}}, "no measurement"),
        ({"m": {"two": GOOD}}, "cores of m"),
        ({"m": {"1": 5}}, "no object"),
        ({"m": {"1": {**GOOD, "front_ms": []}}}, "no list of milliseconds"),
        ({"m": {"1": {**GOOD, "front_ms": ["x"]}}}, "expected a number"),
        ({"m": {"1": {**GOOD, "runs": {"1": {"ms": [-1], "width": 1}}}}}, "expected a number"),
        ({"m": {"1": {**GOOD, "runs": {"1": {"ms": [math.nan], "width": 1}}}}}, "is nan"),
        ({"m": {"1": {**GOOD, "runs": {"1": 3}}}}, "no list of milliseconds"),
        ({"m": {"1": {**GOOD, "runs": {}}}}, '"runs"'),
        ({"m": {"1": {**GOOD, "batch": 0}}}, "expected a whole number"),
    ],
)
def test_a_wrong_file_is_one_sentence_and_exit_code_2(
    document: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "service.json"
    file.write_text(document if isinstance(document, str) else json.dumps({"models": document}))
    assert __main__.main(["--service", str(file)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--service", "/nowhere/at/all"], "cannot be read"),
        (["--metrics", "/nowhere/at/all"], "cannot be read"),
        (["--metrics", "http://127.0.0.1:9"], "does not answer"),
        (["--metrics", "ftp://127.0.0.1"], "expected http"),
        (["--metrics", str(PROJECT / "README.md")], "metrics"),
        (["--prices", "/nowhere/at/all"], "cannot be read"),
        (["--mix", "nobody=1"], "no service times of 'nobody'"),
        (["--mix", "model=0"], "weight above 0"),
        (["--mix", "model=x"], "weight above 0"),
        (["--rates", "0"], "not above 0"),
        (["--rates", "many"], "invalid"),
        (["--p99", "-5"], "not above 0"),
        (["--cores", "1.5"], "whole number"),
        (["--target", "70"], "at most 1"),
        (["--delay", "-1"], "not from 0"),
        (["--surge", "1"], "above 1"),
        (["--requests", "10"], "from 1000"),
        (["--check", "--check-cores", "9999"], "this process has"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "service.json"
    file.write_text(written({"model": SIZES}, ""))
    given = words if {"--service", "--metrics"} & {*words} else ["--service", str(file), *words]
    try:
        code: object = __main__.main(given)
    except SystemExit as end:  # of argparse
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_mix_is_shares() -> None:
    assert mix_of(["a=3", "b"], {"a": SIZES, "b": SIZES}, "") == {"a": 0.75, "b": 0.25}
    with pytest.raises(Trouble, match="it has: a"):
        mix_of(["c"], {"a": SIZES}, "the file")


METRICS = """\
dispatcher_ready 1
dispatcher_request_seconds_sum{model="m",status="200"} 9
dispatcher_request_seconds_count{model="m",status="200"} 100
dispatcher_queue_seconds_sum{model="m",status="200"} 1
dispatcher_cpu_seconds_total{model="m"} 7.5
nv_inference_request_success{model="m",version="1"} 100
nv_inference_exec_count{model="m",version="1"} 50
nv_inference_request_duration_us{model="m",version="1"} 7000000
nv_inference_compute_infer_duration_us{model="m",version="1"} 5000000
"""


def test_the_means_of_a_running_server_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """80 ms without the queue, 70 of them in Triton; runs of two take 50 ms and 150 CPU-ms."""
    found = from_metrics(Page(METRICS, ""), 2)["m"][2]
    assert found.front.seconds == (pytest.approx(0.01),)
    assert found.runs[2].times.seconds == (pytest.approx(0.05),)
    assert (found.batch, found.runs[2].width) == (2, 2.0)  # not the 3 cores that there are not
    file = tmp_path / "page"
    file.write_text(METRICS)
    assert __main__.main(["--metrics", str(file), "--rates", "10", "--cores", "2",
                          "--requests", "1000"]) == 0  # fmt: skip
    assert "100% m; p99 at most 500 ms" in capsys.readouterr().out


def test_the_tables_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "service.json"
    sized = {cores: Service(**{**vars(one), "bytes_in": 125_000}) for cores, one in SIZES.items()}
    file.write_text(written({"model": sized, "other": sized}, ""))
    words = ["--service", str(file), "--mix", "model=1", "other=3", "--rates", "50", "--cores", "2"]
    assert __main__.main([*words, "--requests", "1000", "--limits", "--p99", "400"]) == 0
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if line.startswith("| 50 | 2 |"))
    machines = int(row.split("|")[3])
    # The cheapest type with two CPUs in tool/cost/prices.json.
    assert f"{0.102 * machines:.2f} (ml.c5.large)" in row
    assert f"{0.102 * machines / 50 / 3600 * 1e6:.2f} |" in row
    assert "| 10,000/s | a link of 10 Gbit/s" in said  # 10 Gbit/s by 1 Mbit
    assert "`autoscaling.maxReplicas: 10`" in said
    assert "a hot model" in said


def test_the_measured_file_agrees_with_docs_performance_md() -> None:
    """With 8 callers, two batches of 4 in turn, it had 26 answers a second on two cores."""
    service = read_services(__main__.MEASURED)["resnet"][2]
    assert service.batch == 4
    assert 2 / service.core_seconds() == pytest.approx(26, rel=0.15)


@pytest.mark.slow
def test_a_check_runs_through(tmp_path: Path) -> None:
    into = tmp_path / "measured.json"
    command = [
        *(sys.executable, "-m", "bench.capacity", "--check", "--models", "bert_base"),
        *("--check-cores", "1", "--loads", "0.3", "--seconds", "2", "--into", str(into)),
        *("--cache", str(tmp_path)),
    ]
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "| bert_base | 1 | 30% |" in done.stdout
    assert "Median error of 1 runs (all)" in done.stdout
    service = read_services(into)["bert_base"][1]
    assert service.batch == 16  # `dynamic_batching { }` and `max_batch_size: 16`
    assert sorted(service.runs) == [1, 2, 4, 8, 16]
    assert 0 < service.runs[1].times.mean < 10
