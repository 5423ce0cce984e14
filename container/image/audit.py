"""Look for known vulnerabilities in what the project and its image are installed from.

    python -m container.image.audit [--osv-url URL] [LOCK ...]     # Python packages, by pip-audit
    python -m container.image.audit --image NAME                   # the system's, by its archive

pip-audit looks the packages of the lock files up at PyPI, or at OSV where PyPI does not answer. In
an image, an installed package is vulnerable if the security archive of its Debian or Ubuntu has a
newer version. `accepted-vulnerabilities.toml` says what may pass, why, and until when. The exit
code is not 0 where something else was found, or a file or an image cannot be used. Where no source
of data is reached, this says `not checked`, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

LOCKS = tuple(sorted(Path(__file__).with_name("requirements").glob("*.txt")))
ACCEPTED = Path(__file__).with_name("accepted-vulnerabilities.toml")
ENTRY = {"package": str, "id": str, "reason": str, "until": dt.date}

# Old enough that an advisory database knows it.
PROBE = "pip==20.0\n"
SERVICES = {"PyPI": ("--vulnerability-service=pypi",), "OSV": ("--vulnerability-service=osv",)}
UNUSABLE = 2

NOT_FETCHED, NO_ARCHIVE = 3, 4
SCAN = f"""
apt-get update --quiet=2 -o APT::Update::Error-Mode=any >/dev/null || exit {NOT_FETCHED}
apt-get indextargets --format '$(RELEASE)' | grep -q security || exit {NO_ARCHIVE}
apt-get dist-upgrade --simulate --quiet=2
"""
UPDATE = re.compile(r"^Inst (\S+) \[(\S+)\] \((\S+) [^)]*[Ss]ecurity[^)]*\)", re.MULTILINE)


def read_accepted(file: Path, today: dt.date) -> set[tuple[str, str]]:
    """Return what may pass on a day: packages, with the names of their vulnerabilities.

    Raises ValueError: the file cannot be used.
    """
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("accepted", [])
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from error
    for entry in entries:
        given = {key: type(value) for key, value in entry.items() if value != ""}
        if wrong := {key for key, _ in given.items() ^ ENTRY.items()}:
            raise ValueError(
                f"{file.name}: {entry.get('id', 'an entry')}: {', '.join(sorted(wrong))}; "
                "expected: package, id and reason, which are texts, and until, which is a date"
            )
    return {(entry["package"], entry["id"]) for entry in entries if entry["until"] >= today}


def audit_locks(locks: Sequence[Path], osv_url: str, passing: set[tuple[str, str]]) -> int:
    """Let pip-audit look up the packages of lock files; return its exit code."""
    own = {osv_url: ("--vulnerability-service=osv", f"--osv-url={osv_url}")}
    for name, options in (own if osv_url else SERVICES).items():
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", *options]
        command += ["--progress-spinner=off", "--timeout=10"]
        # pip-audit calls a package that it could not ask about "skipped", and succeeds.
        probed = subprocess.run(
            [*command, "--format=json", "--requirement=/dev/stdin"],
            input=PROBE,
            check=False,
            capture_output=True,
            encoding="utf-8",
        )
        found = json.loads(probed.stdout or "{}").get("dependencies", [])
        if any("skip_reason" not in one for one in found):
            sys.stdout.write(f"audit: {len(locks)} lock files, by {name}\n")
            sys.stdout.flush()
            command += [f"--requirement={lock}" for lock in locks]
            command += [f"--ignore-vuln={name}" for _, name in sorted(passing)]
            return subprocess.run([*command, "--desc=off"], check=False).returncode
    return say_not_checked(f"no data source reachable ({', '.join(own if osv_url else SERVICES)})")


def audit_image(image: str, passing: set[tuple[str, str]]) -> int:
    """Compare the packages of an image's system with the security archive of that system."""
    command = ["docker", "run", "--rm", "--network=host", "--user=0:0", "--entrypoint=sh", image]
    done = subprocess.run(
        [*command, "-c", SCAN], check=False, capture_output=True, encoding="utf-8"
    )
    if done.returncode == NOT_FETCHED:
        return say_not_checked("no data source reachable (the archives of the image's system)")
    if done.returncode == NO_ARCHIVE:
        return say_not_checked("the package sources of the image have no security archive")
    if done.returncode:
        raise ValueError(f"{image} cannot be looked into: {done.stderr.strip()[-300:]}")
    newer = [one for one in UPDATE.findall(done.stdout) if (one[0], one[2]) not in passing]
    for name, has, fixed in newer:
        sys.stdout.write(f"audit: {name} {has}: fixed in {fixed}\n")
    sys.stdout.write(f"audit: {image}: {len(newer)} packages with known vulnerabilities\n")
    return 1 if newer else 0


def say_not_checked(why: str) -> int:
    sys.stdout.write(f"audit: not checked: {why}\n")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Look, and say what was found; return the exit code."""
    parser = argparse.ArgumentParser(prog="audit", description="Look for known vulnerabilities.")
    parser.add_argument("--image", help="an image, in place of lock files")
    parser.add_argument("--osv-url", default="", help="a server that answers as OSV does")
    parser.add_argument("lock", nargs="*", type=Path, default=LOCKS, help="lock files")
    asked = parser.parse_args(arguments)
    try:
        passing = read_accepted(ACCEPTED, dt.datetime.now(tz=dt.UTC).date())
        if asked.image:
            return audit_image(asked.image, passing)
        return audit_locks(asked.lock, asked.osv_url, passing)
    except (OSError, ValueError) as error:  # such as no `docker`
        sys.stderr.write(f"audit: {error}\n")
        return UNUSABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
