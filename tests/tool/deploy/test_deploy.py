"""`dispatcher deploy` on moto: made, changed, interrupted, refused and removed."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.tool.deploy.conftest import (
    AFTER_CHANGE,
    BUCKET,
    CHANGED,
    IMAGE,
    MADE,
    REGISTRY,
    ROLE,
    SCALED,
    Cloud,
    push,
)
from tool.deploy import wait
from tool.deploy.wait import LOG_GROUP


def refuse(name: str, code: str) -> None:
    """Let AWS refuse an operation."""

    def answer(model: object, **_: object) -> None:
        error = {"Error": {"Code": code, "Message": "so it is"}}
        raise ClientError(error, name)

    boto3.DEFAULT_SESSION.events.register(f"before-call.*.{name}", answer)


def test_from_a_local_image_and_a_folder_to_nothing(
    cloud: Cloud, docker: list[tuple[str, ...]]
) -> None:
    before = cloud.state()
    arguments = ("--model", str(cloud.models), *SCALED, "--tag", "team=vision")
    code, said = cloud.deploy(*arguments, image="local")
    assert code == 0, said
    container = cloud.client("sagemaker").describe_model(ModelName=cloud.state()["models"][0])
    assert container["PrimaryContainer"]["Image"] == f"{REGISTRY}/mine:0123456789ab"
    assert ("push", f"{REGISTRY}/mine:0123456789ab") in docker
    assert cloud.changes() == MADE

    again, said = cloud.deploy(*arguments, image="local")
    assert (again, cloud.changes()) == (0, []), said
    code, said = cloud.run("status", "mine")
    assert code == 0
    assert said.endswith("mine: InService\n")

    for arn in (container["ModelArn"], cloud.endpoint().arn):
        tags = cloud.client("sagemaker").list_tags(ResourceArn=arn)["Tags"]
        assert {one["Key"]: one["Value"] for one in tags} == {
            "triton-dispatcher:endpoint": "mine",
            "team": "vision",
        }
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    assert cloud.state() == before
    assert cloud.run("delete", "mine", "--yes")[0] == 0


def test_an_update_leaves_nothing_of_the_old_one(cloud: Cloud) -> None:
    cloud.deploy(*SCALED)
    old = cloud.state()
    code, said = cloud.deploy(*SCALED, "--env", "A=1")
    assert code == 2
    assert "dispatcher deploy update mine" in said
    assert cloud.state() == old
    cloud.changes()

    arguments = (*SCALED, "--env", "A=1", "--canary", "20", "--bake", "60", "--alarm", "latency")
    assert cloud.deploy(*arguments, word="update")[0] == 0
    sent = cloud.parameters("UpdateEndpoint")
    assert sent["DeploymentConfig"] == {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {
                "Type": "CANARY",
                "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 20},
                "WaitIntervalInSeconds": 60,
            }
        },
        "AutoRollbackConfiguration": {
            "Alarms": [{"AlarmName": "latency"}, {"AlarmName": "mine-errors"}]
        },
    }
    assert sent["RetainAllVariantProperties"] is True, "autoscaling keeps its instances"
    assert cloud.changes() == [*CHANGED, *AFTER_CHANGE]
    new = cloud.state()
    assert {kind: len(names) for kind, names in new.items()} == {
        kind: len(names) for kind, names in old.items()
    }
    assert not set(new["models"]) & set(old["models"])
    assert cloud.endpoint().endpoint_config_name == new["configs"][0]
    assert cloud.deploy(*arguments, word="update")[0] == 0
    assert cloud.changes() == []


def test_an_update_that_is_rolled_back_leaves_the_old_one_alone(cloud: Cloud) -> None:
    cloud.deploy("--count", "2", *SCALED)
    before = cloud.state()
    cloud.update_fails = True
    # The model is the old one; only the configuration is new.
    code, said = cloud.deploy("--count", "3", *SCALED, word="update")
    assert code == 2
    assert "went back to what it served before: an alarm went off" in said
    assert cloud.state() == before


def test_a_new_image_under_the_same_tag_is_an_update(cloud: Cloud) -> None:
    cloud.deploy()
    (model,) = cloud.state()["models"]
    described = cloud.client("sagemaker").describe_model(ModelName=model)
    assert re.fullmatch(
        rf"{REGISTRY}/theirs@sha256:[0-9a-f]{{64}}", described["PrimaryContainer"]["Image"]
    )
    push(cloud, "theirs", "1", "rebuilt")
    code, said = cloud.deploy()
    assert code == 2
    assert "dispatcher deploy update mine" in said


def test_autoscaling_is_taken_away_again(cloud: Cloud) -> None:
    cloud.deploy(*SCALED)
    assert cloud.deploy()[0] == 0
    state = cloud.state()
    assert (state["targets"], state["policies"]) == ([], [])
    assert cloud.deploy(*SCALED)[0] == 0
    cloud.changes()
    assert cloud.deploy("--autoscale", "2", "4", "--invocations", "100")[0] == 0
    assert cloud.changes() == ["RegisterScalableTarget"]


@pytest.mark.parametrize(
    "operation", ["CreateModel", "CreateEndpointConfig", "CreateEndpoint", "PutScalingPolicy"]
)
def test_an_error_undoes_what_was_made(
    cloud: Cloud, docker: list[tuple[str, ...]], operation: str
) -> None:
    before = cloud.state()
    refuse(operation, "ResourceLimitExceeded")
    code, said = cloud.deploy("--model", str(cloud.archive), *SCALED, image="local")
    assert code == 2
    assert "Service Quotas" in said
    assert cloud.state() == before


def test_an_endpoint_that_fails_shows_its_container_s_lines(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cloud.state()
    group, logs = LOG_GROUP.format("mine"), cloud.client("logs")

    def fail(moment: str, name: str) -> None:
        if (moment, name) != ("after", "CreateEndpoint"):
            return
        cloud.endpoint().endpoint_status = "Failed"
        cloud.endpoint().failure_reason = "it did not pass the ping health check"
        logs.create_log_group(logGroupName=group)
        logs.create_log_stream(logGroupName=group, logStreamName="AllTraffic/i-1")
        logs.put_log_events(
            logGroupName=group,
            logStreamName="AllTraffic/i-1",
            logEvents=[{"timestamp": int(time.time() * 1000), "message": "no model has this name"}],
        )

    cloud.on_change = fail
    code, said = cloud.deploy("--model", str(cloud.archive))
    assert code == 2
    assert "| no model has this name" in said
    assert "did not pass the ping health check" in said
    assert "dispatcher emulate" in said
    assert cloud.state() == before


@pytest.mark.parametrize(
    ("arguments", "member", "value"),
    [
        (
            ("--serverless", "3072", "--max-concurrency", "7"),
            "ServerlessConfig",
            {"MemorySizeInMB": 3072, "MaxConcurrency": 7},
        ),
        (("--instance", "ml.g4dn.xlarge"), "InstanceType", "ml.g4dn.xlarge"),
        (("--start-timeout", "600"), "ContainerStartupHealthCheckTimeoutInSeconds", 600),
        (("--volume", "64"), "VolumeSizeInGB", 64),
    ],
)
def test_where_it_runs(
    cloud: Cloud, arguments: tuple[str, ...], member: str, value: object
) -> None:
    code, said = cloud.deploy(*arguments)
    assert code == 0, said
    (variant,) = cloud.parameters("CreateEndpointConfig")["ProductionVariants"]
    assert variant[member] == value
    has_alarm = "DeploymentConfig" in cloud.parameters("CreateEndpoint")
    assert has_alarm is ("--serverless" not in arguments)


def test_an_asynchronous_endpoint_scales_to_zero(cloud: Cloud) -> None:
    out = ("--async", f"s3://{BUCKET}/out", "--async-failure", f"s3://{BUCKET}/bad")
    code, said = cloud.deploy(*out, "--autoscale", "0", "2", "--backlog", "5")
    assert code == 0, said
    assert cloud.parameters("CreateEndpointConfig")["AsyncInferenceConfig"] == {
        "OutputConfig": {
            "S3OutputPath": f"s3://{BUCKET}/out",
            "S3FailurePath": f"s3://{BUCKET}/bad",
        }
    }
    scaling = cloud.client("application-autoscaling")
    (policy,) = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    metric = policy["TargetTrackingScalingPolicyConfiguration"]["CustomizedMetricSpecification"]
    assert metric["MetricName"] == "ApproximateBacklogSizePerInstance"


def test_a_multi_model_endpoint(cloud: Cloud) -> None:
    assert cloud.deploy("--multi-model", f"s3://{BUCKET}/many/")[0] == 0
    container = cloud.parameters("CreateModel")["PrimaryContainer"]
    assert (container["Mode"], container["ModelDataUrl"]) == (
        "MultiModel",
        f"s3://{BUCKET}/many/",
    )


def test_each_model_is_asked_with_its_example(cloud: Cloud) -> None:
    asked = []

    def note(params: dict[str, object], **_: object) -> None:
        asked.append(json.loads(params["body"]))  # type: ignore[arg-type]

    boto3.DEFAULT_SESSION.events.register("before-call.sagemaker-runtime.InvokeEndpoint", note)
    options = ("--role", ROLE, "--image", IMAGE, "--model", str(cloud.archive))
    code, said = cloud.run("mine", *options)
    assert code == 0
    assert "> net: " in said
    assert [one["modelname"] for one in asked] == ["net"]
    assert set(asked[0]["payload"]) == {"img"}
    refuse("InvokeEndpoint", "ModelError")
    code, said = cloud.run("mine", *options)
    assert code == 1
    assert "! net: " in said


def test_a_question_is_asked_before_the_end(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.deploy()
    before = cloud.state()
    for answer in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code, said = cloud.run("delete", "mine")
        assert code == 1, said
        assert cloud.state() == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert cloud.run("delete", "mine")[0] == 0
    assert cloud.state()["endpoints"] == []


def test_a_dry_run_changes_nothing(cloud: Cloud) -> None:
    before = cloud.state()
    code, said = cloud.deploy("--model", str(cloud.archive), "--dry-run")
    assert code == 0
    kinds = [line.split()[1] for line in said.splitlines() if line.startswith("+ ")]
    assert kinds == ["archive", "model", "config", "alarm", "endpoint"]
    assert cloud.state() == before
    assert cloud.changes() == []


def test_models_that_the_image_need_not_have(cloud: Cloud) -> None:
    def absent(**_: object) -> None:
        error = {"Error": {"Code": "ModelError", "Message": "unknown"}, "OriginalStatusCode": 404}
        raise ClientError(error, "InvokeEndpoint")

    boto3.DEFAULT_SESSION.events.register("before-call.*.InvokeEndpoint", absent)
    code, said = cloud.run("mine", "--role", ROLE, "--image", IMAGE)
    assert code == 0
    for name in ("bert_base", "resnet", "yolov5"):
        assert f"? {name}: not in this image" in said


def test_an_asynchronous_endpoint_answers_in_s3(cloud: Cloud, tmp_path: Path) -> None:
    s3, before = cloud.client("s3"), cloud.state()["objects"]

    def answer(params: dict[str, str], **_: object) -> object:
        s3.put_object(Bucket=BUCKET, Key="out/1.out", Body=params["body"])
        places = {"OutputLocation": f"s3://{BUCKET}/out/1.out"}
        return type("Answer", (), {"status_code": 202})(), {
            **places,
            "FailureLocation": f"s3://{BUCKET}/bad/1.out",
        }

    boto3.DEFAULT_SESSION.events.register("before-call.*.InvokeEndpointAsync", answer)
    (tmp_path / "request.json").write_text('{"modelname": "net"}')
    options = ("--async", f"s3://{BUCKET}/out", "--ask", str(tmp_path / "request.json"))
    code, said = cloud.deploy(*options)
    assert code == 0, said
    assert 'request.json: {"modelname": "net"}' in said
    assert cloud.state()["objects"] == before, "the answer is removed"


def test_it_waits_while_the_endpoint_is_created(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def begin(moment: str, name: str) -> None:
        if (moment, name) == ("after", "CreateEndpoint"):
            cloud.endpoint().endpoint_status = "Creating"

    def sleep(_seconds: float) -> None:
        seen.append(cloud.endpoint().endpoint_status)
        if len(seen) == 3:
            cloud.endpoint().endpoint_status = "InService"

    cloud.on_change = begin
    monkeypatch.setattr(wait, "sleep", sleep)
    code, said = cloud.deploy(*SCALED)
    assert (code, seen) == (0, ["Creating"] * 3)
    assert said.count("mine: Creating") == 1
    assert cloud.changes()[-1] == "PutScalingPolicy", "which needs an endpoint in service"


def test_an_endpoint_that_failed_in_a_killed_run_is_made_again(cloud: Cloud) -> None:
    cloud.deploy()
    cloud.endpoint().endpoint_status = "Failed"
    cloud.changes()
    assert cloud.deploy()[0] == 0
    assert cloud.changes() == ["DeleteEndpoint", "CreateEndpoint"]
    assert cloud.endpoint().endpoint_status == "InService"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ("--count", "2"),
            "costs 0.230 USD an hour: 2 × ml.m5.large at 0.115 (list price, x, 2024)",
        ),
        (SCALED, "costs 0.115 to 0.460 USD an hour: 1 to 4 × ml.m5.large"),
        (
            ("--variant", "new", "1", IMAGE, "--count", "3"),
            "costs 0.690 USD an hour: 6 × ml.m5.large",
        ),
        (("--instance", "ml.m5.xlarge"), "has no price of ml.m5.xlarge"),
        (("--serverless", "1024"), ""),
    ],
)
def test_what_an_hour_costs(
    cloud: Cloud, tmp_path: Path, options: tuple[str, ...], line: str
) -> None:
    one = {"usd_per_hour": 0.115, "vcpus": 2, "memory_gib": 8, "gpus": 0}
    prices = {"date": "2024", "region": "x", "source": "made up", "instances": {"ml.m5.large": one}}
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    code, said = cloud.deploy(*options, "--prices", str(tmp_path / "prices.json"), "--dry-run")
    assert code == 0
    assert line in said
    assert bool(line) is ("USD" in said or "no price" in said)
