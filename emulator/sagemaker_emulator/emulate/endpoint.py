"""An endpoint: production variants, how requests are shared among them, and sessions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message

from sagemaker_emulator.emulate.contract import (
    CLOSED_SESSION_ID,
    NEW_SESSION_ID,
    model_error,
    to_container,
    validation_error,
)
from sagemaker_emulator.emulate.multi_model import Models
from sagemaker_emulator.host.calls import Answer, NoAnswer, TooLate, ask
from sagemaker_emulator.host.containers import Container
from sagemaker_emulator.host.health import CREATING, FAILED, IN_SERVICE, Health
from sagemaker_emulator.host.limits import Limits

NEW_SESSION = "NEW_SESSION"
EXPIRES = "%Y-%m-%dT%H:%M:%SZ"
TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)


@dataclass
class Variant:
    """A production variant, of one instance.

    Args:
        name: of the variant.
        weight: its share of the requests, relative to the others'.
        container: of its instance.
        health: of the container.
        models: of a multi-model endpoint.
        requests: that it was sent.
        failures: of them.

    """

    name: str
    weight: float
    container: Container
    health: Health
    models: Models | None = None
    requests: int = field(default=0)
    failures: int = field(default=0)


class Endpoint:
    """Sends requests to variants, as the service does.

    Args:
        variants: of the endpoint.
        limits: of the service.

    """

    def __init__(self, variants: list[Variant], limits: Limits) -> None:
        self.variants, self.limits = variants, limits
        self.begin = time.time()
        self.guard = threading.Lock()  # of the sessions
        self.sessions: dict[str, tuple[Variant, float]] = {}  # and when each expires

    @property
    def status(self) -> str:
        """Return the endpoint's state: Creating, InService or Failed."""
        states = {one.health.state for one in self.variants}
        return next((one for one in (FAILED, CREATING) if one in states), IN_SERVICE)

    def choose(self, name: str, call: Mapping[str, str]) -> Variant:
        """Return the variant for a call.

        Raises:
            Refused: the endpoint is not in service, or has no such variant, session or model.

        """
        if self.status != IN_SERVICE:
            raise validation_error(
                f"Endpoint {name} is not in service: it is {self.status}; wait for InService"
            )
        if self.variants[0].models and not call.get("TargetModel"):
            raise validation_error(
                "The request is missing a target model header, which a multi-model endpoint needs",
                ErrorCode="TARGET_MODEL_HEADER_MISSING",
            )
        if call.get("TargetModel") and not self.variants[0].models:
            raise validation_error(
                f"Endpoint {name} is not a multi-model endpoint and does not support target model "
                "header.",
                ErrorCode="TARGET_MODEL_HEADER_NOT_SUPPORTED",
            )
        session = call.get("SessionId", "")
        if session and session != NEW_SESSION:
            return self.of_session(session)
        if wanted := call.get("TargetVariant", ""):
            for variant in self.variants:
                if variant.name == wanted:
                    return variant
            names = ", ".join(one.name for one in self.variants)
            raise validation_error(f"Variant {wanted} not found for Request; there are: {names}")
        weights = [one.weight for one in self.variants]
        return random.choices(self.variants, weights)[0]  # noqa: S311  nothing here is secret

    def of_session(self, session: str) -> Variant:
        with self.guard:
            variant, expires = self.sessions.get(session, (None, 0.0))
            if variant and expires > time.time():
                return variant
            self.sessions.pop(session, None)
        raise validation_error(
            f"Session {session} is not open: it has expired, or was closed or never opened; open "
            f"one by InvokeEndpoint with SessionId {NEW_SESSION}"
        )

    def note_session(self, variant: Variant, call: Mapping[str, str], headers: Message) -> None:
        """Remember the session that a container has opened, and forget one that it has closed.

        Raises:
            ValueError: what the container says of a session has another form than expected.

        """
        if closed := headers.get(CLOSED_SESSION_ID, ""):
            with self.guard:
                self.sessions.pop(closed, None)
        if not (opened := headers.get(NEW_SESSION_ID, "")):
            return
        if call.get("SessionId") != NEW_SESSION:
            raise ValueError(f"a session is opened without {NEW_SESSION} in the request")
        session, _, expires = opened.partition("; Expires=")
        until = datetime.strptime(expires, EXPIRES).replace(tzinfo=UTC).timestamp()
        with self.guard:
            self.sessions[session] = (variant, until)

    def ask(
        self, name: str, variant: Variant, body: bytes, call: Mapping[str, str], seconds: float
    ) -> Answer:
        """Return the answer of a variant's container, with its body still to be read.

        Raises:
            Refused: it does not answer, or with an error.

        """
        until = time.monotonic() + seconds
        headers = to_container(call)
        try:
            if variant.models:
                target = call["TargetModel"]
                answer = variant.models.ask(name, target, body, headers, until)
            else:
                answer = ask(
                    variant.container.address,
                    "POST",
                    "/invocations",
                    body,
                    headers,
                    until=until,
                )
            if answer.status // 100 != 2:
                text = answer.read(until).decode(errors="replace")
                raise model_error(name, answer.status, text)
        except TooLate as error:
            raise model_error(name, 0, TIMED_OUT) from error
        except NoAnswer as error:
            raise no_answer(name, error) from error
        try:
            self.note_session(variant, call, answer.headers)
        except ValueError as error:
            answer.close()
            raise model_error(
                name,
                answer.status,
                f"{NEW_SESSION_ID}: {error}; expected 'ID; Expires=2030-01-31T23:59:59Z'",
            ) from error
        return answer


def no_answer(name: str, error: NoAnswer) -> Exception:
    return model_error(
        name,
        0,
        "Amazon SageMaker could not get a response from the primary endpoint. Of "
        f"`emulate`: {error}",
    )
