"""Look for known vulnerabilities in what the project and its image are installed from.

    python -m container.image.audit [--osv-url URL] [LOCK ...]     # Python packages, by pip-audit
    python -m container.image.audit --image NAME                   # the system's, by its archive

The packages of the lock files are looked up at PyPI, or at OSV where PyPI does not answer. In an
image, an installed package is vulnerable if the security archive of its Debian or Ubuntu has a
newer version. `accepted-vulnerabilities.toml` says what may pass, why, and until when. The exit
code is 1 where something else was found, and 2 where a file or an image cannot be used. Where no
source of data is reached, this says `not checked`, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCKS = tuple(sorted(Path(__file__).with_name("requirements").glob("*.txt")))
ACCEPTED = Path(__file__).with_name("accepted-vulnerabilities.toml")
ENTRY = {"package": str, "id": str, "reason": str, "until": dt.date}

# Old enough that an advisory database knows it.
PROBE = "pip==20.0"
TIMEOUT_S = 10

NOT_FETCHED, NO_ARCHIVE = 3, 4
SCAN = f"""
apt-get update --quiet=2 -o APT::Update::Error-Mode=any >/dev/null || exit {NOT_FETCHED}
apt-get indextargets --format '$(RELEASE)' | grep -q security || exit {NO_ARCHIVE}
apt-get dist-upgrade --simulate --quiet=2
"""
UPDATE = re.compile(
    r"^Inst (?P<name>\S+) \[(?P<has>[^]]+)\] \((?P<fix>\S+) (?P<origin>[^)]*)\)", re.MULTILINE
)


class NotChecked(Exception):
    """No source of data was reached, or none has what is asked; the text says which."""


class Unusable(Exception):
    """An image, a lock file or the file of what may pass cannot be used; the text says why."""


@dataclass(frozen=True)
class Finding:
    """A known vulnerability of a package.

    Args:
        package: its name.
        version: the one that is used.
        names: of the vulnerability; the first is shown.
        fixed: the versions that have a fix.

    """

    package: str
    version: str
    names: tuple[str, ...]
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no fix is known"
        return f"{self.package} {self.version}: {self.names[0]}, {fixed}"


@dataclass(frozen=True)
class Accepted:
    """A vulnerability that may pass until a day."""

    package: str
    id: str
    reason: str
    until: dt.date


@dataclass(frozen=True)
class Looked:
    """What was looked up, and what was found.

    Args:
        source: where.
        count: of packages that the source knows.
        findings: known vulnerabilities.
        unknown: packages that the source does not know.

    """

    source: str
    count: int
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()


def in_locks(locks: Sequence[Path], osv_url: str | None = None) -> Looked:
    """Look up the packages of lock files.

    Args:
        locks: the files.
        osv_url: of a server that answers as OSV does; nothing means PyPI, then OSV.

    Raises:
        NotChecked: none of them answers.
        Unusable: pip-audit cannot read the files.

    """
    services: dict[str, tuple[str, ...]] = {
        "PyPI": ("--vulnerability-service", "pypi"),
        "OSV": ("--vulnerability-service", "osv"),
    }
    if osv_url:
        services = {osv_url: ("--vulnerability-service", "osv", "--osv-url", osv_url)}
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "requirements.txt"
        probe.write_text(f"{PROBE}\n", encoding="utf-8")
        for name, options in services.items():
            # pip-audit calls a package that it could not ask about "skipped", and succeeds.
            if any("skip_reason" not in one for one in pip_audit([probe], options)[0]):
                said, errors = pip_audit(locks, options)
                if not said:
                    raise Unusable(f"pip-audit failed, asking {name}: {errors}")
                return looked(name, said)
    raise NotChecked(f"no data source reachable ({', '.join(services)})")


def pip_audit(locks: Sequence[Path], options: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Return what pip-audit says of each package; nothing, and why, where it fails."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", *options]
    command += ["--format=json", "--progress-spinner=off", f"--timeout={TIMEOUT_S}"]
    for lock in locks:
        command += ["--requirement", str(lock)]
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], done.stderr.strip()[-300:]
    return found, ""


def looked(source: str, said: Collection[dict[str, Any]]) -> Looked:
    """Read what pip-audit said of packages."""
    known = [one for one in said if "skip_reason" not in one]
    findings = {
        Finding(
            one["name"],
            one["version"],
            (each["id"], *each.get("aliases", ())),
            tuple(each.get("fix_versions", ())),
        )
        for one in known
        for each in one["vulns"]
    }
    unknown = sorted({one["name"] for one in said if "skip_reason" in one})
    return Looked(source, len(known), tuple(sorted(findings, key=str)), tuple(unknown))


def in_image(image: str) -> Looked:
    """Compare the packages of an image's system with the security archive of that system.

    Raises:
        NotChecked: the archive is out of reach, or the image has no security archive.
        Unusable: the image cannot be run.

    """
    command = ["docker", "run", "--rm", "--network=host", "--user=0:0", "--entrypoint=sh", image]
    try:
        done = subprocess.run(
            [*command, "-c", SCAN], check=False, capture_output=True, encoding="utf-8"
        )
    except FileNotFoundError as error:
        raise Unusable(f"{image} cannot be looked into: there is no `docker` here") from error
    if done.returncode == NOT_FETCHED:
        raise NotChecked("no data source reachable (the archives of the image's system)")
    if done.returncode == NO_ARCHIVE:
        raise NotChecked("the package sources of the image have no security archive")
    if done.returncode:
        raise Unusable(f"{image} cannot be looked into: {done.stderr.strip()[-300:]}")
    findings = [
        Finding(one["name"], one["has"], (one["fix"],), (one["fix"],))
        for one in UPDATE.finditer(done.stdout)
        if "security" in one["origin"].lower()
    ]
    return Looked("the security archive", 1, tuple(findings))


def accepted(file: Path = ACCEPTED) -> tuple[Accepted, ...]:
    """Read the vulnerabilities that may pass.

    Raises:
        Unusable: the file cannot be used.

    """
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("accepted", [])
    except (OSError, ValueError) as error:
        raise Unusable(f"{file.name}: {error}") from error
    for entry in entries:
        wrong = entry.keys() ^ ENTRY.keys()
        wrong |= {key for key in entry.keys() & ENTRY if type(entry[key]) is not ENTRY[key]}
        wrong |= {key for key in entry if entry[key] == ""}
        if wrong:
            raise Unusable(
                f"{file.name}: {entry.get('id', 'an entry')}: {', '.join(sorted(wrong))}; "
                "expected: package, id and reason, which are texts, and until, which is a date"
            )
    return tuple(Accepted(**entry) for entry in entries)


def failures(
    findings: Collection[Finding], entries: Collection[Accepted], today: dt.date
) -> Iterator[str]:
    """Yield a line for each finding that may not pass."""
    for finding in findings:
        fitting = [
            one for one in entries if one.package == finding.package and one.id in finding.names
        ]
        if not fitting:
            yield str(finding)
        elif (last := max(one.until for one in fitting)) < today:
            yield f"{finding}; it was accepted until {last}"


def main(arguments: Sequence[str]) -> int:
    """Look, and say what was found; return the exit code."""
    parser = argparse.ArgumentParser(prog="audit", description="Look for known vulnerabilities.")
    parser.add_argument("--image", help="an image, in place of lock files")
    parser.add_argument("--osv-url", help="a server that answers as OSV does")
    parser.add_argument("lock", nargs="*", type=Path, default=LOCKS, help="lock files")
    asked = parser.parse_args(arguments)
    what = asked.image or f"{len(asked.lock)} lock files"
    try:
        entries = accepted()
        found = in_image(asked.image) if asked.image else in_locks(asked.lock, asked.osv_url)
    except NotChecked as error:
        sys.stdout.write(f"audit: {what}: not checked: {error}\n")
        return 0
    except Unusable as error:
        sys.stderr.write(f"audit: {error}\n")
        return 2
    lines = list(failures(found.findings, entries, dt.datetime.now(tz=dt.UTC).date()))
    passed = len(found.findings) - len(lines)
    sys.stdout.write(
        f"audit: {what}: {len(lines)} known vulnerabilities, {passed} accepted; by {found.source}\n"
    )
    if found.unknown:
        sys.stdout.write(f"audit: not checked, unknown there: {', '.join(found.unknown)}\n")
    for line in lines:
        sys.stderr.write(f"audit: {line}\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
