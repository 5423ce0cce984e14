"""An endpoint: production variants, and how requests are shared among them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sagemaker_emulator.emulate.contract import (
    model_error,
    to_container,
    validation_error,
)
from sagemaker_emulator.emulate.multi_model import Models
from sagemaker_emulator.host.calls import Answer, NoAnswer, TooLate, ask
from sagemaker_emulator.host.containers import Container
from sagemaker_emulator.host.health import CREATING, FAILED, IN_SERVICE, Health
from sagemaker_emulator.host.limits import Limits

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

    """

    name: str
    weight: float
    container: Container
    health: Health
    models: Models | None = None


class Endpoint:
    """Sends requests to variants, as the service does.

    Args:
        variants: of the endpoint.
        limits: of the service.

    """

    def __init__(self, variants: list[Variant], limits: Limits) -> None:
        self.variants, self.limits = variants, limits
        self.begin = time.time()

    @property
    def status(self) -> str:
        """Return the endpoint's state: Creating, InService or Failed."""
        states = {one.health.state for one in self.variants}
        return next((one for one in (FAILED, CREATING) if one in states), IN_SERVICE)

    def choose(self, name: str, call: Mapping[str, str]) -> Variant:
        """Return the variant for a call.

        Raises:
            Refused: the endpoint is not in service, or has no such variant or model.

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
        if wanted := call.get("TargetVariant", ""):
            for variant in self.variants:
                if variant.name == wanted:
                    return variant
            names = ", ".join(one.name for one in self.variants)
            raise validation_error(f"Variant {wanted} not found for Request; there are: {names}")
        weights = [one.weight for one in self.variants]
        return random.choices(self.variants, weights)[0]  # noqa: S311  nothing here is secret

    def ask(
        self, name: str, variant: Variant, body: bytes, call: Mapping[str, str], seconds: float
    ) -> Answer:
        """Return the answer of a variant's container, with its body still to be read.

        Raises:
            Refused: it does not answer, or with an error.

        """
        until = time.monotonic() + seconds
        headers = to_container(call)
        with as_model_errors(name):
            if variant.models:
                answer = variant.models.ask(name, call["TargetModel"], body, headers, until)
            else:
                address = variant.container.address
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
