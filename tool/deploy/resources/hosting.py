"""What Amazon SageMaker and the services around it keep of an endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tool.deploy.resources.aws import OWNER, tag_map
from tool.deploy.resources.kind import Found, Kind, Resource

VARIANT = "AllTraffic"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"


@dataclass(frozen=True)
class OfSageMaker(Kind):
    """A model, an endpoint configuration or an endpoint."""

    what: ClassVar[str]  # as operations name it
    noun: ClassVar[str]  # as members name it

    def listed(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the owner of each whose name begins with the endpoint's."""
        for one in self.aws.every(
            "sagemaker", f"list_{self.what}s", f"{self.noun}s", NameContains=self.endpoint
        ):
            name = one[f"{self.noun}Name"]
            if name.startswith(self.endpoint):
                yield name, one[f"{self.noun}Arn"]

    def owner(self, arn: str) -> str:
        tags = tag_map(list(self.aws.every("sagemaker", "list_tags", "Tags", ResourceArn=arn)))
        return tags.get(OWNER, "")

    def found(self, name: str) -> Found | None:
        for one, arn in self.listed():
            if one == name:
                described = self.aws.call(
                    "sagemaker", f"describe_{self.what}", **{f"{self.noun}Name": name}
                )
                return Found(self.owner(arn), described)
        return None

    def create(self, resource: Resource) -> None:
        self.aws.call("sagemaker", f"create_{self.what}", **resource.properties, Tags=self.tag_list)

    def delete(self, name: str) -> None:
        self.aws.call("sagemaker", f"delete_{self.what}", **{f"{self.noun}Name": name})

    def owned(self) -> Iterator[str]:
        for name, arn in self.listed():
            if self.owner(arn) == self.endpoint:
                yield name


class Model(OfSageMaker):
    """What is served: an image, and its files."""

    what, noun = "model", "Model"


class Configuration(OfSageMaker):
    """On which instances."""

    what, noun = "endpoint_config", "EndpointConfig"


class EndpointKind(OfSageMaker):
    """What is called. It takes minutes to change: see wait.py."""

    what, noun = "endpoint", "Endpoint"
    changeable = True

    def update(self, resource: Resource) -> None:
        how = dict(resource.properties)
        if self.scaled():  # the number of instances is not the configuration's any more
            how["RetainAllVariantProperties"] = True
        self.aws.call("sagemaker", "update_endpoint", **how)
        found = self.found(resource.name)
        if found:
            self.aws.call(
                "sagemaker",
                "add_tags",
                ResourceArn=found.properties["EndpointArn"],
                Tags=self.tag_list,
            )

    def scaled(self) -> bool:
        return Target(self.aws, self.endpoint, self.tags).found("") is not None


class Alarm(Kind):
    """A CloudWatch alarm."""

    changeable = True

    def found(self, name: str) -> Found | None:
        for one in self.aws.every(
            "cloudwatch", "describe_alarms", "MetricAlarms", AlarmNames=[name]
        ):
            return Found(self.owner(one["AlarmArn"]), one)
        return None

    def owner(self, arn: str) -> str:
        tags = self.aws.call("cloudwatch", "list_tags_for_resource", ResourceARN=arn)["Tags"]
        return tag_map(tags).get(OWNER, "")

    def create(self, resource: Resource) -> None:
        self.aws.call("cloudwatch", "put_metric_alarm", **resource.properties, Tags=self.tag_list)

    def update(self, resource: Resource) -> None:
        self.aws.call("cloudwatch", "put_metric_alarm", **resource.properties)

    def delete(self, name: str) -> None:
        self.aws.call("cloudwatch", "delete_alarms", AlarmNames=[name])

    def owned(self) -> Iterator[str]:
        for one in self.aws.every(
            "cloudwatch", "describe_alarms", "MetricAlarms", AlarmNamePrefix=f"{self.endpoint}-"
        ):
            if self.owner(one["AlarmArn"]) == self.endpoint:
                yield one["AlarmName"]


class Target(Kind):
    """The number of an endpoint's instances, which may follow a metric."""

    changeable = True
    service = "application-autoscaling"

    def found(self, name: str) -> Found | None:  # noqa: ARG002  an endpoint has one
        how = target_of(self.endpoint)
        for one in self.aws.every(
            self.service,
            "describe_scalable_targets",
            "ScalableTargets",
            ServiceNamespace=how["ServiceNamespace"],
            ResourceIds=[how["ResourceId"]],
        ):
            return Found(self.endpoint, one)
        return None

    def create(self, resource: Resource) -> None:
        self.aws.call(
            self.service, "register_scalable_target", **resource.properties, Tags=self.tags
        )

    def update(self, resource: Resource) -> None:
        self.aws.call(self.service, "register_scalable_target", **resource.properties)

    def delete(self, name: str) -> None:  # noqa: ARG002
        self.aws.call(self.service, "deregister_scalable_target", **target_of(self.endpoint))

    def owned(self) -> Iterator[str]:
        if found := self.found(""):
            yield found.properties["ResourceId"]


class Policy(Kind):
    """Which metric that number follows."""

    changeable = True
    service = "application-autoscaling"

    def listed(self) -> Iterator[dict[str, Any]]:
        how = target_of(self.endpoint)
        yield from self.aws.every(
            self.service,
            "describe_scaling_policies",
            "ScalingPolicies",
            ServiceNamespace=how["ServiceNamespace"],
            ResourceId=how["ResourceId"],
        )

    def found(self, name: str) -> Found | None:
        for one in self.listed():
            if one["PolicyName"] == name:
                return Found(self.endpoint, one)
        return None

    def create(self, resource: Resource) -> None:
        self.aws.call(self.service, "put_scaling_policy", **resource.properties)

    def delete(self, name: str) -> None:
        self.aws.call(
            self.service, "delete_scaling_policy", PolicyName=name, **target_of(self.endpoint)
        )

    def owned(self) -> Iterator[str]:
        for one in self.listed():
            yield one["PolicyName"]


def target_of(endpoint: str) -> dict[str, str]:
    """Return how application-autoscaling names the instances of an endpoint."""
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{endpoint}/variant/{VARIANT}",
        "ScalableDimension": DIMENSION,
    }
