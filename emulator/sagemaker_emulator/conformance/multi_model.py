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
from sagemaker_emulator.conformance.report import Check
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.emulate.contract import TARGET_MODEL
from sagemaker_emulator.emulate.multi_model import PACKED
from sagemaker_emulator.host.calls import NoAnswer
from sagemaker_emulator.trouble import Trouble

NOBODY = hashlib.sha256(b"nobody").hexdigest()[:32]
FULL = HTTPStatus.INSUFFICIENT_STORAGE


def unpacked(source: Path, work: Path) -> None:
    """Give each model in a folder a folder with an opaque name, as the service does.

    Raises:
        Trouble: there is no model, or an archive is damaged.

    """
    for path in sorted(source.iterdir()):
        folder = work / hashlib.sha256(path.name.encode()).hexdigest()[:32]
        if path.is_dir():
            shutil.copytree(path, folder)
        elif path.name.endswith(PACKED):
            folder.mkdir()
            unpack_archive(path, folder)
    if not any(work.iterdir()):
        raise Trouble(f"there is no model in {str(source)!r}; expected NAME{PACKED} or folders")


def asked(subject: Subject, method: str, path: str, value: Any = None) -> Reply:
    """Send a request of the service; it has time to load or unload a model.

    Raises:
        Failed: no answer comes.

    """
    body = b"" if value is None else json.dumps(value).encode()
    headers = {"Content-Type": "application/json"} if body else {}
    try:
        return subject.ask(method, path, body, headers, subject.limits.load_s)
    except NoAnswer as error:
        raise Failed(f"{method} {path}: {error}") from error


def expect(reply: Reply, what: str, *statuses: int) -> None:
    if reply.status not in statuses:
        wanted = " or ".join(str(int(one)) for one in statuses)
        raise Failed(f"{what} is answered with {reply}; expected {wanted}")


def loaded(subject: Subject) -> dict[str, str]:
    """Return the loaded models by their opaque names, with their answers' texts.

    Raises:
        NotApplicable: there is none.

    """
    found: dict[str, str] = subject.kept.get("loaded", {})
    if not found:
        raise NotApplicable("no model is loaded; give some with --multi-model FOLDER")
    return found


def load(subject: Subject, name: str) -> Reply:
    url = subject.container.path_of(subject.models_folder / name)
    return asked(subject, "POST", "/models", {"model_name": name, "url": url})


def listed(subject: Subject) -> set[str]:
    """Return the names that GET /models has, over all of its pages."""
    found: set[str] = set()
    path = "/models"
    while path:
        reply = asked(subject, "GET", path)
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


def list_is_in_form(subject: Subject) -> str:
    """See that GET /models lists what is loaded."""
    return f"{len(listed(subject))} models"


def unknown_models_are_not_found(subject: Subject) -> str:
    """See that a model that is not loaded is 404 everywhere."""
    path = f"/models/{NOBODY}"
    expect(asked(subject, "GET", path), f"GET {path}", HTTPStatus.NOT_FOUND)
    expect(asked(subject, "DELETE", path), f"DELETE {path}", HTTPStatus.NOT_FOUND)
    reply = invoked(subject, NOBODY)
    expect(reply, f"POST {path}/invoke", HTTPStatus.NOT_FOUND)
    return "404 for GET, DELETE and invoke"


def invoked(subject: Subject, name: str) -> Reply:
    path = f"/models/{name}/invoke"
    headers = {**subject.usual.headers(), TARGET_MODEL: f"{name}{PACKED}"}
    try:
        return subject.ask("POST", path, subject.usual.body, headers)
    except NoAnswer as error:
        raise Failed(f"POST {path}: {error}") from error


def models_are_loaded(subject: Subject) -> str:
    """See that POST /models loads each model, or says by 507 that memory is full."""
    names = sorted(one.name for one in subject.models_folder.iterdir())
    if not names:
        raise NotApplicable("no model is known; give some with --multi-model FOLDER")
    done: dict[str, str] = {}
    subject.kept["loaded"] = done
    for name in names:
        reply = load(subject, name)
        if reply.status == FULL and done:
            subject.kept["refused"] = name
            break
        expect(reply, "POST /models", HTTPStatus.OK)
        done[name] = str(reply)
    missing = set(done) - listed(subject)
    if missing:
        raise Failed(f"GET /models lacks {len(missing)} of {len(done)} models that were loaded")
    for name in done:
        expect(asked(subject, "GET", f"/models/{name}"), "GET /models/NAME", HTTPStatus.OK)
    return f"{len(done)} of {len(names)} models were loaded and are listed"


