"""Known vulnerabilities: found by the real pip-audit, which asks a stand-in for OSV."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from container.image import audit
from container.image.audit import ACCEPTED, read_accepted
from tests.conftest import PROJECT, free_ports
from tests.support.programs import write_program

LOCKS = PROJECT / "container" / "image" / "requirements"
TODAY = dt.date(2026, 6, 1)
ENTRY = """
[[accepted]]
package = "jinja2"
id = "CVE-2019-10906"
reason = "a reason"
until = {until}
"""

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
    with ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def locked(folder: Path, *lines: str) -> str:
    file = folder / "lock.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


@pytest.mark.slow
def test_a_vulnerable_package_fails(
    osv: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = locked(tmp_path, "jinja2==2.10", "markupsafe==1.1.1")
    assert audit.main(["--osv-url", osv, lock]) == 1
    out, err = capfd.readouterr()
    assert "1 lock files, by http" in out
    assert out.splitlines()[-1].split() == ["jinja2", "2.10", "PYSEC-2019-217", "2.10.1"]
    assert "Found 1 known vulnerability" in err
    assert audit.main(["--osv-url", osv, str(tmp_path / "none.txt")]) != 0
    assert "none.txt" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("until", "code"), [("2030-01-01", 0), ("2026-01-01", 1)])
def test_one_may_pass_for_a_while(
    osv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str, code: int
) -> None:
    file = tmp_path / "accepted.toml"
    file.write_text(ENTRY.format(until=until))
    last = dt.date.fromisoformat(until)
    assert read_accepted(file, last) == {("jinja2", "CVE-2019-10906")}
    assert read_accepted(file, last + dt.timedelta(days=1)) == set()
    monkeypatch.setattr(audit, "ACCEPTED", file)
    assert audit.main(["--osv-url", osv, locked(tmp_path, "jinja2==2.10")]) == code


@pytest.mark.slow
def test_what_is_shipped_is_looked_up(osv: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--osv-url", osv, str(LOCKS / "serve.txt"), str(LOCKS / "triton.txt")]) == 0
    out, err = capfd.readouterr()
    assert "2 lock files" in out
    assert "No known vulnerabilities found" in err


def test_every_lock_file_is_asked_about_by_default() -> None:
    assert {path.name for path in audit.LOCKS} == {path.name for path in LOCKS.glob("*.txt")}
    assert {"serve.txt", "triton.txt", "sbom.txt"} < {path.name for path in audit.LOCKS}
    pins = "\n".join(path.read_text() for path in LOCKS.glob("*.txt"))
    for package, name in read_accepted(ACCEPTED, TODAY):
        assert f"\n{package}==" in pins, name


def test_without_a_source_of_data_it_says_that_nothing_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor by an index without vulnerabilities: pip-audit 2.10 calls a 404 of it a success."""
    lock, (port,) = locked(tmp_path, "jinja2==2.10"), free_ports(1)
    url = f"http://127.0.0.1:{port}/v1/query"
    assert audit.main(["--osv-url", url, lock]) == 0
    assert f"not checked: no data source reachable ({url})" in capsys.readouterr().out
    said = {"dependencies": [{"name": "pip", "skip_reason": "Dependency not found on PyPI"}]}
    answered = subprocess.CompletedProcess[str]([], 0, json.dumps(said), "")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: answered)
    assert audit.main([lock]) == 0
    assert "not checked: no data source reachable (PyPI, OSV)" in capsys.readouterr().out


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
    with pytest.raises(ValueError, match=wrong):
        read_accepted(file, TODAY)


UPDATES = """\
Inst libssl3 [3.0.15-1~deb12u1] (3.0.17-1~deb12u3 Debian-Security:12/oldstable-security [amd64])
Inst tzdata [2025a-0+deb12u1] (2025b-0+deb12u1 Debian:12.11/oldstable [all])
Inst libnew (1.0 Debian-Security:12/oldstable-security [amd64])
Conf libssl3 (3.0.17-1~deb12u3 Debian-Security:12/oldstable-security [amd64])
"""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (f"cat <<'END'\n{UPDATES}END", 1, "1 packages with known vulnerabilities"),
        ("true", 0, "0 packages with known vulnerabilities"),
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
    """With a stand-in for `docker`; tests/end_to_end/test_image.py asks the real one."""
    write_program(tmp_path / "docker", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert audit.main(["--image", "mine"]) == code
    out, err = capsys.readouterr()
    assert said in out + err
    assert ("libssl3 3.0.15-1~deb12u1: fixed in 3.0.17-1~deb12u3" in out) == (code == 1)
