"""Known vulnerabilities: found by the real pip-audit, which asks a stand-in for OSV."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from container.image import audit
from container.image.audit import Accepted, Finding, Unusable, accepted, failures
from tests.conftest import PROJECT, free_ports

LOCKS = PROJECT / "container" / "image" / "requirements"
TODAY = dt.date(2026, 6, 1)
FINDING = Finding("jinja2", "2.10", ("PYSEC-2019-217", "CVE-2019-10906"), ("2.10.1",))

# As OSV answered for this package, cut to what has to be there.
JINJA2 = {
    "id": "PYSEC-2019-217",
    "aliases": ["CVE-2019-10906"],
    "summary": "str.format_map allows a sandbox escape",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI", "purl": "pkg:pypi/jinja2"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.10.1"}]}],
        }
    ],
}


class Osv(BaseHTTPRequestHandler):
    """A fake of OSV's one route: OSV itself cannot be reached where these tests run."""

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        vulnerable = (asked["package"]["name"], asked["version"]) == ("jinja2", "2.10")
        body = json.dumps({"vulns": [JINJA2]} if vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def osv() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Osv)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    thread.join()
    server.server_close()


def locked(folder: Path, *lines: str) -> str:
    file = folder / "lock.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def test_a_vulnerable_package_fails(
    osv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = locked(tmp_path, "jinja2==2.10", "markupsafe==1.1.1")
    assert audit.main(["--osv-url", osv, lock]) == 1
    out, err = capsys.readouterr()
    assert "1 known vulnerabilities, 0 accepted" in out
    assert audit.main(["--osv-url", osv, str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
    assert err == "audit: jinja2 2.10: PYSEC-2019-217, fixed in 2.10.1\n"


def test_what_is_shipped_is_looked_up(osv: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--osv-url", osv, str(LOCKS / "serve.txt"), str(LOCKS / "triton.txt")]) == 0
    assert "2 lock files: 0 known vulnerabilities, 0 accepted" in capsys.readouterr().out


def test_every_lock_file_is_asked_about_by_default() -> None:
    assert {path.name for path in audit.LOCKS} == {path.name for path in LOCKS.glob("*.txt")}
    assert {"serve.txt", "triton.txt", "sbom.txt"} < {path.name for path in audit.LOCKS}


def test_without_a_source_of_data_it_says_that_nothing_was_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/v1/query"
    assert audit.main(["--osv-url", url, locked(tmp_path, "jinja2==2.10")]) == 0
    assert f"not checked: no data source reachable ({url})" in capsys.readouterr().out


def test_an_index_without_vulnerabilities_is_no_source_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What pip-audit 2.10 says where an index answers 404, and calls a success."""
    said = [{"name": "pip", "skip_reason": "Dependency not found on PyPI and could not be audited"}]
    monkeypatch.setattr(audit, "pip_audit", lambda locks, options: (said, ""))
    assert audit.main([locked(tmp_path, "jinja2==2.10")]) == 0
    assert "not checked: no data source reachable (PyPI, OSV)" in capsys.readouterr().out


def test_packages_that_the_source_does_not_know_are_named() -> None:
    said = [{"name": "ours", "skip_reason": "?"}, {"name": "a", "version": "1", "vulns": []}]
    assert audit.looked("PyPI", said) == audit.Looked("PyPI", 1, (), ("ours",))


@pytest.mark.parametrize(
    ("package", "name", "until", "line"),
    [
        ("jinja2", "CVE-2019-10906", dt.date(2026, 6, 1), None),
        ("jinja2", "PYSEC-2019-217", dt.date(2027, 1, 1), None),
        ("jinja2", "CVE-2019-10906", dt.date(2026, 5, 31), "it was accepted until 2026-05-31"),
        ("jinja2", "CVE-2019-0000", dt.date(2027, 1, 1), "PYSEC-2019-217, fixed in 2.10.1"),
        ("flask", "CVE-2019-10906", dt.date(2027, 1, 1), "PYSEC-2019-217, fixed in 2.10.1"),
    ],
)
def test_one_may_pass_for_a_while(
    package: str, name: str, until: dt.date, line: str | None
) -> None:
    lines = list(failures([FINDING], [Accepted(package, name, "a reason", until)], TODAY))
    assert len(lines) == (line is not None)
    assert line is None or lines[0].endswith(line)


def test_those_that_may_pass_are_of_packages_that_are_used() -> None:
    pins = "\n".join(path.read_text() for path in LOCKS.glob("*.txt"))
    for one in accepted():
        assert f"\n{one.package}==" in pins, one


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[[accepted]]\nid = 'a'\npackage = 'b'\nuntil = 2027-01-01", "a: reason"),
        ("[[accepted]]\nid = 'a'\npackage = 'b'\nreason = ''\nuntil = 2027-01-01", "a: reason"),
        ("[[accepted]]\nid = 'a'\npackage = 'b'\nreason = 'c'\nuntil = '2027'", "a: until"),
        ("[[accepted]]\nid = 'a'\npackage = 'b'\nreason = 'c'\nuntil = 2027-01-01\nx = 1", "a: x"),
        ("[[accepted]", "accepted.toml: "),
    ],
)
def test_an_entry_without_reason_or_date_is_refused(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "accepted.toml"
    file.write_text(text)
    with pytest.raises(Unusable, match=wrong):
        accepted(file)


UPDATES = """\
Inst libssl3 [3.0.15-1~deb12u1] (3.0.17-1~deb12u3 Debian-Security:12/oldstable-security [amd64])
Inst tzdata [2025a-0+deb12u1] (2025b-0+deb12u1 Debian:12.11/oldstable [all])
Inst libnew (1.0 Debian-Security:12/oldstable-security [amd64])
Conf libssl3 (3.0.17-1~deb12u3 Debian-Security:12/oldstable-security [amd64])
"""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (f"cat <<'END'\n{UPDATES}END", 1, "1 known vulnerabilities"),
        ("true", 0, "0 known vulnerabilities"),
        ("exit 3", 0, "not checked: no data source reachable"),
        ("exit 4", 0, "not checked: the package sources of the image have no security archive"),
        ("echo 'no such image' >&2; exit 125", 2, "mine cannot be looked into: no such image"),
    ],
)
def test_the_system_of_an_image(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    code: int,
    said: str,
) -> None:
    """With a stand-in for `docker`; tests/end_to_end/test_image_parts.py asks the real one."""
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert audit.main(["--image", "mine"]) == code
    out, err = capsys.readouterr()
    assert said in out + err
    assert ("libssl3 3.0.15-1~deb12u1: 3.0.17-1~deb12u3" in err) == (code == 1)
