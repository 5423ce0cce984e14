"""What an endpoint consists of, as a list: the one that is applied, shown and emitted.

The properties of a resource are those of AWS's API, which CloudFormation names the same.
Models and configurations cannot be changed, so their names end with a digest of what they hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tool.deploy.resources.aws import OWNER, tag_list
from tool.deploy.resources.hosting import target_of
from tool.deploy.resources.kind import Resource
from tool.emulate.contract import FIRST_VARIANT

DIGITS = 8
METRICS = {  # what autoscaling may keep to a target
    "invocations": "SageMakerVariantInvocationsPerInstance",
    "concurrency": "SageMakerVariantConcurrentRequestsPerModelHighResolution",
}
BACKLOG = "ApproximateBacklogSizePerInstance"
SCALE_IN_S, SCALE_OUT_S = 300, 60
ALARM_PERIOD_S = 60


@dataclass(frozen=True)
class Scaling:
    """Target tracking: the number of instances follows a metric."""

    least: int
    most: int
    metric: str
    target: float


@dataclass(frozen=True)
class Variant:
    """A production variant; its part of the traffic is its weight by the sum of all weights."""

    name: str
    weight: float
    image: str


@dataclass(frozen=True)
class Wanted:
    """An endpoint as its owner describes it.

    Args:
        variants: FIRST_VARIANT and those beside it, alike but for their images.
        made: what the image and the archive need before the model: repository, image, object.
        data: `s3://…` of the archive, or of the prefix of a multi-model endpoint; may be empty.
        instances: types; of several the first is preferred.
        serverless: memory in MB and the most concurrent calls; None for instances.
        async_output: `s3://…` for answers; makes the endpoint asynchronous.
        alarms: names of alarms that roll an update back, besides the one that is made here.
        errors: answers with 5xx in a minute from which an update is rolled back; 0 for no alarm.
        canary: percent of the capacity that gets traffic first; 0 for all at once.
        bake_s: how long the alarms are watched before the old instances end.

    """

    name: str
    role: str
    variants: tuple[Variant, ...]
    made: tuple[Resource, ...] = ()
    data: str = ""
    multi_model: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    instances: tuple[str, ...] = ()
    count: int = 1
    start_s: int = 480
    volume_gb: int = 0
    serverless: tuple[int, int] | None = None
    async_output: str = ""
    async_failure: str = ""
    scaling: Scaling | None = None
    alarms: tuple[str, ...] = ()
    errors: int = 5
    canary: int = 0
    bake_s: int = 300
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_tags(self) -> dict[str, str]:
        return {OWNER: self.name, **self.tags}


def plan(wanted: Wanted) -> list[Resource]:
    """Return all resources of an endpoint, each after those that it needs."""
    models = [
        named(wanted, "model", "ModelName", model_properties(wanted, one.image))
        for one in wanted.variants
    ]
    names = [one.name for one in models]
    config = named(wanted, "config", "EndpointConfigName", config_properties(wanted, names))
    # Variants with the same image share a model.
    found = [*wanted.made, *{one.name: one for one in models}.values(), config]
    properties: dict[str, Any] = {"EndpointName": wanted.name, "EndpointConfigName": config.name}
    if not wanted.serverless:
        alarms = list(wanted.alarms)
        if wanted.errors:
            own = [errors_alarm(wanted, one.name) for one in wanted.variants]
            found += own
            alarms += [one.name for one in own]
        properties["DeploymentConfig"] = deployment(wanted, alarms)
    found.append(Resource("endpoint", wanted.name, properties))
    if wanted.scaling:
        for one in wanted.variants:
            found += scaling(wanted, wanted.scaling, one.name)
    return found


def named(wanted: Wanted, kind: str, member: str, properties: Mapping[str, Any]) -> Resource:
    """Name a resource by a digest of its properties and tags."""
    content = json.dumps([properties, tag_list(wanted.all_tags)], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    name = f"{wanted.name}-{digest}"
    return Resource(kind, name, {member: name, **properties})


def model_properties(wanted: Wanted, image: str) -> dict[str, Any]:
    container: dict[str, Any] = {"Image": image}
    if wanted.data:
        container["ModelDataUrl"] = wanted.data
    if wanted.multi_model:
        container["Mode"] = "MultiModel"
    if wanted.environment:
        container["Environment"] = dict(wanted.environment)
    return {"PrimaryContainer": container, "ExecutionRoleArn": wanted.role}


def config_properties(wanted: Wanted, models: list[str]) -> dict[str, Any]:
    """Return the properties of the configuration; each variant has its model."""
    variants = [
        variant_properties(wanted, one, model)
        for one, model in zip(wanted.variants, models, strict=True)
    ]
    found: dict[str, Any] = {"ProductionVariants": variants}
    if wanted.async_output:
        output = {"S3OutputPath": wanted.async_output}
        if wanted.async_failure:
            output["S3FailurePath"] = wanted.async_failure
        found["AsyncInferenceConfig"] = {"OutputConfig": output}
    return found


def variant_properties(wanted: Wanted, one: Variant, model: str) -> dict[str, Any]:
    variant: dict[str, Any] = {
        "VariantName": one.name,
        "ModelName": model,
        "InitialVariantWeight": one.weight if one.weight % 1 else int(one.weight),
    }
    if wanted.serverless:
        memory, most = wanted.serverless
        variant["ServerlessConfig"] = {"MemorySizeInMB": memory, "MaxConcurrency": most}
    else:
        variant["InitialInstanceCount"] = wanted.count
        variant["ContainerStartupHealthCheckTimeoutInSeconds"] = wanted.start_s
        if len(wanted.instances) == 1:
            variant["InstanceType"] = wanted.instances[0]
        else:
            variant["InstancePools"] = [
                {"InstanceType": one, "Priority": place}
                for place, one in enumerate(wanted.instances, start=1)
            ]
        if wanted.volume_gb:
            variant["VolumeSizeInGB"] = wanted.volume_gb
    return variant


def of_variant(name: str, variant: str) -> str:
    """Return the name of what each variant has; the first one's is short."""
    return name if variant == FIRST_VARIANT else f"{name}-{variant}"


