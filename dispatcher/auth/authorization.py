"""Who may ask for what: by API key where there are keys, and whether models may be managed."""

from __future__ import annotations

from flask import Request

from dispatcher.auth.api_keys import INFERENCE, MANAGEMENT, SCOPES, KeyFile
from dispatcher.errors import ManagementOff, Unauthorized, WrongScope

HEADER = "X-Api-Key"

# What the platform and load balancers ask; they have no key.
PUBLIC = frozenset({"management.ping", "management.execution_parameters"})
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def required_scopes(endpoint: str | None, method: str) -> tuple[str, ...]:
    """Return the scopes of which one is needed for a route; none where it is open to all."""
    if endpoint in PUBLIC:
        return ()
    if endpoint is None or method in READ_METHODS:
        return SCOPES
    return (MANAGEMENT,) if endpoint.startswith("management.") else (INFERENCE,)


class Authorizer:
    """Lets requests in.

    Args:
        keys: the keys; `None` where everybody may enter.
        management: whether there are routes that change what is served.

    """

    def __init__(self, keys: KeyFile | None, *, management: bool) -> None:
        self.keys = keys
        self.management = management

    def check(self, request: Request) -> str:
        """Let a request in; return whose key it has, nothing where none is needed.

        Raises:
            Unauthorized: it has no key, or one that is not known.
            WrongScope: its key is for something else.
            ManagementOff: nobody may do this.

        """
        needed = required_scopes(request.endpoint, request.method)
        name = self.name(request, needed) if self.keys and needed else ""
        if needed == (MANAGEMENT,) and not self.management:
            raise ManagementOff(
                "models are neither loaded nor unloaded here: the routes for it are switched off",
                hint="MANAGEMENT_ROUTES=true switches them on",
            )
        return name

    def name(self, request: Request, needed: tuple[str, ...]) -> str:
        """Return whose key a request has.

        Raises:
            Unauthorized: it has no key, or one that is not known.
            WrongScope: its key is for something else.

        """
        given = request.headers.get(HEADER, "")
        matching = self.keys.matching(given) if self.keys and given else []
        if not matching:
            raise Unauthorized(
                "the API key is not known" if given else "there is no API key",
                hint="send a key in the header x-api-key",
            )
        for key in matching:
            if key.scope in needed:
                return key.name
        raise WrongScope(
            f"the key of {matching[0].name!r} is for {matching[0].scope}",
            hint=f"this route needs a key for {' or '.join(needed)}",
        )
