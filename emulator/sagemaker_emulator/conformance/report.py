"""A check, what came of it, and the report for people and for machines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from sagemaker_emulator.conformance.subject import Subject

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"
NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd]")


@dataclass(frozen=True)
class Check:
    """A point of the contract.

    Args:
        name: GROUP.POINT.
        look: returns what came; raises Failed or NotApplicable.
        asked: of the container, in a sentence.
        why: it matters.
        fix: what to do where it fails.

    """

    name: str
    look: Callable[[Subject], str]
    asked: str
    why: str
    fix: str


@dataclass(frozen=True)
class Result:
    """What came of a check.

    Args:
        check: the check.
        outcome: pass, fail or not applicable.
        came: what was seen, or why it could not be.
        seconds: that it took.

    """

    check: Check
    outcome: str
    came: str
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


def as_junit(what: str, results: Sequence[Result]) -> str:
    """Return the report as test runners write theirs, for the page of a CI."""
    counts = summary(results)
    head = (
        f"<testsuite name={attribute(f'conformance of {what}')} tests='{len(results)}' "
        f"failures='{counts[FAIL]}' skipped='{counts[NOT_APPLICABLE]}' errors='0' "
        f"time='{sum(one.seconds for one in results):.3f}'>"
    )
    return "\n".join(
        ["<?xml version='1.0' encoding='UTF-8'?>", head, *map(case, results), "</testsuite>\n"]
    )


def case(result: Result) -> str:
    check = result.check
    group, _, point = check.name.partition(".")
    inside = ""
    if result.outcome == FAIL:
        text = f"asked: {check.asked}\ncame: {result.came}\nwhy: {check.why}\nfix: {check.fix}"
        inside = f"<failure message={attribute(result.came)}>{escape(allowed(text))}</failure>"
    elif result.outcome == NOT_APPLICABLE:
        inside = f"<skipped message={attribute(result.came)}/>"
    return (
        f"<testcase classname={attribute(f'conformance.{group}')} name={attribute(point)} "
        f"time='{result.seconds:.3f}'>{inside}</testcase>"
    )


def allowed(text: str) -> str:
    """Return a text without what XML cannot have, such as control characters."""
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def attribute(text: str) -> str:
    return quoteattr(allowed(text))
