"""All kinds of resources, in the order in which they are made."""

from __future__ import annotations

from tool.deploy.resources.artifacts import Archive, Image, Repository
from tool.deploy.resources.hosting import (
    Alarm,
    Configuration,
    EndpointKind,
    Model,
    Policy,
    Target,
)
from tool.deploy.resources.kind import Kind

KINDS: dict[str, type[Kind]] = {
    "repository": Repository,
    "image": Image,
    "archive": Archive,
    "model": Model,
    "config": Configuration,
    "alarm": Alarm,
    "endpoint": EndpointKind,
    "target": Target,
    "policy": Policy,
}