def loaded_twice_is_a_conflict(subject: Subject) -> str:
    """See that a model that is loaded already is 409."""
    expect(load(subject, next(iter(loaded(subject)))), "POST /models again", HTTPStatus.CONFLICT)
    return "409"


def full_memory_is_said(subject: Subject) -> str:
    """507 where memory is full; after an unload there is room."""
    victim = next(iter(loaded(subject)))
    name = subject.kept.get("refused")
    if not name:
        raise NotApplicable("memory was never full; give more or larger models")
    expect(asked(subject, "DELETE", f"/models/{victim}"), "DELETE /models/NAME", HTTPStatus.OK)
    del loaded(subject)[victim]
    expect(load(subject, name), "POST /models after a model was unloaded", HTTPStatus.OK)
    loaded(subject)[name] = ""
    return "507, and 200 after another model was unloaded"


def loaded_models_are_invoked(subject: Subject) -> str:
    """See that a loaded model answers, if not always well: the request may be another model's."""
    reply = invoked(subject, next(iter(loaded(subject))))
    if reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        raise Failed(f"POST /models/NAME/invoke of a loaded model is answered with {reply}")
    return str(reply.status)


def failed_load_harms_nobody(subject: Subject) -> str:
    """See that a model that cannot be loaded is refused, and /ping stays 200."""
    reply = load(subject, NOBODY)
    if fault := subject.ping_fault():
        raise Failed(f"after a load that failed: {fault}")
    if reply.good:
        asked(subject, "DELETE", f"/models/{NOBODY}")
        raise Failed(f"a folder that does not exist is loaded: {reply}")
    return f"{reply.status}, and /ping is 200"


def unloaded_models_are_gone(subject: Subject) -> str:
    """See that DELETE unloads; afterwards the model is 404."""
    name = next(iter(loaded(subject)))
    path = f"/models/{name}"
    expect(asked(subject, "DELETE", path), "DELETE /models/NAME", HTTPStatus.OK)
    del loaded(subject)[name]
    expect(asked(subject, "GET", path), "GET /models/NAME after it", HTTPStatus.NOT_FOUND)
    return "200, then 404"


MULTI_MODEL = (
    Check(
        "multi-model.list",
        list_is_in_form,
        asked='GET /models: {"models": [{"modelName", "modelUrl"}], "nextPageToken"?}',
        why="the service waits for it at the start, and reads what is loaded",
        fix='answer {"models": []} where none is loaded',
    ),
    Check(
        "multi-model.unknown",
        unknown_models_are_not_found,
        asked="GET, DELETE and invoke of a model that is not loaded: 404",
        why="404 makes the service load it; any other status goes to the caller",
        fix="404 for each name that is not loaded",
    ),
    Check(
        "multi-model.load",
        models_are_loaded,
        asked="POST /models for each model: 200, then GET /models and GET /models/NAME have it",
        why="a model that is not listed is loaded again and again",
        fix="list a model by the name that it was loaded under, which is opaque",
    ),
    Check(
        "multi-model.twice",
        loaded_twice_is_a_conflict,
        asked="POST /models for a model that is loaded: 409",
        why="the service takes 409 as loaded; a second copy fills the memory",
        fix="look whether the name is loaded before loading",
    ),
    Check(
        "multi-model.full",
        full_memory_is_said,
        asked="more models than fit: 507, and room after an unload",
        why="507 makes the service unload another model and try again; any other status is final",
        fix="answer 507 before memory runs out; give memory back before DELETE is answered",
    ),
    Check(
        "multi-model.invoke",
        loaded_models_are_invoked,
        asked="POST /models/NAME/invoke of a loaded model: not 404",
        why="at 404 the service loads it once more, for each request",
        fix="a route /models/NAME/invoke",
    ),
    Check(
        "multi-model.failure",
        failed_load_harms_nobody,
        asked="POST /models with a folder that does not exist: an error, and /ping stays 200",
        why="a bad model of one caller must not replace the instance of all others",
        fix="refuse it, and leave it out of what /ping looks at",
    ),
    Check(
        "multi-model.unload",
        unloaded_models_are_gone,
        asked="DELETE /models/NAME: 200, then GET of it: 404",
        why="the service believes that its memory is free",
        fix="unload before the answer",
    ),
)
