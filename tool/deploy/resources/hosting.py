"""What Amazon SageMaker and the services around it keep of an endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tool.deploy.resources.aws import OWNER, tag_map
from tool.deploy.resources.kind import Found, Kind, Resource
from tool.trouble import Trouble

SAGEMAKER = "sagemaker"
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
        """Let it serve another configuration.

        Raises:
            Trouble: AWS would refuse that.

        """
        how = dict(resource.properties)
        old, new = self.types_before(), self.types(how["EndpointConfigName"])
        scaled = list(Target(self.aws, self.endpoint, self.tags).owned())
        for name, types in old.items():
            if target_of(self.endpoint, name)["ResourceId"] in scaled and new.get(name) != types:
                raise Trouble(
                    f"the variant {name} is autoscaled, and AWS takes it away or changes its type "
                    "of instance only without that: run `dispatcher deploy update` as it is now, "
                    "but without --autoscale, and then this again"
                )
        if old.keys() != new.keys():  # AWS goes step by step, and back, between the same variants
            how.pop("DeploymentConfig", None)
        elif scaled:  # the number of instances is not the configuration's any more
            how["RetainAllVariantProperties"] = True
            how["ExcludeRetainedVariantProperties"] = [{"VariantPropertyType": "DesiredWeight"}]
        self.aws.call("sagemaker", "update_endpoint", **how)
        found = self.found(resource.name)
        if found:
            self.aws.call(
                "sagemaker",
                "add_tags",
                ResourceArn=found.properties["EndpointArn"],
                Tags=self.tag_list,
            )

    def types_before(self) -> dict[str, Any]:
        """Return the types of instances of the variants that it has now."""
        found = self.found(self.endpoint)
        return self.types(found.properties["EndpointConfigName"]) if found else {}

    def types(self, config: str) -> dict[str, Any]:
        """Return the types of instances of a configuration, by variant."""
        found = Configuration(self.aws, self.endpoint, self.tags).found(config)
        variants = found.properties["ProductionVariants"] if found else ()
        return {
            one["VariantName"]: one.get("InstanceType") or one.get("InstancePools")
            for one in variants
        }


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


class Scaled(Kind):
    """What application-autoscaling keeps of the variants of an endpoint."""

    changeable = True
    service = "application-autoscaling"
    operation: ClassVar[str]
    key: ClassVar[str]
    name: ClassVar[str]  # the member that has it

    def listed(self) -> Iterator[dict[str, Any]]:
        prefix = target_of(self.endpoint, "")["ResourceId"]
        for one in self.aws.every(
            self.service, self.operation, self.key, ServiceNamespace=SAGEMAKER
        ):
            if one["ResourceId"].startswith(prefix):
                yield one

    def found(self, name: str) -> Found | None:
        for one in self.listed():
            if one[self.name] == name:
                return Found(self.endpoint, one)
        return None

    def owned(self) -> Iterator[str]:
        for one in self.listed():
            yield one[self.name]


class Target(Scaled):
    """The number of a variant's instances, which may follow a metric."""

    operation, key, name = "describe_scalable_targets", "ScalableTargets", "ResourceId"

    def create(self, resource: Resource) -> None:
        self.aws.call(
            self.service, "register_scalable_target", **resource.properties, Tags=self.tags
        )

    def update(self, resource: Resource) -> None:
        self.aws.call(self.service, "register_scalable_target", **resource.properties)

    def delete(self, name: str) -> None:
        self.aws.call(self.service, "deregister_scalable_target", **scalable(name))


class Policy(Scaled):
    """Which metric that number follows."""

    operation, key, name = "describe_scaling_policies", "ScalingPolicies", "PolicyName"

    def create(self, resource: Resource) -> None:
        self.aws.call(self.service, "put_scaling_policy", **resource.properties)

    def delete(self, name: str) -> None:
        if found := self.found(name):
            resource = scalable(found.properties["ResourceId"])
            self.aws.call(self.service, "delete_scaling_policy", PolicyName=name, **resource)


def target_of(endpoint: str, variant: str) -> dict[str, str]:
    """Return how application-autoscaling names the instances of a variant."""
    return scalable(f"endpoint/{endpoint}/variant/{variant}")


def scalable(resource: str) -> dict[str, str]:
    return {
        "ServiceNamespace": SAGEMAKER,
        "ResourceId": resource,
        "ScalableDimension": DIMENSION,
    }
