"""Which ports NGINX opens, and which NGINX can be used."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from container.programs.listening_socket import ListeningSocket
from container.programs.nginx import NoNginx, find_nginx, nginx_program
from dispatcher.settings import read_settings
from tests.conftest import free_ports
from tests.support.front import NGINX


def listens(folder: Path, environment: dict[str, str]) -> list[str]:
    """Return the arguments of `listen` in the configuration that NGINX is started with."""
    settings = read_settings(environment)
    with closing(ListeningSocket(settings.port)) as listener:
        nginx_program(settings, folder, NGINX, listener)
    configuration = (folder / "nginx.conf").read_text()
    return re.findall(r"^ *listen (.*);", configuration, re.MULTILINE)


def test_triton_s_ports_are_closed_unless_a_setting_opens_them(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    own = {"SAGEMAKER_BIND_TO_PORT": port}
    assert listens(tmp_path, own) == [f"{port} backlog=1024"]
    assert listens(tmp_path, {**own, "TRITON_PUBLIC_METRICS_PORT": "9002"}) == [
        f"{port} backlog=1024",
        "9002",
    ]
    grpc = {**own, "TRITON_PUBLIC_HTTP_PORT": "9000", "TRITON_PUBLIC_GRPC_PORT": "9001"}
    assert listens(tmp_path, grpc) == [f"{port} backlog=1024", "9000", "9001 http2"]


@pytest.mark.parametrize(
    ("options", "usable"),
    [
        ("--with-http_v2_module --with-threads", True),
        ("--with-threads", False),
        ("--with-http_v2_module --without-http_grpc_module", False),
    ],
)
def test_open_grpc_needs_an_nginx_with_http_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, usable: bool
) -> None:
    executable = tmp_path / "nginx"
    executable.write_text(f'#!/bin/sh\necho "configure arguments: {options}" >&2\n')
    executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_nginx(read_settings({})) == str(executable)
    settings = read_settings({"TRITON_PUBLIC_GRPC_PORT": "9001"})
    if usable:
        assert find_nginx(settings) == str(executable)
    else:
        with pytest.raises(NoNginx, match=r"TRITON_PUBLIC_GRPC_PORT is 9001, and .*/nginx was"):
            find_nginx(settings)
