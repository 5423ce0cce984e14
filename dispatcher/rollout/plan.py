"""What is tried beside a model: a version, or another model, as a shadow or as a canary.

    shadow = {version = 2, share = 0.1}
    canary = {version = 2, share = 0.05, sticky = "session"}

A shadow answers nobody. A canary answers a share of the callers, always the same ones, until it is
promoted or falls back. All other requests that name no version get the stable one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, TypeVar

from clients.errors import BadRequest
from clients.families.base.dispatch_toml import MODEL, Kind, is_number, key, nearest, one_of
from clients.tensors.quoting import brief
from dispatcher.codecs.json_request import is_version
from dispatcher.errors import BadBody

STABLE, CANARY, SHADOW = "stable", "canary", "shadow"
PARTS = 10_000  # of all requests, of which a share takes some


@dataclass(frozen=True)
class Choice:
    """Which model and version answers a request."""

    model: str = ""  # its name; empty for the one that was asked
    version: str = ""  # empty for the latest
    of: str = ""  # `STABLE` or `CANARY`; empty for a model without a rollout, or a version named

    def __str__(self) -> str:
        """Return it as in the header X-Canary: `version=2`, or another `model=NAME`."""
        pairs = {"model": self.model, "version": self.version}
        return ";".join(f"{name}={value}" for name, value in pairs.items() if value)


NO_CHOICE: Final = Choice()
VERSION = Kind(
    "a version, a whole number from 1",
    lambda value: type(value) in (int, str) and is_version(str(value)),
)
SHARE = Kind(
    "a number from 0 to 1, such as 0.05", lambda value: is_number(value) and 0 <= value <= 1
)
MILLISECONDS = Kind("milliseconds, a number above 0", lambda value: is_number(value) and value > 0)


@dataclass(frozen=True)
class Variant:
    """What is asked in the place of a model or beside it: a version of it, or another model."""

    kind: ClassVar[str] = SHADOW
    model: str = key(MODEL, "another model, in place of a version", "")
    version: str = key(VERSION, "the version", "")
    share: float = key(SHARE, "of the requests that name no version", 0.0)

    def __str__(self) -> str:
        return str(Choice(self.model, self.version))

    def takes(self, name: str, identity: str) -> bool:
        """Whether it gets a request to a model, by the request's id or what it sticks to.

        What a share takes, a larger one takes too.
        """
        text = "\0".join((self.kind, name, str(self), identity)).encode(errors="replace")
        place = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % PARTS
        return place < round(self.share * PARTS)


@dataclass(frozen=True)
class Canary(Variant):
    """A variant that answers callers, and the limits beyond which it falls back."""

    kind: ClassVar[str] = CANARY
    sticky: str = key(one_of("session", "key"), "what keeps a caller where it is", "")
    errors: float = key(SHARE, "most failed answers, above the stable version's share", 0.02)
    p99_ms: float | None = key(MILLISECONDS, "longest p99; else twice the stable one's", None)
    disagreement: float = key(SHARE, "most comparisons that differ", 0.05)


V = TypeVar("V", bound=Variant)


@dataclass(frozen=True)
class Plan:
    """What is tried beside one model."""

    stable: Choice = NO_CHOICE  # what answers all others; empty while nobody has chosen it
    shadow: Variant | None = None
    canary: Canary | None = None
    back: str = ""  # why the canary fell back; empty while it answers
    since: float = 0.0  # when this canary began, in seconds since 1970
    # Why a part is not asked now, and how to mend it, by its kind: found out, and not said.
    waiting: Mapping[str, str] = field(default_factory=dict)

    def variants(self) -> list[Variant]:
        return [one for one in (self.shadow, self.canary) if one]

    def live(self, kind: str) -> Variant | None:
        """Return the shadow or the canary where it gets requests now."""
        if kind in self.waiting:
            return None
        return self.shadow if kind == SHADOW else None if self.back else self.canary

    def choose(self, name: str, session: str, owner: str, request_id: str) -> Choice:
        """Return what answers a request that names no version.

        `session` is that of the service, or a sequence, and `owner` the name of the API key.
        """
        canary = self.live(CANARY)
        if isinstance(canary, Canary):
            by = {"session": session, "key": owner}.get(canary.sticky) or session or request_id
            if canary.takes(name, by):
                return Choice(canary.model, canary.version, CANARY)
        return self.stable

    def changed(self, given: Mapping[str, Any], now: float) -> Plan:
        """Return the plan with the given `shadow` and `canary`; `None` takes one away.

        A table without a version and a model changes the one that is there.

        Raises BadBody: one is not well-formed; the hint says what is expected.
        """
        if unknown := [name for name in given if name not in (SHADOW, CANARY)]:
            raise BadBody(
                f"{brief(unknown[0])} is not known", hint=f"expected {SHADOW!r} and {CANARY!r}"
            )
        plan = self
        if SHADOW in given:
            plan = replace(plan, shadow=read_variant(Variant, given[SHADOW], self.shadow))
        if CANARY in given:
            canary = read_variant(Canary, given[CANARY], self.canary)
            same = canary and str(canary) == str(self.canary) and not self.back
            plan = replace(plan, canary=canary, back="", since=self.since if same else now)
        for one in plan.variants():
            if str(one) == str(self.stable):
                raise BadBody(f"`{one.kind}` is {one}, the stable one already", hint="try another")
        return plan

    def promoted(self, now: float) -> Plan:
        """Return the plan in which the canary is the stable version.

        Raises BadRequest: there is none that could be.
        """
        if not (canary := self.canary):
            raise BadRequest("there is no canary to promote", hint="set one, and look at it first")
        if why := self.waiting.get(CANARY) or self.back:
            hint = "set it once more, first" if self.back else "promote it once it answers"
            raise BadRequest(f"the canary is not promoted: {why}", hint=hint)
        shadow = self.shadow if str(self.shadow) != str(canary) else None
        return Plan(Choice(canary.model, canary.version, STABLE), shadow, since=now)

    def fallen_back(self, why: str) -> Plan:
        """Return the plan in which the canary gets no request.

        Raises BadRequest: there is none.
        """
        if not self.canary:
            raise BadRequest("there is no canary", hint="GET …/rollout shows what there is")
        return replace(self, back=self.back or why)


def read_plans(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Plan]:
    """Return what `dataclasses.asdict` made of the plans of models."""
    plans = {}
    for name, one in documents.items():
        shadow, canary = one[SHADOW], one[CANARY]
        tried = {SHADOW: shadow and Variant(**shadow), CANARY: canary and Canary(**canary)}
        plans[name] = Plan(**{**one, **tried, STABLE: Choice(**one[STABLE])})
    return plans


def read_variant(kind: type[V], given: object, before: V | None = None) -> V | None:
    """Return what a table says, of JSON or of dispatch.toml; `None` for `None`.

    Raises BadBody: it is not well-formed; the hint says what is expected.
    """
    name = kind.kind
    expected = f"expected a table such as {{version = 2, share = {SHARE.expected[-4:]}}}"
    if given is None:
        return None
    if isinstance(given, list | tuple):
        raise BadBody(f"`{name}` is a list", hint=f"one at a time: {expected}")
    if not isinstance(given, Mapping):
        raise BadBody(f"`{name}` is {brief(given)}", hint=expected)
    values = {one: value for one, value in given.items() if value not in ("", None)}
    refuse_wrong_fields(kind, values)
    if before and values.keys().isdisjoint({"model", "version"}):
        values = asdict(before) | values
    if version := values.get("version"):
        values["version"] = str(version)
    made = kind(**values)
    if not (made.version or made.model):
        raise BadBody(f"`{name}` names no version and no other model", hint=expected)
    if "share" not in values:
        raise BadBody(f"`{name}.share` is missing", hint=f"expected {SHARE.expected}")
    return made


def refuse_wrong_fields(kind: type[Variant], values: Mapping[str, object]) -> None:
    """Raise BadBody for a field that a variant does not have, or that has a wrong value."""
    known = {one.name: one.metadata["kind"] for one in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise BadBody(f"`{kind.kind}.{name:.100}` is not known", hint=nearest(name, known))
        if not known[name].fits(value):
            wanted = f"expected {known[name].expected}"
            raise BadBody(f"`{kind.kind}.{name}` is {brief(value)}", hint=wanted)
