"""The check of the start."""

from __future__ import annotations

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.host.health import hint_for


def must_be_started_here(subject: Subject) -> None:
    if not subject.is_started_here:
        raise NotApplicable("the server runs already; give its image or its folder")


@check("start.ready")
def becomes_ready(subject: Subject) -> str:
    must_be_started_here(subject)
    reason = subject.not_ready
    if reason:
        last = f"its last line: {subject.lines[-1]}" if subject.lines else ""
        raise Failed("; ".join(filter(None, (reason, hint_for(reason), last))))
    return f"the first 200 after {subject.ready_s:.1f} s"
