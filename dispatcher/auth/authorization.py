"""Authorization: API keys, their scopes and limits, and whether models can be managed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flask import Request
from werkzeug.datastructures import Headers

from dispatcher.auth.api_keys import INFERENCE, MANAGEMENT, SCOPES, Key, ModelList
from dispatcher.errors import ForeignPage, ManagementOff, Unauthorized, WrongScope

if TYPE_CHECKING:
    from dispatcher.auth.api_keys import KeyFile, KeyLimits
    from dispatcher.telemetry.request_log import RequestRecord

HEADER = "X-Api-Key"
# From NGINX, which asks before it receives a body, or lets a request pass to Triton's own port.
KEY_ALONE, OF_GRPC = "X-Key-Alone", "grpc"
BEARER = "bearer "  # the other place of a key: `Authorization: Bearer KEY`, as Prometheus sends it

# In the WSGI environment of a job's request: the key that it was accepted with, without its hash.
OF_JOB = "dispatcher.job"

# Requested by the platform and load balancers, which have no key, and by browsers, which send none
# for a page.
PUBLIC = frozenset(
    {
        *("management.ping", "management.execution_parameters", "v2.live", "v2.ready"),
        *("page.index_page", "page.docs_page", "page.page_file"),
    }
)
# These show all models, and so nothing to a key for some.
OF_ALL_MODELS = {"management.health", "metrics.show"}
OF_ALL_MODELS |= {"v2_models.all_statistics", "v2_models.index"}
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READ_BY_POST = frozenset({"v2_models.index"})  # as Triton's protocol has it
MANAGING = ("management.", "v2_models.")  # how the endpoints begin that change something


def list_scopes(endpoint: str | None, method: str) -> tuple[str, ...]:
    """Return the scopes that a key for a route may have; empty where no key is needed."""
    if endpoint in PUBLIC:
        return ()
    if endpoint is None or method in READ_METHODS or endpoint in READ_BY_POST:
        return SCOPES
    return (MANAGEMENT,) if endpoint.startswith(MANAGING) else (INFERENCE,)


def bearer(authorization: str) -> str:
    """Return the key in a header `Authorization`; empty for another scheme."""
    scheme, key = authorization[: len(BEARER)], authorization[len(BEARER) :]
    return key.strip() if scheme.lower() == BEARER else ""


def is_foreign(headers: Headers, origins: Collection[str]) -> bool:
    """Whether a page of another site has a visitor's browser send a request.

    A form needs no consent for it (CORS). Browsers of today say Sec-Fetch-Site over https and to
    localhost, and Origin with every POST and DELETE; programs say neither.
    """
    origin = headers.get("Origin", "")
    if origin in origins:
        return False
    if site := headers.get("Sec-Fetch-Site"):
        return site not in {"same-origin", "none"}  # the second is the visitor's own doing
    return bool(origin) and origin.partition("://")[2] != headers.get("Host", "").lower()


@dataclass
class Authorizer:
    """Checks requests."""

    keys: KeyFile | None
    limits: KeyLimits
    name_of: Callable[[str], str]  # returns the name of a model for its name or alias
    origins: Collection[str]  # whose pages may change what is served
    management: bool  # whether models can be managed

    def admit(self, request: Request, record: RequestRecord) -> ExitStack | None:
        """Check a request, but for models that its body names; return what it holds to its end.

        Raises InferenceError: as `check`; or its key may not ask the model, or not now.
        """
        if (key := self.check(request)) is None:
            return None
        record.key, alone = key.name, request.headers.get(KEY_ALONE)
        if alone == OF_GRPC and (key.models or key.per_minute or key.concurrent):
            raise WrongScope("the key has limits, which Triton's own port cannot keep")
        if key.models:
            names = frozenset(map(self.name_of, key.models))
            record.may_ask = ModelList(key.name, names, self.name_of)
            model = (request.view_args or {}).get("model")
            if shown := "*" if request.endpoint in OF_ALL_MODELS else model:
                record.may_ask.check(shown)
        asks = list_scopes(request.endpoint, request.method) == (INFERENCE,)
        counts = asks and request.method == "POST" and not alone  # to cancel a job is free
        return self.limits.enter(key) if counts else None

    def check(self, request: Request) -> Key | None:
        """Check a request; return its key, `None` where none is needed.

        Raises Unauthorized: it has no key, or an unknown one.
        Raises WrongScope: its key has another scope.
        """
        of_job: Key | None = request.environ.get(OF_JOB)
        if of_job is not None:
            return of_job
        needed = list_scopes(request.endpoint, request.method)
        key = self.find_key(request, needed) if self.keys and needed else None
        if needed == (MANAGEMENT,) and not self.management:
            raise ManagementOff(
                "the management routes are switched off",
                hint="MANAGEMENT_ROUTES=true switches them on",
            )
        # No page can send a key of which it does not know.
        changes = needed == (MANAGEMENT,) or request.method == "DELETE"
        if changes and not self.keys and is_foreign(request.headers, self.origins):
            raise ForeignPage(
                "a page of another site may not load, unload, reload or cancel anything here",
                hint="CORS_ORIGINS may name its site; or ask by a program, or the page at /",
            )
        return key

    def find_key(self, request: Request, needed: tuple[str, ...]) -> Key:
        given = request.headers.get(HEADER) or bearer(request.headers.get("Authorization", ""))
        matching = self.keys.matching(given) if self.keys and given else []
        if not matching:
            raise Unauthorized(
                "the API key is not known" if given else "there is no API key",
                hint="send a key in the header x-api-key, or as `Authorization: Bearer KEY`",
            )
        for key in matching:
            if key.scope in needed:
                return key
        raise WrongScope(
            f"the key of {matching[0].name!r} is for {matching[0].scope}",
            hint=f"this route needs a key for {' or '.join(needed)}",
        )
