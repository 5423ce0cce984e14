"""An endpoint: one production variant of one instance, and how its container is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sagemaker_emulator.emulate.contract import (
    model_error,
    to_container,
    validation_error,
)
from sagemaker_emulator.emulate.multi_model import Models
from sagemaker_emulator.host.calls import Answer, NoAnswer, TooLate, ask
from sagemaker_emulator.host.containers import Container
from sagemaker_emulator.host.health import CREATING, FAILED, IN_SERVICE, Health
from sagemaker_emulator.host.limits import VARIANT, Limits

TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)


class Endpoint:
    """Sends requests to a container, as the service does."""

    def __init__(self, container: Container, health: Health, limits: Limits) -> None:
        self.container, self.health, self.limits = container, health, limits
        self.models: Models | None = None  # of a multi-model endpoint
        self.begin = time.time()

    @property
    def status(self) -> str:
        """The endpoint's state: Creating, InService or Failed."""
        state = self.health.state
        return state if state in (FAILED, CREATING) else IN_SERVICE

    def refuse_wrong(self, name: str, call: Mapping[str, str]) -> None:
        """Raise Refused where the endpoint is not in service, or has no such variant or model."""
        if self.status != IN_SERVICE:
            raise validation_error(
                f"Endpoint {name} is not in service: it is {self.status}; wait for InService"
            )
        if self.models and not call.get("TargetModel"):
            raise validation_error(
                "The request is missing a target model header, which a multi-model endpoint needs",
                ErrorCode="TARGET_MODEL_HEADER_MISSING",
            )
        if call.get("TargetModel") and not self.models:
            raise validation_error(
                f"Endpoint {name} is not a multi-model endpoint and does not support target model "
                "header.",
                ErrorCode="TARGET_MODEL_HEADER_NOT_SUPPORTED",
            )
        if (wanted := call.get("TargetVariant", VARIANT)) != VARIANT:
            raise validation_error(f"Variant {wanted} not found for Request; there is: {VARIANT}")

    def ask(self, name: str, body: bytes, call: Mapping[str, str], seconds: float) -> Answer:
        """Return the container's answer, its body unread; raise Refused for none, or an error."""
        until = time.monotonic() + seconds
        headers = to_container(call)
        with as_model_errors(name):
            if self.models:
                answer = self.models.ask(name, call["TargetModel"], body, headers, until)
            else:
                address = self.container.address
                answer = ask(address, "POST", "/invocations", body, headers, until=until)
            if answer.status // 100 != 2:
                text = answer.read(until).decode(errors="replace")
                raise model_error(name, answer.status, text)
        return answer


@contextmanager
def as_model_errors(name: str) -> Iterator[None]:
    """Raise the service's error, Refused, where a container does not answer."""
    try:
        yield
    except TooLate as error:
        raise model_error(name, 0, TIMED_OUT) from error
    except NoAnswer as error:
        raise model_error(
            name,
            0,
            "Amazon SageMaker could not get a response from the primary endpoint. Of `emulate`: "
            f"{error}",
        ) from error


def failure_reason(health: Health) -> str:
    """Return in the service's words, and in ours, why a container did not get into service."""
    return (
        f"The primary container for production variant {VARIANT} did not pass the ping health "
        f"check. Please check CloudWatch logs for this endpoint. {health.reason}"
    )
