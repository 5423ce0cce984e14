"""A check, what came of it, and the report for people and for machines."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sagemaker_emulator.conformance.subject import Subject

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"
TEXTS = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Check:
    """A point of the contract."""

    name: str  # GROUP.POINT
    look: Callable[[Subject], str]  # returns what came; raises Failed or NotApplicable
    asked: str  # of the container, in a sentence
    why: str  # it matters
    fix: str  # what to do where it fails


def check(name: str) -> Callable[[Callable[[Subject], str]], Check]:
    """Make a check of a function; `checks.toml` says why it is made."""
    (texts,) = (stage[name] for stage in TEXTS.values() if name in stage)
    return lambda look: Check(name, look, **texts)


@dataclass(frozen=True)
class Result:
    """What came of a check."""

    check: Check
    outcome: str
    came: str  # what was seen, or why it could not be
    seconds: float

    def lines(self) -> str:
        """Return it for people; a failure with all that helps."""
        mark = {PASS: "pass", FAIL: "FAIL"}.get(self.outcome, "n/a ")
        text = f"{mark}  {self.check.name:24}  {self.came}"
        if self.outcome != FAIL:
            return text
        check = self.check
        more = {"asked": check.asked, "why": check.why, "fix": check.fix}
        return "\n".join([text, *(f"      {name + ':':6} {words}" for name, words in more.items())])

    def fields(self) -> dict[str, object]:
        check = self.check
        return {
            "check": check.name,
            "outcome": self.outcome,
            "asked": check.asked,
            "came": self.came,
            "why": check.why,
            "fix": check.fix,
            "seconds": round(self.seconds, 3),
        }


def summary(results: Iterable[Result]) -> dict[str, int]:
    counts = Counter(one.outcome for one in results)
    return {outcome: counts[outcome] for outcome in (PASS, FAIL, NOT_APPLICABLE)}


def as_json(what: str, results: Sequence[Result]) -> str:
    found = {
        "examined": what,
        "summary": summary(results),
        "checks": [one.fields() for one in results],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)
