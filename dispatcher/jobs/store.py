"""Jobs on disk, for all web workers: requests that are answered later.

    jobs/NAME/                   request.json, body; run.json, lock; result, end.json
    waiting/TIME.BYTES.NAME      an empty file for each job to be run, not before that time
    ended/TIME.BYTES.NAME        one for each job that has ended; it is removed at that time

NAME is a hash of the caller's key and the job's id. The worker that runs a job keeps it locked, so
the job of a worker that was killed is free again. A job has ended as soon as it has an `end.json`,
which is made once: by the worker, or by who cancels the job.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from clients.errors import TooManyRequests
from dispatcher.errors import JobConflict, OutOfMemory
from dispatcher.locks import Locked, hold_lock, read_json, write_json

JOBS, WAITING, ENDED, PARTS = "jobs", "waiting", "ended", "parts"
REQUEST, BODY, RUN, RESULT, END, LOCK = (
    "request.json", "body", "run.json", "result", "end.json", "lock",
)  # fmt: skip
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
ABANDONED_S = 3600.0  # after which what a killed worker had begun to write is removed
LOCK_S = 10.0
NS = 10**9
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class JobRequest:
    """A request to be answered later, without its body."""

    identity: str  # by which its caller asks for it
    owner: str  # the name of the caller's API key; empty where none is needed
    path: str  # as WSGI has it
    query: str  # the same
    headers: Mapping[str, str]  # those that matter to the answer, by WSGI's names
    result: str  # where the answer will be
    created: float = 0.0  # in seconds since 1970
    digest: str = ""  # of what it asks for
    # Headers that name the trace that the answer becomes a part of.
    trace: Mapping[str, str] = field(default_factory=dict)
    models: Sequence[str] = ()  # the only ones that the key may ask; empty: all

    @property
    def name(self) -> str:
        return folder_name(self.owner, self.identity)


@dataclass(frozen=True, eq=False)
class StoredJob:
    """A job in its folder."""

    folder: Path
    request: JobRequest

    @property
    def run(self) -> dict[str, Any]:
        """How often it was begun and refused, and when it was begun last."""
        return read_json(self.folder / RUN) or {}

    @property
    def end(self) -> dict[str, Any] | None:
        """How it has ended."""
        return read_json(self.folder / END)

    @property
    def has_ended(self) -> bool:
        return (self.folder / END).exists()

    def note(self, **run: Any) -> None:
        """Write `run`; only who has the lock does so."""
        write_json(self.folder / RUN, run)


class Entry(NamedTuple):
    """A job in a list."""

    at: int
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.at:020}.{self.size}.{self.name}"


@dataclass
class JobStore:
    """The jobs of all web workers."""

    folder: Path  # made where there is none
    most: int  # how many may wait or run
    most_bytes: int  # of bodies and results
    keep: float  # seconds for which a job that has ended is kept

    def __post_init__(self) -> None:
        for name in (JOBS, WAITING, ENDED, PARTS):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def accept(self, asked: JobRequest, body: IO[bytes], length: int, said: str) -> StoredJob:
        """Store a job; return it, or the one that has its id already.

        `said` is what the request says besides its body; the same for a repeated one.

        Raises JobConflict: another request has the same id.
        """
        if not self.find(asked.owner, asked.identity):
            self.refuse_too_many(length)
        part = None
        try:
            part = Path(tempfile.mkdtemp(dir=self.folder / PARTS))
            with (part / BODY).open("w+b") as file:
                shutil.copyfileobj(body, file)
                file.seek(0)
                digest = hashlib.file_digest(file, lambda: hashlib.sha256(said.encode()))
            request = replace(asked, created=time.time(), digest=digest.hexdigest())
            write_json(part / REQUEST, asdict(request))
            with hold_lock(self.folder / LOCK, fcntl.LOCK_EX, time.monotonic() + LOCK_S):
                if known := self.find(asked.owner, asked.identity):
                    if known.request.digest == request.digest:
                        return known
                    raise JobConflict(
                        f"the job {request.identity} asks for something else: its body, path or "
                        "headers differ",
                        hint="send another id with another request",
                    )
                self.refuse_too_many(length)
                # First the entry: a job without one would never be run.
                self.enter(WAITING, Entry(time.time_ns(), length, request.name))
                folder = self.folder / JOBS / request.name
                shutil.rmtree(folder, ignore_errors=True)  # of one that is over
                part.rename(folder)
        except Locked as error:
            raise TooManyRequests(
                "too many jobs come at a time", hint="try again after Retry-After seconds"
            ) from error
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise OutOfMemory("there is no room on the disk for another job") from error
        finally:
            if part:
                shutil.rmtree(part, ignore_errors=True)
        return StoredJob(folder, request)

    def refuse_too_many(self, length: int) -> None:
        waiting = self.entries(WAITING)
        if len(waiting) >= self.most:
            raise TooManyRequests(
                f"{len(waiting)} jobs wait already", hint="try again after Retry-After seconds"
            )
        if sum(one.size for one in (*waiting, *self.entries(ENDED))) + length > self.most_bytes:
            raise TooManyRequests(
                f"jobs and their results take {self.most_bytes // 2**20} MiB of disk already",
                hint="try again later; JOBS_DISK_MB and JOBS_KEEP decide, and where JOBS_DIR lies "
                "in memory, how much of that the container has",
            )

    def find(self, owner: str, identity: str) -> StoredJob | None:
        """Return the job of a caller; `None` where there is none any more."""
        job = self.read(folder_name(owner, identity))
        return None if job is None or self.is_over(job) else job

    def is_over(self, job: StoredJob) -> bool:
        """Whether a job was kept long enough after its end."""
        end = job.end
        return end is not None and end["ended"] + self.keep < time.time()

    def read(self, name: str) -> StoredJob | None:
        folder = self.folder / JOBS / name
        request = read_json(folder / REQUEST)
        return StoredJob(folder, JobRequest(**request)) if request else None

    @contextmanager
    def taken(self) -> Iterator[StoredJob | None]:
        """Lock the job that has waited longest; `None` where none waits."""
        now = time.time_ns()
        for entry in self.entries(WAITING):
            if entry.at > now:
                break
            if (job := self.read(entry.name)) is None:
                if entry.at < now - LOCK_S * NS:  # its worker was killed before it had accepted it
                    self.leave(entry)
                continue
            with ExitStack() as until_done:
                try:
                    until_done.enter_context(hold_lock(job.folder / LOCK, fcntl.LOCK_EX))
                except (Locked, FileNotFoundError):
                    continue
                if job.has_ended:
                    self.settle(job)
                    continue
                yield job
                return
        yield None

    def end(self, job: StoredJob, status: str, **more: Any) -> bool:
        """End a job; return false where it has ended already."""
        part = job.folder / f"{uuid.uuid4().hex}.part"
        try:
            part.write_text(
                json.dumps({"status": status, "ended": time.time(), **more}), encoding="utf-8"
            )
            os.link(part, job.folder / END)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
        self.settle(job)
        return True

    def settle(self, job: StoredJob) -> None:
        """Move a job that has ended from one list to the other."""
        if not (end := job.end):
            return
        if end["status"] == CANCELLED:
            (job.folder / RESULT).unlink(missing_ok=True)
        (job.folder / BODY).unlink(missing_ok=True)
        result = job.folder / RESULT
        size = result.stat().st_size if result.exists() else 0
        until = int((end["ended"] + self.keep) * NS)
        self.enter(ENDED, Entry(until, size, job.folder.name))
        for entry in self.entries(WAITING, job.folder.name):
            self.leave(entry)

    def postpone(self, job: StoredJob, seconds: float) -> None:
        for entry in self.entries(WAITING, job.folder.name):
            later = entry._replace(at=time.time_ns() + int(seconds * NS))
            with suppress(FileNotFoundError):  # it was cancelled
                (self.folder / WAITING / str(entry)).rename(self.folder / WAITING / str(later))

    def sweep(self) -> None:
        """Remove what has been kept long enough."""
        for entry in self.entries(ENDED):
            if entry.at > time.time_ns():
                break
            with suppress(Locked), hold_lock(self.folder / LOCK, fcntl.LOCK_EX):
                job = self.read(entry.name)
                if job is None or self.is_over(job):  # else a newer one has its id
                    shutil.rmtree(self.folder / JOBS / entry.name, ignore_errors=True)
                (self.folder / ENDED / str(entry)).unlink(missing_ok=True)
        for part in (self.folder / PARTS).iterdir():
            with suppress(FileNotFoundError):
                if part.stat().st_mtime < time.time() - ABANDONED_S:
                    shutil.rmtree(part, ignore_errors=True)

    def entries(self, which: str, name: str = "") -> list[Entry]:
        """Return a list in order, or what it has of one job."""
        with os.scandir(self.folder / which) as files:  # of ten thousand in 5 ms
            split = [one.split(".") for one in sorted(file.name for file in files)]
        return [Entry(int(at), int(n), of) for at, n, of in split if not name or name == of]

    def enter(self, which: str, entry: Entry) -> None:
        (self.folder / which / str(entry)).touch()

    def leave(self, entry: Entry) -> None:
        (self.folder / WAITING / str(entry)).unlink(missing_ok=True)


def folder_name(owner: str, identity: str) -> str:
    return hashlib.sha256(f"{owner}\n{identity}".encode()).hexdigest()
