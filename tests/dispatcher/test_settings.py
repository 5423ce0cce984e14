"""Settings: a bad value stops the start and names itself; ports are never used twice."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from clients.model_files import gpu_config
from container.serving import with_workers
from dispatcher.settings import GONE, SettingError, find_gone, read_settings, rows
from dispatcher.settings.remote_triton import TritonMetadata
from dispatcher.settings.traces import name_service

BAD = {
    "SAGEMAKER_BIND_TO_PORT": ["0", "65536", "http"],
    "SAGEMAKER_SAFE_PORT_RANGE": ["9000", "9005-9000", "9000-9_999", "9000-9010-9020"],
    "MODEL_SERVER_WORKERS": ["0", "two", ""],
    "CORS_ORIGINS": [
        *("shop.example", "https://shop.example/", "https://shop.example/a", "https://"),
        *("*,https://shop.example", "https://*.shop.example", "https://Shop.example"),
        *("https://shop.example:443", "http://shop.example:80", "ftp://shop.example"),
        *("https://a.example https://b.example", "null", 'https://a";return 200;'),
        *("https://user@shop.example", "https://shop.example:0", "file://"),
    ],
    "MODEL_SERVER_TIMEOUT": ["nan", "-1", "6_0", "2,5", "\u0666", "1e400"],
    "MODEL_REPOSITORY": ["/there/is/no/such/folder"],
    "CLIENTS_PATH": ["/there/is/no/such/folder"],
    "MODEL_SERVER_LOG_LEVEL": ["loud"],
    "RUN_DIR": ["/tmp/semi;colon", "/tmp/" + "long" * 30, "/etc/passwd"],
    "SAGEMAKER_MULTI_MODEL": ["yes"],
    "MODEL_DIR_USE": ["both"],
    "MODEL_SERVER_THREADS": ["1_0", "1,0", "0x10", "\u0661", "16;"],
    "REQUIRED_MODELS": ["resnet;yolov5", "resnet yolov5"],
    "TRITON_URL": [
        *("triton", "http://triton:8001", "user:password@triton:8001", "triton:65536"),
        "ipv4:10.0.0.1:8001,",
    ],
    "TRITON_HTTP_URL": ["http://triton:8000/v2", "http://triton:0"],
    "TRITON_CA_FILE": ["/there/is/no/such/file"],
    "CAPTURE_TO": ["s3://", "s3://UPPER/prefix"],
    "CAPTURE_SHARE": ["1.5", "-1", "resnet=2", "resnet", "0.1, a=0.2, a=0.3", ""],
    "CAPTURE_PER_MINUTE": ["0"],
    "CAPTURE_HIDE": ["=hash", "user=md5"],
}


@pytest.mark.parametrize(
    ("variable", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_bad_value_names_itself(variable: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({variable: value})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{variable} is {value!r}; expected: ")


@pytest.mark.parametrize("folder", ["with a blank", "long" * 30])
def test_a_run_dir_is_judged_from_the_root_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    expected = "RUN_DIR is 'run'; expected: absolute path of at most 80"
    with pytest.raises(SettingError, match=expected):
        read_settings({"RUN_DIR": "run"})


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({"MODEL_SERVER_WORKERS": "x", "MODEL_SERVER_THREADS": "y"})
    assert len(str(caught.value).splitlines()) == 2


SAFE = {"SAGEMAKER_SAFE_PORT_RANGE": "9000-9010"}


@pytest.mark.parametrize(
    ("environment", "ports"),
    [
        ({}, [8000, 8001, 8002]),
        ({**SAFE, "SAGEMAKER_BIND_TO_PORT": "9001"}, [9000, 9002, 9003]),
        ({**SAFE, "TRITON_PUBLIC_GRPC_PORT": "9000"}, [9001, 9002, 9003]),
        ({"SAGEMAKER_BIND_TO_PORT": "8000", "TRITON_PUBLIC_GRPC_PORT": "8002"}, [8001, 8003, 8004]),
    ],
)
def test_triton_s_ports_lie_in_the_safe_range_and_make_way_for_the_public_ones(
    environment: dict[str, str], ports: list[int]
) -> None:
    settings = read_settings(environment)
    assert settings.triton_ports == dict(zip(("http", "grpc", "metrics"), ports, strict=True))


ELSEWHERE = {"TRITON_URL": "triton:8001"}
SET = "is set, and a Triton elsewhere"
NO_ROUTES = {"MANAGEMENT_ROUTES": "false"}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"SAGEMAKER_SAFE_PORT_RANGE": "9000-9001"}, "expected: "),
        ({"SAGEMAKER_SAFE_PORT_RANGE": "8080-8082"}, "expected: "),
        ({"TRITON_PUBLIC_GRPC_PORT": "8080"}, "expected: "),
        ({**NO_ROUTES, "SAGEMAKER_MULTI_MODEL": "true"}, "MANAGEMENT_ROUTES is 'false'"),
        ({**ELSEWHERE, "TRITON_OPTIONS": "--id=a"}, f"^TRITON_OPTIONS {SET}"),
        ({**ELSEWHERE, "TRITON_PUBLIC_GRPC_PORT": "9001"}, f"^TRITON_PUBLIC_GRPC_PORT {SET}"),
        ({**ELSEWHERE, "SAGEMAKER_MULTI_MODEL": "true"}, f"^SAGEMAKER_MULTI_MODEL {SET}"),
        ({"TRITON_METADATA": "a: Bearer 1"}, "TRITON_METADATA is set, and TRITON_URL is not"),
        ({**ELSEWHERE, "TRITON_CA_FILE": __file__}, "TRITON_CA_FILE is set"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    environment: dict[str, str], said: str
) -> None:
    read_settings(NO_ROUTES)
    read_settings(ELSEWHERE | read_settings({}).environment())
    with pytest.raises(SettingError, match=said):
        read_settings(environment)


@pytest.mark.parametrize("timeout", ["2", "60", "3600"])
def test_each_part_gives_up_before_the_one_around_it(timeout: str) -> None:
    settings = read_settings({"MODEL_SERVER_TIMEOUT": timeout})
    assert settings.client_timeout < settings.proxy_timeout < settings.timeout
    assert settings.unload_timeout < settings.managing_wait
    in_all = settings.managing_wait + settings.load_timeout + settings.client_timeout
    assert in_all + settings.unload_timeout < settings.managing_timeout
    assert settings.unload_timeout <= 300, "the platform waits 360 s"


def test_workers_read_the_same_settings(tmp_path: Path) -> None:
    """What is handed to the workers through their environment is what `serve` read."""
    settings = read_settings(
        {
            "SAGEMAKER_SAFE_PORT_RANGE": "9000-9010",
            "MODEL_REPOSITORY": str(tmp_path),
            "CLIENTS_PATH": f"{tmp_path}:{tmp_path}",
            "REQUIRED_MODELS": "a, b",
            "RUN_DIR": str(tmp_path / "run"),
            "MODEL_SERVER_TIMEOUT": "12.5",
            "TRITON_OPTIONS": "--id='my house' --model-load-thread-count=8",
        }
    )
    assert read_settings(settings.environment()) == settings


@pytest.mark.parametrize(
    ("given", "cpus", "gpu", "workers"),
    [
        ({}, 1, "", "1"),
        ({}, 7, "", "1"),
        ({}, 16, "", "4"),
        ({}, 512, "", "4"),
        ({}, 1, "nvidia0", "1"),
        ({}, 16, "nvidia0", "10"),
        ({}, 512, "nvidia0", "12"),
        ({"MODEL_SERVER_WORKERS": "auto"}, 8, "", "2"),
        ({"MODEL_SERVER_WORKERS": " auto\n"}, 8, "", "2"),
        ({"MODEL_SERVER_WORKERS": "3"}, 16, "nvidia0", "3"),
        ({"MODEL_SERVER_WORKERS": ""}, 16, "", ""),  # which is refused
    ],
)
def test_web_workers_are_as_many_as_the_cpus_that_models_leave_them(
    given: dict[str, str], cpus: int, gpu: str, workers: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(gpu_config, "DEVICES", tmp_path)
    (tmp_path / (gpu or "null")).touch()
    read = with_workers({**given, "OTHER": "1"}, cpus)
    assert read == {"MODEL_SERVER_WORKERS": workers, "OTHER": "1"}


@pytest.mark.parametrize("variable", ["MODEL_REPOSITORY", "MODEL_DIR", "CLIENTS_PATH"])
@pytest.mark.parametrize("name", ["lost+found", "unlisted"])
def test_a_folder_that_cannot_be_read_is_named(shut: Path, name: str, variable: str) -> None:
    with pytest.raises(SettingError, match=f"{variable} is .*; expected: .* that can be read"):
        read_settings({variable: str(shut / name)})


def test_a_folder_that_may_not_be_entered_is_named_but_for_clients_beside_mounted_models(
    shut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as mounted:
        (Path(mounted) / "code").symlink_to(shut / "lost+found")
        assert read_settings({"MODEL_DIR": mounted}).client_folders == ()
    refused = Mock(side_effect=PermissionError(13, "Permission denied", "/closed/x"))
    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(SettingError, match="MODEL_DIR is '/closed/x'; expected: path"):
        read_settings({"MODEL_DIR": "/closed/x"})


def test_metadata_is_never_shown_and_read_again_from_its_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refused:
        read_settings({"TRITON_URL": "triton:8001", "TRITON_METADATA": "a-secret-without-a-name"})
    assert "a-secret" not in str(refused.value)
    file = tmp_path / "metadata"
    file.write_text("Authorization: Bearer one\n\nx-team: vision\n")
    settings = read_settings({"TRITON_URL": "triton:8001", "TRITON_METADATA": f"@{file}"})
    sent = TritonMetadata(settings.triton_metadata)
    assert sent() == (("authorization", "Bearer one"), ("x-team", "vision"))
    file.write_text("authorization: Bearer three\n")
    assert sent() == (("authorization", "Bearer three"),)
    file.write_text("nonsense")
    assert sent() == (("authorization", "Bearer three"),), "the last that could be used"
    text = read_settings({"TRITON_URL": "t:1", "TRITON_METADATA": "a: Bearer one"})
    assert "Bearer" not in repr(text)


@pytest.mark.parametrize(
    ("environment", "url", "service"),
    [
        ({}, "", "triton-dispatcher"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/p/"}, "http://c:4318/p/v1/traces", ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/t"}, "https://c/t", ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, "", ""),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name=shop"}, "", "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "OTEL_SERVICE_NAME": "cart"}, "", "cart"),
    ],
)
def test_traces_go_where_opentelemetry_s_variables_say(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, service: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert read_settings(os.environ).traces_url == url
    assert name_service() == (service or "triton-dispatcher")


def test_settings_of_earlier_versions_are_named_with_what_to_do() -> None:
    variables = [row.variable for row in rows() if row.meaning and row.expected]
    assert [*dict.fromkeys(variables)] == [row.variable for row in rows()], "each is described"
    (line,) = find_gone({"TRITON_CACHE_MB": "1", "TRITON_OPTIONS": ""})
    assert line.startswith("TRITON_CACHE_MB has no effect any more: CHANGELOG.md")
    assert not {*GONE} & {*variables}
