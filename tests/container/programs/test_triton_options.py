"""Triton's options: a pass-through, and what would break the container."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from container.programs.find_triton import TritonProgram, find_embedded
from container.programs.triton_options import (
    ALLOW_SHM,
    REFUSED,
    cache_options,
    list_options,
    newer_options,
    refuse_unknown,
    triton_options,
)
from container.serving import main
from dispatcher.settings import SettingError, read_settings
from tests.conftest import PROJECT
from tests.support.programs import write_program

NAMES = [(name, why) for why, names in REFUSED.items() for name in names]


def options(**settings: str) -> list[str]:
    return triton_options(read_settings(settings))


def test_options_are_passed_on() -> None:
    assert options() == []
    assert options(
        TRITON_OPTIONS="--id='my house' --log-verbose=1 --rate-limit=execution_count"
        " --rate-limit-resource=R1:4 --backend-config=python,shm-default-byte-size=4194304"
    ) == [
        "--id=my house",
        "--log-verbose=1",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R1:4",
        "--backend-config=python,shm-default-byte-size=4194304",
    ]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *((f"--{name.replace('-*', '-port').strip('*')}=1", why) for name, why in NAMES),
        ("--grpc-use-ssl-mutual=true", "plain gRPC"),
        ("--backend-config=python,shm-region-prefix-name=mine", "shared memory"),
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


def test_a_bad_value_stops_the_start_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_OPTIONS", "--id='house")
    monkeypatch.setenv("MODEL_DIR_USE", "above")
    assert main([]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("serve: ")
    for words in ("TRITON_OPTIONS", "as in a shell", "MODEL_DIR_USE", "beside, instead, ignore"):
        assert words in printed


def test_an_option_that_triton_lacks_is_refused_with_the_nearest(tmp_path: Path) -> None:
    triton = find_embedded(tmp_path)
    refuse_unknown(triton, read_settings({"TRITON_OPTIONS": "--model-load-thread-count=8"}))
    settings = read_settings({"TRITON_OPTIONS": "--model-load-threads-count=8"})
    with pytest.raises(SettingError, match=r"expected: --model-load-thread-count$"):
        refuse_unknown(triton, settings)
    with pytest.raises(SettingError, match="`tritonserver --help` lists"):
        refuse_unknown(triton, read_settings({"TRITON_OPTIONS": "--qqqq=1"}))


def test_each_refused_option_is_one_that_triton_knows_and_documented(tmp_path: Path) -> None:
    """Else a name that is written wrongly here would refuse nothing."""
    known = list_options(find_embedded(tmp_path))
    page = (PROJECT / "docs" / "triton-options.md").read_text()
    for name, _ in NAMES:
        assert fnmatch.filter(known, name) or name == ALLOW_SHM, name  # for which 2.51 is too old
        assert f"`--{name.rstrip('*-')}" in page


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
    program = write_program(tmp_path / "tritonserver", f"echo '{line}'")
    assert newer_options(TritonProgram("any", program, has_our_backends=ours)) == expected


@pytest.mark.parametrize(
    ("given", "library", "expected"),
    [
        ("", True, ["--cache-config=local,size=67108864"]),
        ("", False, []),
        ("--cache-config=local,size=1048576", True, []),
        ("--cache-config=redis,host=here", True, []),
    ],
)
def test_there_is_one_cache_where_triton_brings_its_library(
    given: str, library: bool, expected: list[str], tmp_path: Path
) -> None:
    if library:
        (tmp_path / "caches" / "local").mkdir(parents=True)
    triton = TritonProgram("a", tmp_path / "bin" / "tritonserver")
    assert cache_options(triton, read_settings({"TRITON_OPTIONS": given})) == expected


def test_triton_sends_its_own_spans_where_there_are_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop,eu")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    assert [one for one in options() if "trace" in one] == [
        "--trace-config=mode=opentelemetry",
        "--trace-config=rate=0",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=opentelemetry,url=http://c:4318/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=shop eu",
    ]
    own = "--trace-config=mode=triton"
    assert [o for o in options(TRITON_OPTIONS=own) if "trace" in o] == [own]
