"""Triton's options: named settings, a pass-through, and what would break the container."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from container.programs.find_triton import Triton, embedded
from container.programs.triton_options import (
    ALLOW_SHM,
    REFUSED,
    cache_options,
    known_options,
    newer_options,
    refuse_unknown,
    triton_options,
)
from container.serving import main
from dispatcher.settings import SettingError, read_settings
from tests.conftest import PROJECT


def options(**settings: str) -> list[str]:
    return triton_options(read_settings(settings))


def test_named_settings_become_options() -> None:
    assert options() == ["--rate-limit=off"]
    assert options(
        TRITON_LOG_VERBOSE="1",
        TRITON_RATE_LIMIT="execution_count",
        TRITON_RATE_LIMIT_RESOURCES="R1:4, R2:2:0",
        TRITON_BACKEND_CONFIG="python,shm-default-byte-size=4194304 default-max-batch-size=8",
        TRITON_OPTIONS="--id='my house' --disable-auto-complete-config",
    ) == [
        "--log-verbose=1",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R1:4",
        "--rate-limit-resource=R2:2:0",
        "--backend-config=python,shm-default-byte-size=4194304",
        "--backend-config=default-max-batch-size=8",
        "--id=my house",
        "--disable-auto-complete-config",
    ]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--http-port=9000", "TRITON_HTTP_PORT"),
        ("--grpc-address=0.0.0.0", "TRITON_GRPC_PORT"),
        ("--metrics-address=0.0.0.0", "TRITON_METRICS_PORT"),
        ("--reuse-grpc-port=true", "another server"),
        ("--allow-http=false", "web workers"),
        ("--allow-metrics=false", "/metrics"),
        ("--grpc-restricted-protocol=inference,key=value", "web workers"),
        ("--grpc-use-ssl=true", "plain gRPC"),
        ("--grpc-use-ssl-mutual=true", "plain gRPC"),
        ("--grpc-server-cert=/cert", "plain gRPC"),
        ("--allow-sagemaker=true", "bypasses the keys"),
        ("--sagemaker-port=8080", "bypasses the keys"),
        ("--vertex-ai-port=8080", "bypasses the keys"),
        ("--model-repository=/models", "MODEL_REPOSITORY"),
        ("--model-store=/models", "MODEL_DIR"),
        ("--model-control-mode=poll", "POST /models"),
        ("--load-model=*", "REQUIRED_MODELS"),
        ("--exit-on-error=true", "/ping"),
        ("--strict-readiness=true", "REQUIRED_MODELS"),
        ("--exit-timeout-secs=1", "SERVE_STOP_TIMEOUT"),
        ("--backend-directory=/b", "TRITON_HOME"),
        ("--log-file=/log", "log"),
        ("--log-format=ISO8601", "LOG_FORMAT"),
        ("--log-verbose=1", "TRITON_LOG_VERBOSE"),
        ("--rate-limit=off", "TRITON_RATE_LIMIT"),
        ("--backend-config=python,a=b", "TRITON_BACKEND_CONFIG"),
        ("--cache-config=local,size=1", "TRITON_CACHE_MB"),
        ("--cache-config=redis,host=here", "TRITON_CACHE_MB to 0"),
        ("--response-cache-byte-size=1000", "TRITON_CACHE_MB"),
        ("--help", "help"),
        ("--id house", "--name=value"),
        ("-v", "--name=value"),
        ("verbose", "--name=value"),
    ],
)
def test_what_would_break_the_container_is_refused(option: str, words: str) -> None:
    with pytest.raises(SettingError, match="TRITON_OPTIONS") as caught:
        options(TRITON_OPTIONS=f"--id=house {option}")
    assert "expected: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TRITON_OPTIONS", "--id='house", "as in a shell"),
        ("TRITON_BACKEND_CONFIG", "python", "BACKEND,SETTING=VALUE"),
        ("TRITON_BACKEND_CONFIG", ",default-max-batch-size=8", "BACKEND,SETTING=VALUE"),
        ("TRITON_BACKEND_CONFIG", "python,shm-region-prefix-name=mine", "shared memory"),
        ("TRITON_RATE_LIMIT", "on", "execution_count"),
        ("TRITON_RATE_LIMIT_RESOURCES", "R1", "NAME:COUNT"),
        ("TRITON_RATE_LIMIT_RESOURCES", "R1:4", "TRITON_RATE_LIMIT=execution_count"),
        ("TRITON_LOG_VERBOSE", "yes", "whole number"),
        ("TRITON_CACHE_MB", "-1", "whole number"),
        ("GPU_CONFIGS", "ignore", "keep, adapt"),
    ],
)
def test_a_bad_value_stops_the_start_with_a_sentence(
    variable: str,
    value: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main([]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"serve: {variable}")
    assert words in printed


def test_an_option_that_triton_lacks_is_refused_with_the_nearest(tmp_path: Path) -> None:
    triton = embedded(tmp_path)
    refuse_unknown(triton, read_settings({"TRITON_OPTIONS": "--model-load-thread-count=8"}))
    settings = read_settings({"TRITON_OPTIONS": "--model-load-threads-count=8"})
    with pytest.raises(SettingError, match=r"expected: --model-load-thread-count$"):
        refuse_unknown(triton, settings)
    with pytest.raises(SettingError, match="`tritonserver --help` lists"):
        refuse_unknown(triton, read_settings({"TRITON_OPTIONS": "--qqqq=1"}))


def test_each_refused_option_is_one_that_triton_knows(tmp_path: Path) -> None:
    """Else a name that is written wrongly here would refuse nothing."""
    known = known_options(embedded(tmp_path))
    for name in REFUSED.keys() - {ALLOW_SHM}:  # which the wheel's Triton is too old for
        assert any(one == name or (name[-1] == "-" and one.startswith(name)) for one in known), name


def test_each_refused_option_is_documented() -> None:
    page = (PROJECT / "docs" / "triton-options.md").read_text()
    for name in REFUSED:
        assert f"`--{name.removesuffix('-')}" in page


@pytest.mark.parametrize(
    ("line", "ours", "expected"),
    [
        ("  --allow-client-shm <boolean>", False, ["--allow-client-shm=true"]),
        ("  --allow-client-shm <boolean>", True, []),
        ("  --allow-grpc <boolean>", False, []),
    ],
)
def test_shared_memory_is_allowed_where_triton_knows_the_option(
    line: str, ours: bool, expected: list[str], tmp_path: Path
) -> None:
    """From 26.04 on Triton refuses it otherwise; a release before that ends at the option."""
    program = tmp_path / "tritonserver"
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)
    assert newer_options(Triton("any", program, has_our_backends=ours)) == expected


@pytest.mark.parametrize(
    ("megabytes", "library", "expected"),
    [("2", True, ["--cache-config=local,size=2097152"]), ("0", True, []), ("2", False, [])],
)
def test_a_cache_needs_its_size_and_its_library(
    megabytes: str, library: bool, expected: list[str], tmp_path: Path
) -> None:
    if library:
        (tmp_path / "local").mkdir()
    triton = Triton("a", tmp_path / "tritonserver", caches=tmp_path)
    assert cache_options(triton, read_settings({"TRITON_CACHE_MB": megabytes})) == expected


def test_settings_survive_the_way_to_the_web_workers() -> None:
    given = {
        "TRITON_OPTIONS": "--id='my house' --model-load-thread-count=8",
        "TRITON_BACKEND_CONFIG": "python,a=b python,c=d",
        "TRITON_RATE_LIMIT_RESOURCES": "R1:4,R2:2",
    }
    settings = read_settings(given)
    assert read_settings(settings.environment()) == settings
    assert shlex.split(settings.triton_options) == ["--id=my house", "--model-load-thread-count=8"]


def test_triton_sends_its_own_spans_where_there_are_traces() -> None:
    collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SERVICE_NAME": "shop"}
    assert [one for one in options(**collector) if "trace" in one] == [
        "--trace-config=mode=opentelemetry",
        "--trace-config=rate=0",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=opentelemetry,url=http://c:4318/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=shop",
    ]
    own = "--trace-config=mode=triton"
    assert [o for o in options(**collector, TRITON_OPTIONS=own) if "trace" in o] == [own]
