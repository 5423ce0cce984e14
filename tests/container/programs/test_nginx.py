"""Which ports NGINX opens, and which NGINX can be used."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from container.programs import nginx
from container.programs.listening import has_ipv6
from container.programs.nginx import ALIVE, REFUSALS, RequestLines, find_nginx, nginx_program
from container.trouble import Trouble
from dispatcher.settings import read_settings
from tests.conftest import PATIENCE_S, PROJECT, free_ports, wait_for
from tests.support.front import NGINX
from tests.support.programs import write_program


def listens(folder: Path, environment: dict[str, str]) -> list[str]:
    """Return the arguments of `listen` in the configuration that NGINX is started with."""
    settings = read_settings(environment)
    nginx_program(settings, folder, NGINX)
    configuration = (folder / "nginx.conf").read_text()
    return re.findall(r"^ *listen (.*);", configuration, re.MULTILINE)


@pytest.mark.parametrize("has_ipv6", [True, False])
def test_triton_s_ports_are_closed_unless_a_setting_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_ipv6: bool
) -> None:
    """And all are open to IPv6 and IPv4, where the kernel has both."""
    monkeypatch.setattr(nginx, "has_ipv6", lambda: has_ipv6)
    form = "[::]:{} ipv6only=off" if has_ipv6 else "{}"
    port = str(free_ports(1)[0])
    own = {"SAGEMAKER_BIND_TO_PORT": port}
    main = form.format(port) + " backlog=1024"
    assert listens(tmp_path, own) == [main]
    grpc = {**own, "TRITON_PUBLIC_GRPC_PORT": "9001"}
    assert listens(tmp_path, grpc) == [main, form.format(9001) + " http2"]


@pytest.mark.skipif(not has_ipv6(), reason="the kernel has no IPv6")
def test_callers_of_both_families_are_answered(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    settings = read_settings({"SAGEMAKER_BIND_TO_PORT": str(port)})
    program = nginx_program(settings, tmp_path, NGINX)
    process = subprocess.Popen(program.command(), env=dict(program.environment))
    try:
        wait_for(lambda: not program.fault(), "NGINX")
        for host in ("127.0.0.1", "::1"):
            with closing(http.client.HTTPConnection(host, port, timeout=PATIENCE_S)) as connection:
                connection.request("GET", ALIVE)
                assert connection.getresponse().status == 204
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("in_memory", "free", "expected"),
    [
        # An eighth of 1 GiB is 128 MiB: for each size 32 MiB, of bodies or of NGINX's buffers.
        (True, 2**40, {"small": 335, "medium": 33, "large": 3, "largest": 1}),
        (False, 2**40, {"small": 335, "medium": 33, "large": 32, "largest": 32}),
        (False, 8 * 10**8, {"small": 335, "medium": 33, "large": 10, "largest": 3}),
        (False, 0, {"small": 1, "medium": 1, "large": 1, "largest": 1}),
    ],
)
def test_bodies_have_the_room_that_there_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_memory: bool,
    free: int,
    expected: dict[str, int],
) -> None:
    monkeypatch.setattr(nginx, "total_memory", lambda: 2**30)
    monkeypatch.setattr(nginx, "lies_in_memory", lambda _: in_memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert nginx.bodies_at_a_time(tmp_path, 25 * 2**20, 3072) == expected


LINE = (
    '{"ended":1764172800.250,"request_id":"a","method":"POST","path":"%s","status":"%03d",'
    '"code":"%s","message":"","bytes_in":"%s","bytes_out":2,"total_s":0.125}'
)


@pytest.mark.parametrize("logged", [True, False])
def test_what_nginx_refuses_is_counted_whether_or_not_it_is_logged(*, logged: bool) -> None:
    lines = RequestLines(logged=logged)
    sly = r"/\",\"status\":\"504\",\"code\":\""  # as NGINX escapes it
    for path, status in (("/a", 413), (sly, 413), ("/", 408), ("/", 200), ("/", 0)):
        assert bool(lines((LINE % (path, status, "too_large", 1)).encode())) == logged
    of_triton_s_own_port = (LINE % ("/", 413, "", 1)).replace('"code":"",', "").encode()
    assert bool(lines(of_triton_s_own_port)) == logged
    other = b'2026/11/26 16:00:00 [error] 7#7: *1 {"ended":1,"status":"413","code":"too_large"}'
    assert lines(other) is None, "another line is always logged"
    assert {status: n for status, n in lines.counts.items() if n} == {"413": 2, "408": 1}


@pytest.mark.parametrize(
    ("status", "level", "length", "size"),
    [(413, "info", "7", 7), (500, "error", "", 0), (503, "warning", 'x\\",\\"a', 0)],
)
def test_a_request_of_nginx_s_is_logged_as_the_dispatcher_s_are(
    status: int, level: str, length: str, size: int
) -> None:
    came = (LINE % ("/é" + "x" * 300, status, "code", length)).encode("latin-1")
    line = json.loads(RequestLines(logged=True)(came) or b"")
    assert line == {
        "time": "2025-11-26T16:00:00.125Z",
        "program": "nginx",
        "level": level,
        "request_id": "a",
        "method": "POST",
        "path": "/\ufffd" + "x" * 198,
        "status": status,
        "code": "code",
        "bytes_in": size,
        "bytes_out": 2,
        "total_s": 0.125,
    }


def test_all_refusals_that_have_a_code_are_counted() -> None:
    text = (PROJECT / "nginx.conf").read_text()
    codes = text.partition("map $refused $code {")[2].partition("}")[0]
    assert {int(status) for status in re.findall(r"(\d+) \w+;", codes)} == set(REFUSALS)


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
    said = f'echo "configure arguments: {options}" >&2'
    executable = write_program(tmp_path / "nginx", said)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_nginx(read_settings({})) == str(executable)
    settings = read_settings({"TRITON_PUBLIC_GRPC_PORT": "9001"})
    if usable:
        assert find_nginx(settings) == str(executable)
    else:
        with pytest.raises(Trouble, match=r"TRITON_PUBLIC_GRPC_PORT is 9001, and .*/nginx was"):
            find_nginx(settings)
