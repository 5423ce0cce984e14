"""What the hosting service accepts and refuses: limits, headers, errors, and its calls' shapes.

The shapes come from botocore's description of `sagemaker-runtime`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape

REGION, ACCOUNT = "us-east-1", "000000000000"
MAX_MESSAGE = 2048  # characters of a container's error that are passed on
PREFIX = "X-Amzn-SageMaker-"
CUSTOM_ATTRIBUTES, TARGET_MODEL = f"{PREFIX}Custom-Attributes", f"{PREFIX}Target-Model"
TARGET_VARIANT, INFERENCE_ID = f"{PREFIX}Target-Variant", f"{PREFIX}Inference-Id"
SESSION_ID = f"{PREFIX}Session-Id"
INVOKED_VARIANT = "x-Amzn-Invoked-Production-Variant"
# Members of a call, and the headers in which the container gets them; all others are dropped.
TO_CONTAINER = {
    "ContentType": "Content-Type",
    "Accept": "Accept",
    "CustomAttributes": CUSTOM_ATTRIBUTES,
    "TargetModel": TARGET_MODEL,
    "TargetVariant": TARGET_VARIANT,
    "InferenceId": INFERENCE_ID,
    "SessionId": SESSION_ID,
}
NOT_EMULATED = ("TargetContainerHostname", "EnableExplanations", "InferenceComponentName")
JAVA_CLASSES = {r"\p{ASCII}": r"[\x00-\x7f]", r"[\p{Print}]": "[ -~]", r"\z": r"\Z"}


class Refused(Exception):
    """The service answers with an error, such as ValidationError, and its further fields."""

    def __init__(self, name: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.name, self.message, self.fields = name, message, fields

    @property
    def status(self) -> int:
        """The HTTP status that botocore's description has for it."""
        return int(runtime().shape_for(self.name).metadata["error"]["httpStatusCode"])

    def body(self) -> dict[str, Any]:
        return {"Message": self.message, **self.fields}


def validation_error(message: str, **fields: Any) -> Refused:
    return Refused("ValidationError", message, **fields)


def model_error(endpoint: str, status: int, text: str) -> Refused:
    """Return the error for what a container answered; status 0 where it did not."""
    text = text[:MAX_MESSAGE]
    side = "client" if 400 <= status < 500 else "server"
    return Refused(
        "ModelError",
        f'Received {side} error ({status}) from primary with message "{text}". See the lines of '
        "the container in the terminal of `emulate` for more information.",
        OriginalStatusCode=status,
        OriginalMessage=text,
        LogStreamArn=(
            f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/Endpoints/{endpoint}"
        ),
    )


def too_large(limit: int) -> Refused:
    return validation_error(
        "1 validation error detected: Value at 'body' failed to satisfy constraint: "
        f"Member must have length less than or equal to {limit}"
    )


@cache
def runtime() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("sagemaker-runtime", "service-2"))


def members(operation: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return what the headers of a call say, by the names that boto3 has for it.

    Their own names are in small letters. Raises Refused where a value is too long, or has
    another form.
    """
    found, faults = {}, []
    for name, shape in runtime().operation_model(operation).input_shape.members.items():
        if shape.serialization.get("location") != "header":
            continue
        value = headers.get(shape.serialization["name"].lower())
        if value is not None:
            found[name] = value
            if fault := fault_of(shape, value):
                member = name[0].lower() + name[1:]
                faults.append(f"Value at '{member}' failed to satisfy constraint: {fault}")
    if faults:
        count = f"{len(faults)} validation error{'s' * (len(faults) > 1)} detected"
        raise validation_error(f"{count}: {'; '.join(faults)}")
    for name in NOT_EMULATED:
        if name in found:
            raise validation_error(f"`emulate` has no {name}; leave it out of the call")
    return found


def fault_of(shape: Shape, value: str) -> str:
    """Return in the service's words why a value is not allowed; empty if it is."""
    rules = shape.metadata
    if len(value) > rules.get("max", len(value)):
        return f"Member must have length less than or equal to {rules['max']}"
    if len(value) < rules.get("min", 0):
        return f"Member must have length greater than or equal to {rules['min']}"
    pattern = rules.get("pattern", ".*")
    for java, python in JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    if not re.fullmatch(pattern, value, re.DOTALL):
        return f"Member must satisfy regular expression pattern: {rules['pattern']}"
    return ""


def to_container(call: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a container gets."""
    return {header: call[name] for name, header in TO_CONTAINER.items() if name in call}