def errors_alarm(wanted: Wanted, variant: str) -> Resource:
    """Return an alarm for answers with 5xx of a variant."""
    name = of_variant(f"{wanted.name}-errors", variant)
    return Resource(
        "alarm",
        name,
        {
            "AlarmName": name,
            "Namespace": "AWS/SageMaker",
            "MetricName": "Invocation5XXErrors",
            "Dimensions": [
                {"Name": "EndpointName", "Value": wanted.name},
                {"Name": "VariantName", "Value": variant},
            ],
            "Statistic": "Sum",
            "Period": ALARM_PERIOD_S,
            "EvaluationPeriods": 1,
            "Threshold": wanted.errors,
            "ComparisonOperator": "GreaterThanOrEqualToThreshold",
            "TreatMissingData": "notBreaching",
        },
    )


def deployment(wanted: Wanted, alarms: list[str]) -> dict[str, Any]:
    """Return how an update goes: new instances beside the old ones, which end if all is well."""
    traffic: dict[str, Any] = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": wanted.bake_s}
    if wanted.canary:
        size = {"Type": "CAPACITY_PERCENT", "Value": wanted.canary}
        traffic |= {"Type": "CANARY", "CanarySize": size}
    found: dict[str, Any] = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": traffic}}
    if alarms:
        found["AutoRollbackConfiguration"] = {"Alarms": [{"AlarmName": one} for one in alarms]}
    return found


def scaling(wanted: Wanted, how: Scaling, variant: str) -> list[Resource]:
    target = target_of(wanted.name, variant)
    configuration: dict[str, Any] = {
        "TargetValue": how.target,
        "ScaleInCooldown": SCALE_IN_S,
        "ScaleOutCooldown": SCALE_OUT_S,
    }
    if how.metric in METRICS:
        configuration["PredefinedMetricSpecification"] = {
            "PredefinedMetricType": METRICS[how.metric]
        }
    else:
        configuration["CustomizedMetricSpecification"] = {
            "MetricName": BACKLOG,
            "Namespace": "AWS/SageMaker",
            "Dimensions": [{"Name": "EndpointName", "Value": wanted.name}],
            "Statistic": "Average",
        }
    name = of_variant(f"{wanted.name}-{how.metric}", variant)
    return [
        Resource(
            "target",
            target["ResourceId"],
            {**target, "MinCapacity": how.least, "MaxCapacity": how.most},
        ),
        Resource(
            "policy",
            name,
            {
                "PolicyName": name,
                **target,
                "PolicyType": "TargetTrackingScaling",
                "TargetTrackingScalingPolicyConfiguration": configuration,
            },
        ),
    ]
