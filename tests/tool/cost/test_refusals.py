"""Bad input of `dispatcher cost`: a sentence with the fix, and exit code 2."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Endpoint, free_ports
from tests.tool.cost.conftest import PRICES
from tool.__main__ import main

ASKED = (
    "dispatcher_ready 1\n"
    'dispatcher_requests_total{method="POST",model="a",route="/invocations",status="200"} 4\n'
    'dispatcher_memory_bytes{program="triton",model="a"} 1073741824\n'
    'dispatcher_cpu_seconds_total{program="triton",model="a"} 2\n'
)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page"
    path.write_text(ASKED)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return what the command says, in one line, without anything of a table."""
    assert main(["cost", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    said = shown.err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("dispatcher cost: ")
    return said[0]


def test_no_container(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, f"http://127.0.0.1:{free_ports(1)[0]}", "--seconds", 1)
    assert "does not answer" in said
    assert "is the container running" in said
    assert "expected an address such as" in refused(capsys, "ftp://x")


def test_a_server_that_has_no_metrics(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, f"http://127.0.0.1:{endpoint.port}/nowhere", "--seconds", 1)
    assert "/nowhere/metrics answers 404; is it this container's port?" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nv_cpu_utilization 0.5\n", "NGINX's port, not Triton's"),
        ("", "NGINX's port, not Triton's"),
        ("<html>nothing</html>\n", "no page of metrics"),
        ("dispatcher_ready 1\nnv_x{a=\n", "no page of metrics"),
        ("dispatcher_ready 1\n", "no request to a model was counted"),
        (ASKED.replace("200", "x").replace(" 4", " NaN"), "no page of metrics"),
        ('dispatcher_ready 1\ndispatcher_requests_total{model="a"} 1\n', "no page of metrics"),
    ],
)
def test_a_page_that_is_none(
    text: str, expected: str, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write_text(text)
    assert expected in refused(capsys, "--metrics", page, "--seconds", 10)


def test_pages_without_traffic_or_time(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no request to a model" in refused(capsys, "--metrics", page, page, "--seconds", 10)
    assert "--seconds" in refused(capsys, "--metrics", page)
    other = tmp_path / "other"
    other.write_text(ASKED)
    os.utime(other, (1, 1))
    assert "the earlier one first" in refused(capsys, "--metrics", page, other)
    assert "3 files" in refused(capsys, "--metrics", page, page, page)
    assert "No such file" in refused(capsys, "--metrics", tmp_path / "nowhere", "--seconds", 1)
    assert "give one of" in refused(capsys, "--metrics", page, "--log", page)


@pytest.mark.parametrize(
    "option", ["--seconds=0", "--hours-per-day=25", "--hours-per-day=x", "--cores=-1"]
)
def test_numbers_out_of_range(option: str, page: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["cost", "--metrics", str(page), option])
    assert stopped.value.code == 2


def changed(**fields: Any) -> dict[str, Any]:
    small = PRICES["instances"]["small"] | fields  # type: ignore[index]
    return PRICES | {"instances": {"small": {k: v for k, v in small.items() if v != "gone"}}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", 'no object "instances"'),
        (PRICES | {"instances": {}}, 'no object "instances"'),
        (PRICES | {"instances": {"small": 1}}, "usd_per_hour of small is null"),
        (PRICES | {"date": ""}, 'no text "date"'),
        (changed(usd_per_hour=-1), "usd_per_hour of small is -1; expected a number above 0"),
        (changed(usd_per_hour="1"), 'usd_per_hour of small is "1"'),
        (changed(usd_per_hour=float("nan")), "usd_per_hour of small is NaN"),
        (changed(usd_per_hour="gone"), "usd_per_hour of small is null"),
        (changed(vcpus=10**400), "vcpus of small is 1000"),
        (changed(vcpus=0), "vcpus of small is 0; expected a whole number above 0"),
        (changed(vcpus=True), "vcpus of small is true"),
        (changed(memory_gib=0.5), "needs an instance with 1.4 GiB"),
    ],
)
def test_a_file_of_prices_that_cannot_be_used(
    document: Any, expected: str, page: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices.write_text(document if isinstance(document, str) else json.dumps(document))
    said = refused(capsys, "--metrics", page, "--seconds", 10, "--prices", prices)
    assert expected in said
    assert str(prices) in said or "add one to the prices" in said


def test_a_type_without_a_price(
    page: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ("--metrics", page, "--seconds", 10, "--prices", prices, "--instance", "ml.none")
    said = refused(capsys, *how)
    assert "no price for ml.none; there are: small, large, gpu" in said
    assert "--prices" in said


REQUEST = (
    '{"time": "2026-01-31T12:00:00.000Z", "route": "/invocations", "model": "a", "status": 200, '
    '"queue_s": 0.1, "total_s": 0.2}'
)


@pytest.mark.parametrize(
    "line",
    [
        REQUEST.replace("0.2", "NaN"),
        '{"model":' * 5000,
        REQUEST[:60],
        REQUEST.replace('"total_s": 0.2', '"total_s": "?"'),
        "{}[]",
        '{"a": ',
    ],
)
def test_a_log_with_a_line_that_is_cut_off(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{REQUEST}\ntriton: begins\n{line}\n{REQUEST}\n")
    said = refused(capsys, "--log", log)
    assert f"line 3 of {log}" in said
    assert "docker logs" in said


def test_a_log_without_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"triton: ready\n\xff\xfe\n")
    said = refused(capsys, "--log", log)
    assert "no request to a model was counted" in said
