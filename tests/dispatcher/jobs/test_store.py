"""The jobs on disk, and how they are run, without a server."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from werkzeug.datastructures import Headers

from clients.errors import TooManyRequests
from dispatcher.codecs.metadata import prefers_async
from dispatcher.errors import JobConflict
from dispatcher.execution.admission import Admission
from dispatcher.jobs.runner import MAX_BEGUN, Runner
from dispatcher.jobs.store import CANCELLED, JobRequest, JobStore, StoredJob

MB = 2**20


def asked(identity: str = "a", owner: str = "") -> JobRequest:
    return JobRequest(identity, owner, "/invocations", "", {}, f"/jobs/{identity}/result")


def store_in(folder: Path, most: int = 10, most_bytes: int = MB, keep: float = 60.0) -> JobStore:
    return JobStore(folder, most, most_bytes, keep)


def accept(store: JobStore, identity: str = "a", body: bytes = b"{}", owner: str = "") -> StoredJob:
    return store.accept(asked(identity, owner), io.BytesIO(body), len(body), "")


def app(status: str = "200 OK", *pieces: bytes) -> Callable[..., Iterable[bytes]]:
    def answer(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "application/json")])
        return iter(pieces)

    return answer


def let_pass(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now, nanoseconds = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + int(seconds * 1e9))


def runner(store: JobStore, application: Any) -> Runner:
    return Runner(store, application, Admission(2, 2, 2, MB), lambda: False)


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        (["wait=10", "RESPOND-ASYNC ; x"], True),
        (['foo="a, b", respond-async'], True),
        (['foo="a, respond-async, b"'], False),
        (["respond-async-not", "=respond-async"], False),
        ([], False),
    ],
)
def test_the_preference_is_read_as_rfc_7240_writes_it(headers: list[str], *, wanted: bool) -> None:
    assert prefers_async(Headers([("Prefer", one) for one in headers])) is wanted


def test_bodies_and_results_have_a_limit_on_disk(tmp_path: Path) -> None:
    store = store_in(tmp_path, most_bytes=1000)
    accept(store, "a", b"x" * 400)
    accept(store, "b", b"x" * 400)
    with pytest.raises(TooManyRequests, match="of disk"):
        accept(store, "c", b"x" * 400)
    assert runner(store, app("200 OK", b"1" * 300)).step()
    accept(store, "c", b"x" * 300)
    with pytest.raises(TooManyRequests, match="of disk"):
        accept(store, "d", b"x")
    store.most = 2
    with pytest.raises(TooManyRequests, match="2 jobs wait already"):
        accept(store, "d", b"x")
    assert accept(store, "c", b"x" * 300).request.identity == "c", "it is there already"
    assert not list((tmp_path / "parts").iterdir())


def test_one_id_is_one_job_of_one_owner(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    accept(store, "a", b"one", "me")
    accept(store, "a", b"one", "me")
    accept(store, "a", b"two", "you")
    with pytest.raises(JobConflict):
        accept(store, "a", b"two", "me")
    assert len(store.entries("waiting")) == 2
    assert store.find("they", "a") is None


def test_jobs_run_in_the_order_in_which_they_came_and_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    order: list[str] = []

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        order.append(environ["HTTP_X_AMZN_SAGEMAKER_INFERENCE_ID"])
        return app("200 OK", environ["wsgi.input"].read())(environ, start_response)

    for name in "cab":
        accept(store, name, name.encode())
    runs = runner(store, answer)
    assert [runs.step() for _ in range(4)] == [True, True, True, False]
    assert order == list("cab")
    assert (job := store.find("", "a"))
    assert (job.folder / "result").read_bytes() == b"a"
    assert not (job.folder / "body").exists()
    let_pass(61, monkeypatch)
    assert store.find("", "a") is None
    accept(store, "a", b"another")  # its id is free again
    store.sweep()
    assert store.find("", "a"), "the newer one was removed"
    assert store.end(job, CANCELLED)
    let_pass(61, monkeypatch)
    store.sweep()
    assert [len(list((tmp_path / name).iterdir())) for name in ("jobs", "waiting", "ended")] == [
        0, 0, 0,
    ]  # fmt: skip


def test_a_job_that_ends_its_workers_fails_at_last(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    job = accept(store)
    job.note(begun=MAX_BEGUN, refused=0, started=1.0)
    assert runner(store, app()).step()
    assert (end := job.end)
    assert (end["status"], end["code"]) == ("failed", 500)
    assert "ended 3 times" in end["error"]["message"]


def test_a_refused_job_is_run_again_behind_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    job = accept(store)
    assert runner(store, app("429 Too Many Requests", b"{}")).step()
    assert not job.has_ended
    assert not runner(store, app("200 OK", b"{}")).step(), "not before Retry-After"
    let_pass(2, monkeypatch)
    assert runner(store, app("200 OK", b"{}")).step()
    assert (end := job.end)
    assert end["status"] == "succeeded"


def test_an_answer_that_breaks_off_is_closed(tmp_path: Path) -> None:
    accept(store := store_in(tmp_path))
    pieces = MagicMock()
    pieces.__iter__.return_value.__next__.side_effect = ValueError
    assert runner(store, lambda *_: pieces).step()
    pieces.close.assert_called_once_with()


def test_none_is_begun_while_others_wait_for_a_slot(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    accept(store)
    runs = runner(store, app("200 OK", b"{}"))
    runs.admission.waiting.count = 1
    assert not runs.step()
    runs.admission.waiting.count = 0
    assert runs.step()


def test_cancelled_first_is_cancelled(tmp_path: Path) -> None:
    """A job that is cancelled while it runs has a caller who has left; its result is dropped."""
    store = store_in(tmp_path)
    job = accept(store)
    seen: list[bytes] = []

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        assert store.end(job, CANCELLED)
        seen.append(environ["gunicorn.socket"].recv(1))  # returns when the caller leaves
        return app("200 OK", b"{}")(environ, start_response)

    assert runner(store, answer).step()
    assert seen == [b""]
    assert (end := job.end)
    assert end["status"] == CANCELLED
    assert not (job.folder / "result").exists()
    assert not store.end(job, "succeeded")


def test_a_job_with_an_error_in_the_application_fails_and_others_run(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    job, other = accept(store, "a"), accept(store, "b")

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["HTTP_X_AMZN_SAGEMAKER_INFERENCE_ID"] == "a":
            raise OSError("no room")
        return app("200 OK", b"{}")(environ, start_response)

    runs = runner(store, answer)
    assert runs.step()
    assert runs.step()
    assert [json.loads((one.folder / "end.json").read_text())["code"] for one in (job, other)] == [
        500, 200,
    ]  # fmt: skip
