"""The lives of a container in which it is examined, and the checks of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sagemaker_emulator.archive import work_folder
from sagemaker_emulator.conformance import health, load, multi_model, requests
from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Settings
from sagemaker_emulator.conformance.multi_model import unpack_models
from sagemaker_emulator.conformance.report import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    TEXTS,
    Check,
    Result,
)
from sagemaker_emulator.conformance.subject import AGAIN_S, Subject
from sagemaker_emulator.host.calls import NoAnswer
from sagemaker_emulator.trouble import Trouble

ENDING_S = 1.0
VARIABLE = "SAGEMAKER_MULTI_MODEL"
CHECKS = {
    one.name: one
    for module in (health, requests, load, multi_model)
    for one in vars(module).values()
    if isinstance(one, Check)
}
STAGES = {stage: [CHECKS[name] for name in texts] for stage, texts in TEXTS.items()}


class Examination:
    """Examines a container (an image, a URL or a folder); `say` takes each result as it comes."""

    def __init__(self, what: str, settings: Settings, say: Callable[[Result], None]) -> None:
        self.subject, self.say = Subject(what, settings), say
        self.results: list[Result] = []

    def run(self) -> list[Result]:
        """Make all checks; raise Trouble where the container cannot be started at all."""
        try:
            self.first_life()
            self.multi_model_life()
        finally:
            self.subject.close()
        return self.results

    def first_life(self) -> None:
        """Run it as the service does, from the start to SIGTERM."""
        subject = self.subject
        subject.begin()
        dead = "it never got ready" if subject.not_ready else ""
        self.check(STAGES["start"])
        if dead and not subject.is_started_here:
            raise Trouble(f"{subject.what} does not answer: {subject.not_ready}")
        if not dead:
            subject.learn()
        for one in [*STAGES["ping"], *STAGES["requests"], *STAGES["load"]]:
            self.check([one], dead)
            if not dead and (ended := self.ended()):
                self.restart(ended)
                if subject.not_ready:
                    dead = f"it does not start again: {subject.not_ready}"
        self.check(STAGES["stop"], dead)
        if dead:
            subject.stop()

    def ended(self) -> str:
        """Return how it ended; a process needs a moment to end after its last connection."""
        until = time.monotonic() + (ENDING_S if self.results[-1].outcome == FAIL else 0)
        while not (ended := self.subject.container.ended()) and time.monotonic() < until:
            time.sleep(AGAIN_S)
        return ended

    def restart(self, ended: str) -> None:
        """Start it again after a check that it did not survive, which has failed by that."""
        last = self.results[-1]
        if last.outcome != FAIL:
            self.results[-1] = Result(last.check, FAIL, f"afterwards {ended}", last.seconds)
            self.say(self.results[-1])
            self.subject.outcomes[last.check.name] = FAIL
        self.subject.stop()
        self.subject.begin()

    def multi_model_life(self) -> None:
        """Run it as one of the containers of a multi-model endpoint."""
        subject, source = self.subject, self.subject.settings.models
        if not source and not subject.labelled("multi-models"):
            self.check(STAGES["multi-model"], "no label multi-models, and no --multi-model FOLDER")
            return
        with work_folder() as work:
            if source:
                unpack_models(source, work)
            subject.models_folder = work
            subject.begin({VARIABLE: "true"}, work)
            reason = subject.not_ready
            if reason:
                reason = f"it does not start with {VARIABLE}=true: {reason}"
            first, *others = STAGES["multi-model"]
            # One that is no better alone has failed by that.
            self.check([first], reason, NOT_APPLICABLE if subject.failed("start.ready") else FAIL)
            self.check(others, reason)
            subject.close()  # before its models are gone

    def check(
        self, checks: Sequence[Check], reason: str = "", outcome: str = NOT_APPLICABLE
    ) -> None:
        """Make some checks; with a reason why not, that is what came of them."""
        for one in checks:
            begin = time.monotonic()
            found = (outcome, reason) if reason else outcome_of(one, self.subject)
            result = Result(one, *found, time.monotonic() - begin)
            self.subject.outcomes[one.name] = result.outcome
            self.results.append(result)
            self.say(result)


def outcome_of(check: Check, subject: Subject) -> tuple[str, str]:
    """Make a check; return its outcome and what came."""
    try:
        return PASS, check.look(subject)
    except (Failed, NoAnswer) as error:
        return FAIL, str(error)
    except NotApplicable as error:
        return NOT_APPLICABLE, str(error)
