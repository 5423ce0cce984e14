"""What a deployment knows and does about resources of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tool.deploy.resources.aws import Aws, tag_list


@dataclass(frozen=True)
class Resource:
    """Something that AWS keeps.

    Args:
        kind: one of KINDS in table.py.
        name: by which it is found again.
        properties: as the call that creates it takes them, without the tags.
        source: the file or the local image that it is made from.

    """

    kind: str
    name: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    source: str | Path = ""


@dataclass(frozen=True)
class Found:
    """A resource that is there.

    Args:
        owner: the endpoint in its tag; empty without it.
        properties: as they are.

    """

    owner: str
    properties: Mapping[str, Any]


@dataclass(frozen=True)
class Kind(ABC):
    """What one deployment does with resources of a kind.

    Args:
        aws: is asked.
        endpoint: whose resources they are.
        tags: for all that is made.
        places: `s3://…` under which archives are, besides those that models name.

    """

    aws: Aws
    endpoint: str
    tags: Mapping[str, str]
    places: tuple[str, ...] = ()
    changeable: ClassVar[bool] = False  # else another name is another content

    @abstractmethod
    def found(self, name: str) -> Found | None:
        """Return a resource; None if there is none of this name."""

    @abstractmethod
    def create(self, resource: Resource) -> None: ...

    @abstractmethod
    def delete(self, name: str) -> None: ...

    @abstractmethod
    def owned(self) -> Iterator[str]:
        """Yield the names of those with this endpoint's tag."""

    def update(self, resource: Resource) -> None:
        """Change it to the properties that it should have; most calls that create do that too."""
        self.create(resource)

    @property
    def tag_list(self) -> list[dict[str, str]]:
        return tag_list(self.tags)
