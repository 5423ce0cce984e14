"""Checks of the routes by which the service loads and unloads models."""

from __future__ import annotations

import hashlib
import json
import shutil
from http import HTTPStatus
from pathlib import Path
from typing import Any

from sagemaker_emulator.archive import unpack_archive
from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Reply
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.emulate.contract import TARGET_MODEL
from sagemaker_emulator.emulate.multi_model import PACKED
from sagemaker_emulator.trouble import Trouble

NOBODY = hashlib.sha256(b"nobody").hexdigest()[:32]
FULL = HTTPStatus.INSUFFICIENT_STORAGE


def unpack_models(source: Path, work: Path) -> None:
    """Give each model in a folder a folder with an opaque name, as the service does."""
    for path in sorted(source.iterdir()):
        folder = work / hashlib.sha256(path.name.encode()).hexdigest()[:32]
        if path.is_dir():
            shutil.copytree(path, folder)
        elif path.name.endswith(PACKED):
            folder.mkdir()
            unpack_archive(path, folder)
    if not any(work.iterdir()):
        raise Trouble(f"there is no model in {str(source)!r}; expected NAME{PACKED} or folders")


def ask(subject: Subject, method: str, path: str, value: Any = None) -> Reply:
    """Send a request of the service; it has time to load or unload a model."""
    body = b"" if value is None else json.dumps(value).encode()
    headers = {"Content-Type": "application/json"} if body else {}
    return subject.ask(method, path, body, headers, subject.limits.load_s)


def expect(reply: Reply, what: str, status: HTTPStatus) -> None:
    if reply.status != status:
        raise Failed(f"{what} is answered with {reply}; expected {status:d}")


def need_loaded(subject: Subject) -> list[str]:
    """Return the opaque names of the loaded models; raise NotApplicable where there is none."""
    found: list[str] = subject.kept.get("loaded", [])
    if not found:
        raise NotApplicable("no model is loaded; give some with --multi-model FOLDER")
    return found


def load(subject: Subject, name: str) -> Reply:
    url = subject.container.path_of(subject.models_folder / name)
    return ask(subject, "POST", "/models", {"model_name": name, "url": url})


def list_names(subject: Subject) -> set[str]:
    """Return the names that GET /models has, over all of its pages."""
    found: set[str] = set()
    path = "/models"
    while path:
        reply = ask(subject, "GET", path)
        expect(reply, f"GET {path}", HTTPStatus.OK)
        try:
            page = json.loads(reply.body)
            names = {one["modelName"] for one in page["models"] if one["modelUrl"] is not None}
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(
                f'GET {path} is answered with {reply}; expected {{"models": [{{"modelName", '
                '"modelUrl"}]}'
            ) from error
        more = page.get("nextPageToken") if names - found else None
        found |= names
        path = f"/models?next_page_token={more}" if more else ""
    return found


@check("multi-model.list")
def list_is_in_form(subject: Subject) -> str:
    return f"{len(list_names(subject))} models"


@check("multi-model.unknown")
def unknown_models_are_not_found(subject: Subject) -> str:
    path = f"/models/{NOBODY}"
    expect(ask(subject, "GET", path), f"GET {path}", HTTPStatus.NOT_FOUND)
    expect(ask(subject, "DELETE", path), f"DELETE {path}", HTTPStatus.NOT_FOUND)
    reply = invoke(subject, NOBODY)
    expect(reply, f"POST {path}/invoke", HTTPStatus.NOT_FOUND)
    return "404 for GET, DELETE and invoke"


def invoke(subject: Subject, name: str) -> Reply:
    path = f"/models/{name}/invoke"
    headers = {**subject.usual.headers(), TARGET_MODEL: f"{name}{PACKED}"}
    return subject.ask("POST", path, subject.usual.body, headers)


@check("multi-model.load")
def models_are_loaded(subject: Subject) -> str:
    names = sorted(one.name for one in subject.models_folder.iterdir())
    if not names:
        raise NotApplicable("no model is known; give some with --multi-model FOLDER")
    done: list[str] = []
    subject.kept["loaded"] = done
    for name in names:
        reply = load(subject, name)
        if reply.status == FULL and done:
            subject.kept["refused"] = name
            break
        expect(reply, "POST /models", HTTPStatus.OK)
        done.append(name)
    missing = set(done) - list_names(subject)
    if missing:
        raise Failed(f"GET /models lacks {len(missing)} of {len(done)} models that were loaded")
    for name in done:
        expect(ask(subject, "GET", f"/models/{name}"), "GET /models/NAME", HTTPStatus.OK)
    return f"{len(done)} of {len(names)} models were loaded and are listed"


@check("multi-model.twice")
def loaded_twice_is_a_conflict(subject: Subject) -> str:
    expect(load(subject, need_loaded(subject)[0]), "POST /models again", HTTPStatus.CONFLICT)
    return "409"


@check("multi-model.full")
def full_memory_is_said(subject: Subject) -> str:
    victim = need_loaded(subject)[0]
    name = subject.kept.get("refused")
    if not name:
        raise NotApplicable("memory was never full; give more or larger models")
    expect(ask(subject, "DELETE", f"/models/{victim}"), "DELETE /models/NAME", HTTPStatus.OK)
    need_loaded(subject).remove(victim)
    expect(load(subject, name), "POST /models after a model was unloaded", HTTPStatus.OK)
    need_loaded(subject).append(name)
    return "507, and 200 after another model was unloaded"


@check("multi-model.invoke")
def loaded_models_are_invoked(subject: Subject) -> str:
    reply = invoke(subject, need_loaded(subject)[0])
    if reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        raise Failed(f"POST /models/NAME/invoke of a loaded model is answered with {reply}")
    return str(reply.status)


@check("multi-model.failure")
def failed_load_harms_nobody(subject: Subject) -> str:
    reply = load(subject, NOBODY)
    if fault := subject.ping_fault():
        raise Failed(f"after a load that failed: {fault}")
    if reply.good:
        ask(subject, "DELETE", f"/models/{NOBODY}")
        raise Failed(f"a folder that does not exist is loaded: {reply}")
    return f"{reply.status}, and /ping is 200"


@check("multi-model.unload")
def unloaded_models_are_gone(subject: Subject) -> str:
    name = need_loaded(subject)[0]
    path = f"/models/{name}"
    expect(ask(subject, "DELETE", path), "DELETE /models/NAME", HTTPStatus.OK)
    need_loaded(subject).remove(name)
    expect(ask(subject, "GET", path), "GET /models/NAME after it", HTTPStatus.NOT_FOUND)
    return "200, then 404"
