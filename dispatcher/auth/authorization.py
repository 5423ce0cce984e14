"""Authorization: API keys and their scopes, and whether models can be managed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flask import Request
from werkzeug.datastructures import Headers

from dispatcher.auth.api_keys import INFERENCE, MANAGEMENT, SCOPES, KeyFile
from dispatcher.errors import ForeignPage, ManagementOff, Unauthorized, WrongScope

HEADER = "X-Api-Key"
BEARER = "bearer "  # the other place of a key: `Authorization: Bearer KEY`, as Prometheus sends it

# In the WSGI environment of a job's request: the name of the key that it was accepted with.
OF_JOB = "dispatcher.job"

# Requested by the platform and load balancers, which have no key, and by browsers, which send none
# for a page.
PUBLIC = frozenset(
    {
        *("management.ping", "management.execution_parameters", "v2.live", "v2.ready"),
        *("page.index_page", "page.docs_page", "page.page_file"),
    }
)
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
    origins: Collection[str]  # whose pages may change what is served
    management: bool  # whether models can be managed

    def check(self, request: Request) -> str:
        """Check a request; return the name of its key, empty where none is needed.

        Raises Unauthorized: it has no key, or an unknown one.
        Raises WrongScope: its key has another scope.
        """
        if (owner := request.environ.get(OF_JOB)) is not None:
            return str(owner)
        needed = list_scopes(request.endpoint, request.method)
        name = self.name(request, needed) if self.keys and needed else ""
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
        return name

    def name(self, request: Request, needed: tuple[str, ...]) -> str:
        """Return the name of a request's key."""
        given = request.headers.get(HEADER) or bearer(request.headers.get("Authorization", ""))
        matching = self.keys.matching(given) if self.keys and given else []
        if not matching:
            raise Unauthorized(
                "the API key is not known" if given else "there is no API key",
                hint="send a key in the header x-api-key, or as `Authorization: Bearer KEY`",
            )
        for key in matching:
            if key.scope in needed:
                return key.name
        raise WrongScope(
            f"the key of {matching[0].name!r} is for {matching[0].scope}",
            hint=f"this route needs a key for {' or '.join(needed)}",
        )
