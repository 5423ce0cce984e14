"""The findings of `dispatcher check`: a sentence each, with place and fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from clients.model_files.config_text import Field, line_of

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """A mistake, or what looks like one."""

    level: Level  # an error keeps a model or a client from being served, or served rightly
    file: str
    line: int  # in that file, counted from 1; 0 for the whole file
    key: str
    message: str
    fix: str  # how to mend it, where the message does not say so

    def __str__(self) -> str:
        return f"{self.level}: {self.sentence()}"

    def sentence(self, root: Path = Path()) -> str:
        """Return it with its place, below the folder that was looked at."""
        place = f"{root / self.file}:{self.line}" if self.line else str(root / self.file)
        key = f" `{self.key}`" if self.key else ""
        fix = f": {self.fix}" if self.fix else ""
        return f"{place}:{key} {self.message}{fix}"


@dataclass
class Findings:
    """Collects what is found below a folder."""

    root: Path  # the folder
    found: list[Finding] = field(default_factory=list)
    # Links may lead out of it, since their files are packed in their place
    links_replaced: bool = False

    def error(self, file: Path, message: str, fix: str, *, key: str = "", line: int = 0) -> None:
        """Note what keeps something from being served."""
        self.found.append(Finding("error", self.shown(file), line, key, message, fix))

    def warning(self, file: Path, message: str, fix: str, *, key: str = "", line: int = 0) -> None:
        """Note what is rarely meant so."""
        self.found.append(Finding("warning", self.shown(file), line, key, message, fix))

    def shown(self, file: Path) -> str:
        """Return a path relative to the root, where it is below it."""
        return str(file.relative_to(self.root) if file.is_relative_to(self.root) else file)

    @property
    def errors(self) -> int:
        return sum(one.level == "error" for one in self.found)


@dataclass(frozen=True)
class ConfigFindings:
    """Notes what is wrong in one configuration, with the lines of its fields."""

    findings: Findings
    file: Path
    text: str

    def error(self, key: str, fields: Sequence[Field], message: str, fix: str) -> None:
        """Note what keeps the model from being served."""
        self.findings.error(self.file, message, fix, key=key, line=line_of(self.text, *fields))

    def warning(self, key: str, fields: Sequence[Field], message: str, fix: str) -> None:
        """Note what is rarely meant so."""
        self.findings.warning(self.file, message, fix, key=key, line=line_of(self.text, *fields))
