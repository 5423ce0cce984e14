"""Several production variants, and images of other registries."""

from __future__ import annotations

import json

import boto3

from tests.tool.deploy.conftest import IMAGE, REGISTRY, ROLE, SCALED, Cloud, push

NEW = f"{REGISTRY}/theirs:2"
VARIANT = ("--variant", "new", "0.25", NEW)


def weights(cloud: Cloud) -> dict[str, float]:
    (config,) = cloud.state()["configs"]
    found = cloud.client("sagemaker").describe_endpoint_config(EndpointConfigName=config)
    return {one["VariantName"]: one["InitialVariantWeight"] for one in found["ProductionVariants"]}


def test_a_variant_has_its_image_weight_alarm_and_scaling(cloud: Cloud) -> None:
    before = cloud.state()
    push(cloud, "theirs", "2")
    code, said = cloud.deploy(*VARIANT, *SCALED)
    assert code == 0, said
    state = cloud.state()
    assert weights(cloud) == {"AllTraffic": 1, "new": 0.25}
    assert state["alarms"] == ["mine-errors", "mine-errors-new"]
    assert state["targets"] == [f"endpoint/mine/variant/{name}" for name in ("AllTraffic", "new")]
    assert state["policies"] == ["mine-invocations", "mine-invocations-new"]
    images = set()
    for name in state["models"]:
        model = cloud.client("sagemaker").describe_model(ModelName=name)
        images.add(model["PrimaryContainer"]["Image"])
    digests = {
        one["imageTags"][0]: f"{REGISTRY}/theirs@{one['imageDigest']}"
        for one in cloud.client("ecr").describe_images(repositoryName="theirs")["imageDetails"]
    }
    assert images == {digests["1"], digests["2"]}
    cloud.changes()
    assert cloud.deploy(*VARIANT, *SCALED)[0] == 0
    assert cloud.changes() == []
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    assert cloud.state() == before


def test_a_weight_is_changed_and_the_scaled_number_of_instances_kept(cloud: Cloud) -> None:
    push(cloud, "theirs", "2")
    cloud.deploy(*VARIANT, *SCALED)
    code, said = cloud.deploy("--variant", "new", "3", NEW, *SCALED, word="update")
    assert code == 0, said
    sent = cloud.parameters("UpdateEndpoint")
    assert sent["RetainAllVariantProperties"] is True
    assert sent["ExcludeRetainedVariantProperties"] == [{"VariantPropertyType": "DesiredWeight"}]
    assert weights(cloud) == {"AllTraffic": 1, "new": 3}


def test_a_variant_comes_and_goes(cloud: Cloud) -> None:
    push(cloud, "theirs", "2")
    cloud.deploy()
    for options, names in ((VARIANT, {"AllTraffic", "new"}), ((), {"AllTraffic"})):
        code, said = cloud.deploy(*options, word="update")
        assert code == 0, said
        # AWS does not move traffic step by step between different variants.
        assert "DeploymentConfig" not in cloud.parameters("UpdateEndpoint")
        assert weights(cloud).keys() == names
    assert cloud.state()["alarms"] == ["mine-errors"]


def test_a_scaled_variant_is_not_taken_away(cloud: Cloud) -> None:
    push(cloud, "theirs", "2")
    cloud.deploy(*VARIANT, *SCALED)
    before = cloud.state()
    for options in (SCALED, (*VARIANT, *SCALED, "--instance", "ml.c5.large")):
        code, said = cloud.deploy(*options, word="update")
        assert code == 2
        assert "without --autoscale" in said
        assert cloud.state() == before
    assert cloud.deploy(*VARIANT, word="update")[0] == 0
    assert cloud.deploy(word="update")[0] == 0
    assert weights(cloud) == {"AllTraffic": 1}


def test_variants_with_the_same_image_share_a_model_and_each_is_asked(cloud: Cloud) -> None:
    asked = []

    def note(params: dict[str, object], **_: object) -> None:
        asked.append(params["headers"]["X-Amzn-SageMaker-Target-Variant"])  # type: ignore[index]

    boto3.DEFAULT_SESSION.events.register("before-call.sagemaker-runtime.InvokeEndpoint", note)
    options = ("--role", ROLE, "--image", IMAGE, "--model", str(cloud.archive))
    code, said = cloud.run("mine", *options, "--variant", "same", "1", IMAGE)
    assert code == 0, said
    assert len(cloud.state()["models"]) == 1
    assert asked == ["AllTraffic", "same"]
    assert "> net (same): " in said


def test_an_image_of_another_registry_is_copied(
    cloud: Cloud, docker: list[tuple[str, ...]]
) -> None:
    before = cloud.state()
    digest = "sha256:" + "0123456789abcdef" * 4
    for name in ("registry.example:5000/team/theirs", "team/theirs"):
        image = f"{name}@{digest}"
        code, said = cloud.deploy("--dry-run", image=image)
        assert (code, docker) == (0, []), said
        assert f"+ image {REGISTRY}/mine:0123456789ab" in said
        code, said = cloud.deploy(image=image)
        assert code == 0, said
        assert [one for one in docker if one[0] != "login"] == [
            ("pull", image),
            ("tag", image, f"{REGISTRY}/mine:0123456789ab"),
            ("push", f"{REGISTRY}/mine:0123456789ab"),
        ]
        assert cloud.run("delete", "mine", "--yes")[0] == 0
        assert cloud.state() == before
        docker.clear()


def test_the_sent_configuration_has_both_variants(cloud: Cloud) -> None:
    push(cloud, "theirs", "2")
    assert cloud.deploy(*VARIANT, "--count", "2")[0] == 0
    sent = cloud.parameters("CreateEndpointConfig")["ProductionVariants"]
    assert [(one["VariantName"], one["InitialInstanceCount"]) for one in sent] == [
        ("AllTraffic", 2),
        ("new", 2),
    ]
    assert json.dumps(sent[0]["InitialVariantWeight"]) == "1", "as before there were variants"
