"""A check, what came of it, and the report for people and for machines."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from sagemaker_emulator.conformance.subject import Subject

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"
TEXTS = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))
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


def check(name: str) -> Callable[[Callable[[Subject], str]], Check]:
    """Make a check of a function; `checks.toml` says why it is made."""
    (texts,) = (stage[name] for stage in TEXTS.values() if name in stage)
    return lambda look: Check(name, look, **texts)


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
    suite = ET.Element(
        "testsuite",
        name=allowed(f"conformance of {what}"),
        tests=str(len(results)),
        failures=str(counts[FAIL]),
        skipped=str(counts[NOT_APPLICABLE]),
        errors="0",
        time=f"{sum(one.seconds for one in results):.3f}",
    )
    for one in results:
        group, _, point = one.check.name.partition(".")
        names = {"classname": f"conformance.{group}", "name": point}
        case = ET.SubElement(suite, "testcase", names, time=f"{one.seconds:.3f}")
        kind = {FAIL: "failure", NOT_APPLICABLE: "skipped"}.get(one.outcome)
        if kind:
            found = ET.SubElement(case, kind, message=allowed(one.came))
            if one.outcome == FAIL:
                found.text = allowed(one.lines())
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def allowed(text: str) -> str:
    """Return a text without what XML cannot have, such as control characters."""
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
