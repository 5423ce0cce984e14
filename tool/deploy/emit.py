"""The plan as a file for CloudFormation, Terraform or the CDK; it is the same list of resources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tool.deploy.resources.aws import tag_list
from tool.deploy.resources.kind import Resource
from tool.emulate.places import bucket_and_key
from tool.trouble import Trouble

CLOUDFORMATION = {
    "model": "AWS::SageMaker::Model",
    "config": "AWS::SageMaker::EndpointConfig",
    "alarm": "AWS::CloudWatch::Alarm",
    "endpoint": "AWS::SageMaker::Endpoint",
    "target": "AWS::ApplicationAutoScaling::ScalableTarget",
    "policy": "AWS::ApplicationAutoScaling::ScalingPolicy",
}
TERRAFORM = {
    "archive": "aws_s3_object",
    "model": "aws_sagemaker_model",
    "config": "aws_sagemaker_endpoint_configuration",
    "alarm": "aws_cloudwatch_metric_alarm",
    "endpoint": "aws_sagemaker_endpoint",
    "target": "aws_appautoscaling_target",
    "policy": "aws_appautoscaling_policy",
}
NO_TAGS = {"cloudformation": ("policy", "target"), "terraform": ("policy",)}
# Names of a resource that Terraform gives shorter, and those whose words are not in its case.
SHORT = {"ModelName", "EndpointConfigName", "EndpointName", "PolicyName"}
SNAKE = {
    "S3OutputPath": "s3_output_path",
    "S3FailurePath": "s3_failure_path",
    "MemorySizeInMB": "memory_size_in_mb",
    "VolumeSizeInGB": "volume_size_in_gb",
}
NOT_IN_TERRAFORM = ("InstancePools",)
CDK = '''\
"""The endpoint %(name)s: `cdk deploy --app "python %(file)s"`, with aws-cdk-lib installed."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk.cloudformation_include import CfnInclude

app = cdk.App()
stack = cdk.Stack(app, %(stack)s)
CfnInclude(stack, "Endpoint", template_file=str(Path(__file__).with_name(%(template)s)))
app.synth()
'''


def cloudformation(name: str, plan: Sequence[Resource], tags: Mapping[str, str]) -> str:
    """Return a template."""
    resources: dict[str, Any] = {}
    before: list[str] = []
    for one in plan:
        if one.kind not in CLOUDFORMATION:
            continue
        logical = numbered(one.kind.title(), resources)
        properties = dict(one.properties)
        if one.kind not in NO_TAGS["cloudformation"]:
            properties["Tags"] = tag_list(tags)
        resources[logical] = {"Type": CLOUDFORMATION[one.kind], "Properties": properties}
        if before:  # names are written out, so the order is said
            resources[logical]["DependsOn"] = before
        before = [logical]
    document = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"The SageMaker endpoint {name}",
        "Metadata": {"Before": commands_before(plan)},
        "Resources": resources,
    }
    return f"{json.dumps(document, indent=2)}\n"


def numbered(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name that is not taken: each variant has an alarm, for example."""
    return name if name not in taken else f"{name}{sum(one.startswith(name) for one in taken) + 1}"


def commands_before(plan: Sequence[Resource]) -> list[str]:
    """Return the commands for what a template cannot make."""
    return [f"aws s3 cp {one.source} {one.name}" for one in plan if one.kind == "archive"]


def terraform(name: str, plan: Sequence[Resource], tags: Mapping[str, str]) -> str:
    """Return a `.tf.json`.

    Raises:
        Trouble: the AWS provider cannot express it.

    """
    document: dict[str, Any] = {
        "//": f"The SageMaker endpoint {name}",
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws"}}},
        "resource": {},
    }
    before: list[str] = []
    for one in plan:
        if one.kind not in TERRAFORM:
            continue
        kind = TERRAFORM[one.kind]
        same = document["resource"].setdefault(kind, {})
        label = numbered(one.kind, same)
        body = s3_object(one) if one.kind == "archive" else snake_case(one.properties)
        if one.kind not in NO_TAGS["terraform"]:
            body["tags"] = dict(tags)
        if before:
            body["depends_on"] = before
        if one.kind in {"model", "config"}:  # the new one is there before the old one goes
            body["lifecycle"] = {"create_before_destroy": True}
        same[label] = body
        before = [f"{kind}.{label}"]
    return f"{json.dumps(document, indent=2)}\n"


def s3_object(one: Resource) -> dict[str, Any]:
    bucket, key = bucket_and_key(one.name)
    return {"bucket": bucket, "key": key, "source": str(one.source)}


def snake_case(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties as the AWS provider names them."""
    found: dict[str, Any] = {}
    for key, value in properties.items():
        if key in SHORT and not (key == "EndpointConfigName" and "EndpointName" in properties):
            found["name"] = value
        elif key == "Dimensions" and "AlarmName" in properties:
            found["dimensions"] = {one["Name"]: one["Value"] for one in value}
        elif key == "Environment":
            found["environment"] = value
        else:
            found[snake(key)] = nested(value)
    return found


def nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {snake(key): nested(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [nested(one) for one in value]
    return value


def snake(key: str) -> str:
    if key in NOT_IN_TERRAFORM:
        raise Trouble(
            f"Terraform's AWS provider has no {key}; give one --instance, or emit cloudformation"
        )
    return SNAKE.get(key) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def emit(
    form: str, file: Path, name: str, plan: Sequence[Resource], tags: Mapping[str, str]
) -> list[Path]:
    """Write the plan in one of FORMS; return the files.

    Raises:
        Trouble: the form cannot express it.

    """
    if form != "cdk":
        file.write_text(FORMS[form](name, plan, tags), encoding="utf-8")
        return [file]
    template = file.with_suffix(".template.json")
    template.write_text(cloudformation(name, plan, tags), encoding="utf-8")
    words = {
        "name": name,
        "file": file.name,
        "stack": json.dumps(name),
        "template": json.dumps(template.name),
    }
    file.write_text(CDK % words, encoding="utf-8")
    return [file, template]


FORMS: dict[str, Callable[[str, Sequence[Resource], Mapping[str, str]], str]] = {
    "cloudformation": cloudformation,
    "terraform": terraform,
    "cdk": cloudformation,
}
