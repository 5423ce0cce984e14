"""Authorization: API keys and their scopes, and whether models can be managed."""

from __future__ import annotations

from flask import Request

from dispatcher.auth.api_keys import INFERENCE, MANAGEMENT, SCOPES, KeyFile
from dispatcher.errors import ManagementOff, Unauthorized, WrongScope

HEADER = "X-Api-Key"
BEARER = "bearer "  # the other place of a key: `Authorization: Bearer KEY`, as Prometheus sends it

# In the WSGI environment of a job's request: the name of the key that it was accepted with.
OF_JOB = "dispatcher.job"

# Requested by the platform and load balancers, which have no key, and by browsers, which send none
# for a page.
PUBLIC = frozenset(
    {
        *("management.ping", "management.execution_parameters", "v2.live", "v2.ready"),
        *("page.index_page", "page.page_file"),
    }
)
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READ_BY_POST = frozenset({"v2_models.index"})  # as Triton's protocol has it
MANAGING = ("management.", "v2_models.")  # how the endpoints begin that change something


def required_scopes(endpoint: str | None, method: str) -> tuple[str, ...]:
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


class Authorizer:
    """Checks requests.

    Args:
        keys: the keys; `None` where none are needed.
        management: whether the management routes are switched on.

    """

    def __init__(self, keys: KeyFile | None, *, management: bool) -> None:
        self.keys = keys
        self.management = management

    def check(self, request: Request) -> str:
        """Check a request; return the name of its key, empty where none is needed.

        Raises:
            Unauthorized: it has no key, or an unknown one.
            WrongScope: its key has another scope.
            ManagementOff: the route is switched off.

        """
        if (owner := request.environ.get(OF_JOB)) is not None:
            return str(owner)
        needed = required_scopes(request.endpoint, request.method)
        name = self.name(request, needed) if self.keys and needed else ""
        if needed == (MANAGEMENT,) and not self.management:
            raise ManagementOff(
                "the management routes are switched off",
                hint="MANAGEMENT_ROUTES=true switches them on",
            )
        return name

    def name(self, request: Request, needed: tuple[str, ...]) -> str:
        """Return the name of a request's key.

        Raises:
            Unauthorized: it has no key, or an unknown one.
            WrongScope: its key has another scope.

        """
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
