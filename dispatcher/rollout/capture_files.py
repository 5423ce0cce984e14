"""The files of captured requests: bounded in size, by the hour; in a folder, or on their way to S3.

    yyyy/mm/dd/hh/MM-SS-mmm-ID.jsonl           as SageMaker names them
    yyyy/mm/dd/hh/MM-SS-mmm-ID.files/HASH.jpg  pictures and other files of its lines

Each web worker has files of its own.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from dispatcher.s3.client import S3, Location
from dispatcher.settings import CAPTURED, Settings

LINES, BINARY = ".jsonl", "application/octet-stream"
MARK = "@file:"  # and a file's path as seen from the lines, in the place of its base64
MAX_FILE = 16 * 2**20  # bytes of lines
UPLOAD_AGE_S = 60.0  # of a file that is to be uploaded
PUT_S = 60.0  # for one object
MAX_STAGED = 256 * 2**20  # bytes of a web worker that wait for S3
# Of a disk, what captured requests leave to others: a tenth, or so many bytes.
LEFT_SHARE, LEFT_BYTES = 1 / 10, 2**30
HOUR_S = 3600
HOURS = "[0-9]" * 4 + "/[0-9][0-9]" * 3
KINDS = {b"\xff\xd8": "jpg", b"\x89P": "png", b"GI": "gif", b"BM": "bmp"}  # by how a file begins
FULL = os.strerror(errno.ENOSPC)


@dataclass
class CaptureFiles:
    """The files that one web worker writes, from one thread at a time."""

    place: Path  # the folder; with S3 the one, of all web workers, in which they wait
    keep_days: int = 0  # after which folders of hours are removed
    s3: S3 | None = None  # to which they are uploaded
    to: Location = Location("")  # the prefix of their keys
    clock: Callable[[], float] = time.time  # seconds since 1970

    @classmethod
    def of(cls, settings: Settings) -> Self:
        if to := Location.of(settings.capture_to):
            place = settings.run_dir or Path(tempfile.mkdtemp())
            return cls(place / CAPTURED, s3=S3.of(settings), to=to)
        return cls(Path(settings.capture_to), settings.capture_keep_days)

    def __post_init__(self) -> None:
        self.folder = self.place / str(os.getpid()) if self.s3 else self.place
        self._file, self._path, self._began, self._size = -1, Path(), 0.0, 0
        self._staged, self._swept = 0, 0.0

    def prepare(self) -> None:
        """Have a file open that is neither too large nor too old.

        Raises OSError: it cannot be made, or the disk is nearly full.
        """
        now = self.clock()
        is_old = self.s3 is not None and now > self._began + UPLOAD_AGE_S
        is_over = is_old or now // HOUR_S != self._began // HOUR_S or not self._path.exists()
        if is_over or self._size > MAX_FILE:
            self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self.folder)
        if disk.free < min(disk.total * LEFT_SHARE, LEFT_BYTES) or self._staged > MAX_STAGED:
            raise OSError(errno.ENOSPC, FULL)
        if self._file < 0:
            at = datetime.fromtimestamp(now, UTC)
            name = f"{at:%M-%S}-{at.microsecond // 1000:03}-{uuid.uuid4().hex[:8]}{LINES}"
            path = self.folder / f"{at:%Y/%m/%d/%H}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o666)
            self._path, self._began = path, now

    def append(self, lines: bytes) -> None:
        """Add lines to the file that is open, all of them or none.

        Raises OSError: they cannot be written.
        """
        if os.write(self._file, lines) < len(lines):
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, FULL)
        self._size += len(lines)
        self._staged += len(lines) if self.s3 else 0

    def keep(self, content: bytes) -> str:
        """Write a file beside the lines; return its path as seen from these.

        Raises OSError: it cannot be written.
        """
        kind = KINDS.get(content[:2], "bin")
        path = beside(self._path) / f"{hashlib.sha256(content).hexdigest()[:32]}.{kind}"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            try:
                path.write_bytes(content)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            self._staged += len(content) if self.s3 else 0
        return f"{path.parent.name}/{path.name}"

    def close(self) -> None:
        """Close the file that is open, if any; remove it where it is empty."""
        if self._file >= 0:
            os.close(self._file)
            if not self._size:
                self._path.unlink(missing_ok=True)
        self._file, self._path, self._size = -1, Path(), 0

    def sweep(self) -> None:
        """Remove the folders of hours that were kept long enough; look once an hour."""
        if self.keep_days and self.clock() > self._swept + HOUR_S:
            self._swept = self.clock()
            until = datetime.fromtimestamp(self._swept, UTC) - timedelta(days=self.keep_days)
            for hour in self.folder.glob(HOURS):
                if hour.relative_to(self.folder).as_posix() < f"{until:%Y/%m/%d/%H}":
                    shutil.rmtree(hour, ignore_errors=True)
                    remove_empty(*hour.parents[:3])

    def upload(self, until: float = math.inf) -> None:
        """Upload what is complete, of this web worker and of those that were killed.

        Raises InferenceError: S3 takes no more; what is left waits.
        """
        if not self.s3:
            return
        for folder in self.place.glob("[0-9]*"):
            if folder != self.folder and Path("/proc", folder.name).exists():
                continue  # its own web worker does it
            for lines in sorted(folder.rglob(f"*{LINES}")):
                # The lines come last: who finds them finds their files.
                for path in (*beside(lines).glob("*"), lines) if lines != self._path else ():
                    name = path.relative_to(folder).as_posix()
                    key = f"{self.to.key.rstrip('/')}/{name}".lstrip("/")
                    with suppress(FileNotFoundError):  # another one was faster
                        content, deadline = path.read_bytes(), min(until, time.monotonic() + PUT_S)
                        self.s3.put(Location(self.to.bucket, key), content, BINARY, deadline)
                        path.unlink()
                        self._staged -= len(content) if folder == self.folder else 0
                remove_empty(beside(lines), *lines.parents[:4])


def beside(lines: Path) -> Path:
    """Return the folder of the files that lines name."""
    return lines.with_suffix(".files")


def remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not
            folder.rmdir()
