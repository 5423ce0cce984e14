"""Bring AWS to a plan, and remove what an endpoint left: names and tags are the only state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tool.deploy.resources.aws import Aws, Refused
from tool.deploy.resources.kind import Found, Kind, Resource
from tool.deploy.resources.table import KINDS
from tool.deploy.wait import EndpointFailed, status_of, until_in_service, until_settled
from tool.trouble import Trouble

CREATE, CHANGE, KEEP, REMOVE = "+", "~", "=", "-"
NAMED = ("image", "archive", "model", "config")  # by what they hold: a new one has a new name
BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack")

Step = tuple[str, Resource]


@dataclass
class Deployment:
    """All that has an endpoint's tag.

    Args:
        aws: is asked.
        endpoint: its name.
        tags: for all that is made.
        places: `s3://…` where archives may be, besides those that models name.
        say: takes lines for the user.

    """

    aws: Aws
    endpoint: str
    say: Callable[[str], None]
    tags: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()

    def kind(self, name: str) -> Kind:
        return KINDS[name](self.aws, self.endpoint, self.tags, self.places)

    def owned(self) -> list[Resource]:
        """Return what there is, in the order in which it is removed."""
        return [
            Resource(kind, name) for kind in reversed(KINDS) for name in self.kind(kind).owned()
        ]

    def steps(self, plan: Sequence[Resource]) -> list[Step]:
        """Compare a plan with what there is; nothing is changed.

        Raises:
            Trouble: a name is taken.

        """
        wanted = {(one.kind, one.name) for one in plan}
        found: list[Step] = [(self.step(one), one) for one in plan]
        stale = [one for one in self.owned() if (one.kind, one.name) not in wanted]
        return [*found, *((REMOVE, one) for one in stale)]

    def step(self, resource: Resource) -> str:
        """Return what is to be done for a resource."""
        kind = self.kind(resource.kind)
        found = kind.found(resource.name)
        if found is None:
            return CREATE
        self.own(resource, found)
        return CHANGE if kind.changeable and differs(resource, found.properties) else KEEP

    def own(self, resource: Resource, found: Found) -> None:
        """Raise Trouble where something is not this endpoint's."""
        if found.owner != self.endpoint:
            raise Trouble(
                f"the {resource.kind} {resource.name} is there already, and not made by this "
                "command for this endpoint; choose another NAME, or remove it yourself"
            )

    def apply(self, plan: Sequence[Resource], *, update: bool) -> None:
        """Carry out a plan. After Ctrl-C the same call goes on; after an error it is undone.

        Args:
            plan: all that is wanted.
            update: an endpoint with another configuration may be changed.

        Raises:
            Trouble: it cannot be carried out; what was made for it is removed again.

        """
        self.settle()
        steps = self.steps(plan)
        self.allowed(steps, update=update)
        made: list[Resource] = []
        try:
            for what, resource in steps:
                if what != REMOVE:
                    self.carry_out(what, resource, made)
        except EndpointFailed:
            old_serves = status_of(self.aws, self.endpoint) == "InService"
            left = [one for one in plan if one in made or not old_serves or one.kind in NAMED]
            self.undo(left, keep_running=True)
            raise
        except (Trouble, OSError):
            self.undo(made, keep_running=all(one.kind != "endpoint" for one in made))
            raise
        for what, resource in steps:
            if what == REMOVE:
                self.remove(resource)

    def allowed(self, steps: Sequence[Step], *, update: bool) -> None:
        """Raise Trouble where an endpoint would be changed or made that was not asked for."""
        (what,) = (what for what, one in steps if one.kind == "endpoint")
        if what == CREATE and update:
            raise Trouble(
                f"there is no endpoint {self.endpoint}; make it without the word `update`"
            )
        if what == CHANGE and not update:
            raise Trouble(
                f"{self.endpoint} serves something else; `dispatcher deploy update "
                f"{self.endpoint} …` changes it"
            )

    def carry_out(self, what: str, resource: Resource, made: list[Resource]) -> None:
        """Make or change one resource, and wait for it."""
        kind = self.kind(resource.kind)
        if what != KEEP:
            self.say(f"{what} {resource.kind} {resource.name}")
        if what == CREATE:
            made.append(resource)
            kind.create(resource)
        elif what == CHANGE:
            kind.update(resource)
        if resource.kind == "endpoint":
            config = resource.properties["EndpointConfigName"]
            until_in_service(self.aws, resource.name, config, self.say)

    def settle(self) -> None:
        """Wait for what an interrupted run began, and remove an endpoint that failed."""
        found = self.kind("endpoint").found(self.endpoint)
        if found is None:
            return
        self.own(Resource("endpoint", self.endpoint), found)
        if found.properties["EndpointStatus"] in {"Deleting", "Updating", "RollingBack"}:
            until_settled(self.aws, self.endpoint, self.say)
        if status_of(self.aws, self.endpoint) == "Failed":
            self.remove(Resource("endpoint", self.endpoint))

    def undo(self, made: Sequence[Resource], *, keep_running: bool) -> None:
        """Remove resources; with `keep_running` not those that a running endpoint uses."""
        names = {(one.kind, one.name) for one in made}
        in_use = self.in_use() if keep_running else set()
        mine = [one for one in self.owned() if (one.kind, one.name) in names]
        pushed = [one for one in made if one.kind == "image" and one not in mine]
        for one in (*mine, *pushed):
            if one.name in in_use:
                continue
            try:
                self.remove(one)
            except Trouble as error:
                self.say(f"the {one.kind} {one.name} is left: {error}")

    def in_use(self) -> set[str]:
        """Return the names that the endpoint depends on, unless it failed."""
        found = self.kind("endpoint").found(self.endpoint)
        if found is None or found.properties["EndpointStatus"] == "Failed":
            return set()
        config = str(found.properties["EndpointConfigName"])
        names = {self.endpoint, self.endpoint.lower(), config}
        described = self.kind("config").found(config)
        for variant in described.properties["ProductionVariants"] if described else ():
            names.add(variant["ModelName"])
            if model := self.kind("model").found(variant["ModelName"]):
                container = model.properties.get("PrimaryContainer", {})
                names |= {container.get("Image", ""), container.get("ModelDataUrl", "")}
        return names

    def remove(self, resource: Resource) -> None:
        """Remove one resource; an endpoint that is changing is removed when that is done."""
        self.say(f"{REMOVE} {resource.kind} {resource.name}")
        kind = self.kind(resource.kind)
        if resource.kind != "endpoint":
            kind.delete(resource.name)
            return
        try:
            if status_of(self.aws, resource.name) != "Deleting":
                kind.delete(resource.name)
        except Refused:
            if status_of(self.aws, resource.name) not in BUSY:
                raise
            until_settled(self.aws, resource.name, self.say)
            kind.delete(resource.name)
        until_settled(self.aws, resource.name, self.say)


def differs(resource: Resource, found: Mapping[str, Any]) -> bool:
    """Whether a resource is not as wanted; how an endpoint is updated is no property of it."""
    return not all(
        same(value, found.get(key))
        for key, value in resource.properties.items()
        if key != "DeploymentConfig"
    )


def same(wanted: Any, found: Any) -> bool:
    """Whether what is found has all that is wanted; AWS adds its defaults."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(same(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(wanted) == len(found) and all(map(same, wanted, found))
    return bool(wanted == found)
