"""The template of deploy/sagemaker: by its linter, by AWS's API, and as a stack on moto."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.validate import ParamValidator

from dispatcher.settings import read_settings, rows
from tests.conftest import PROJECT, free_ports
from tests.deploy.conftest import DEPLOY, VARIABLES
from tests.deploy.test_ecs import enumerations
from tests.support import readme
from tests.support.cloudformation import Stack
from tests.support.counts import tracked
from tests.support.packages import python_with

FILE = DEPLOY / "sagemaker" / "template.yaml"
PAGE = (PROJECT / "docs" / "sagemaker.md").read_text()
IMAGE = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/mine:1"
NEEDED = {"Image": IMAGE, "Role": "arn:aws:iam::123456789012:role/service"}
OUT = {"Hosting": "asynchronous", "AsyncOutput": "s3://answers/out"}
CLI = "awscli==1.46.3"
KINDS = {
    "AWS::SageMaker::Model": "sagemaker CreateModel",
    "AWS::SageMaker::EndpointConfig": "sagemaker CreateEndpointConfig",
    "AWS::SageMaker::Endpoint": "sagemaker UpdateEndpoint",  # which takes all of it
    "AWS::CloudWatch::Alarm": "cloudwatch PutMetricAlarm",
    "AWS::ApplicationAutoScaling::ScalableTarget": "application-autoscaling RegisterScalableTarget",
    "AWS::ApplicationAutoScaling::ScalingPolicy": "application-autoscaling PutScalingPolicy",
}
NO_ALARMS = pytest.mark.filterwarnings("ignore:Tried to parse")  # nor autoscaling, in moto's stacks


@cache
def template() -> dict[str, Any]:
    """Return it; to import its reader takes seconds."""
    read: dict[str, Any] = import_module("cfnlint.decode.cfn_yaml").load(str(FILE))
    return read


def stack(**given: str) -> Stack:
    return Stack(template(), {**NEEDED, **given, "AWS::StackName": "mine"})


STACKS = {
    "real-time": {
        "Models": "s3://models/1/model.tar.gz",
        "RequiredModels": "a",
        "TracesEndpoint": "http://collector:4318",
        "InstanceCount": "2",
        "VolumeGB": "64",
        "ScaleBy": "concurrency",
        "ScaleTarget": "3",
        "RollbackAlarm": "latency",
        "CanaryPercent": "10",
    },
    "serverless": {"Hosting": "serverless", "ServerlessMemoryMB": "2048"},
    "asynchronous": {
        **OUT,
        "AsyncFailure": "s3://answers/bad",
        "ScaleBy": "backlog",
        "ScaleMin": "0",
    },
    "multi-model": {"Models": "s3://models/many/", "MultiModel": "true", "ScaleBy": "invocations"},
    "pool": {
        "Image": f"{IMAGE.removesuffix(':1')}@sha256:{'0' * 64}",
        "InstanceType": "ml.g6.xlarge",
        "FallbackInstanceType": "ml.g5.xlarge",
    },
}


def test_it_passes_its_linter() -> None:
    lint = import_module("cfnlint.api").lint
    assert lint(FILE.read_text(), regions=["eu-central-1", "us-gov-west-1"]) == []


@pytest.mark.parametrize("name", STACKS)
def test_aws_s_api_and_the_server_take_what_it_makes(name: str) -> None:
    """A resource's properties in CloudFormation are those of the API; moto lacks some."""
    made = stack(**STACKS[name])
    assert list(made.refusals()) == []
    session = botocore.session.get_session()
    for resource, properties in made.resources().items():
        service, call = KINDS[template()["Resources"][resource]["Type"]].split()
        shape = session.get_service_model(service).operation_model(call).input_shape
        sent = dict(properties)
        if resource == "Scaling":  # CloudFormation's own short form
            assert sent.pop("ScalingTargetId") == "Instances"
            target = made.resources()["Instances"]
            sent |= {key: target[key] for key in target if not key.endswith("Capacity")}
        names = {"Model": "ModelName", "Configuration": "EndpointConfigName", "Errors": "AlarmName"}
        if resource in names:  # CloudFormation makes one
            sent[names[resource]] = "made"
        assert ParamValidator().validate(sent, shape).generate_report() == ""
        enumerations(shape, sent)
    variant = made.resources()["Configuration"]["ProductionVariants"][0]
    ways = {"InstanceType", "InstancePools", "ServerlessConfig"} & variant.keys()
    expected = {"serverless": "ServerlessConfig", "pool": "InstancePools"}.get(name, "InstanceType")
    assert ways == {expected}, "AWS takes one of them"
    assert ("InitialInstanceCount" in variant) is (name != "serverless")
    container = made.resources()["Model"]["PrimaryContainer"]
    environment = {key: str(value) for key, value in container["Environment"].items()}
    assert environment.keys() <= VARIABLES
    assert read_settings(environment).serverless is (name == "serverless")
    assert container.get("Mode") == ("MultiModel" if name == "multi-model" else None)
    assert container.get("ModelDataUrl") == STACKS[name].get("Models")


def test_without_options_the_server_s_own_defaults_hold() -> None:
    defaults = {row.variable: row.default for row in rows()}
    environment = stack().resources()["Model"]["PrimaryContainer"]["Environment"]
    assert {key: str(value) for key, value in environment.items()} == {
        key: defaults[key] for key in environment
    }


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("invocations", "SageMakerVariantInvocationsPerInstance"),
        ("concurrency", "SageMakerVariantConcurrentRequestsPerModelHighResolution"),
        ("backlog", "ApproximateBacklogSizePerInstance"),
    ],
)
def test_instances_follow_a_metric(metric: str, expected: str) -> None:
    hosting = OUT if metric == "backlog" else {}
    made = stack(ScaleBy=metric, ScaleTarget="7", ScaleMin="2", ScaleMax="3", **hosting).resources()
    how = made["Scaling"]["TargetTrackingScalingPolicyConfiguration"]
    own, given = how.get("CustomizedMetricSpecification"), how.get("PredefinedMetricSpecification")
    assert expected == (own["MetricName"] if own else given["PredefinedMetricType"])
    assert how["TargetValue"] == 7
    assert (made["Instances"]["MinCapacity"], made["Instances"]["MaxCapacity"]) == (2, 3)
    assert made["Endpoint"]["RetainAllVariantProperties"] is True, "its number of instances stays"
    assert made["Endpoint"]["ExcludeRetainedVariantProperties"] == [
        {"VariantPropertyType": "DesiredWeight"}
    ]
    assert not {"Instances", "Scaling"} & stack().resources().keys()


@pytest.mark.parametrize(
    ("given", "alarms"),
    [
        ({}, ["Errors"]),
        ({"RollbackAlarm": "latency"}, ["Errors", "latency"]),
        ({"RollbackErrors": "0", "RollbackAlarm": "latency"}, ["latency"]),
        ({"RollbackErrors": "0"}, []),
    ],
)
def test_an_update_goes_back_where_an_alarm_goes_off(
    given: dict[str, str], alarms: list[str]
) -> None:
    made = stack(CanaryPercent="20", BakeSeconds="60", **given).resources()
    how = made["Endpoint"]["DeploymentConfig"]
    assert how["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"] == {
        "Type": "CANARY",
        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 20},
        "WaitIntervalInSeconds": 60,
    }
    found = how.get("AutoRollbackConfiguration", {}).get("Alarms", [])
    assert [one["AlarmName"] for one in found] == alarms
    assert ("Errors" in made) is ("Errors" in alarms)
    if "Errors" in made:
        assert made["Errors"]["Dimensions"][0]["Value"] == made["Endpoint"]["EndpointName"]
    serverless = stack(Hosting="serverless", **given).resources()
    assert "DeploymentConfig" not in serverless["Endpoint"]
    assert "Errors" not in serverless


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"Image": "registry.example/theirs:1"}, "an address in ECR"),
        ({"Image": ""}, "an address in ECR"),
        ({"Role": "me"}, "docs/sagemaker.md"),
        ({"Models": "models"}, "model.tar.gz"),
        ({"Hosting": "serverless", "ServerlessMemoryMB": "1000"}, "ServerlessMemoryMB"),
        ({"Hosting": "serverless", "ScaleBy": "invocations"}, "no instances to scale"),
        ({"Hosting": "serverless", "VolumeGB": "64"}, "leave VolumeGB out"),
        (
            {"Hosting": "serverless", "FallbackInstanceType": "ml.m5.large"},
            "leave FallbackInstanceType out",
        ),
        (
            {"Hosting": "serverless", "Models": "s3://models/many/", "MultiModel": "true"},
            "hosts no MultiModel",
        ),
        ({"MultiModel": "true"}, "MultiModel needs Models"),
        ({"Hosting": "asynchronous"}, "needs AsyncOutput"),
        ({**OUT, "AsyncOutput": "out"}, "s3://BUCKET/PREFIX"),
        ({"AsyncOutput": "s3://answers/out"}, "is for Hosting=asynchronous"),
        ({"ScaleBy": "backlog"}, "is for Hosting=asynchronous"),
        ({"ScaleBy": "invocations", "ScaleMin": "0"}, "ScaleMin is 0 only with"),
        ({"ScaleBy": "invocations", "ScaleTarget": "0"}, "ScaleTarget"),
        ({"CanaryPercent": "60"}, "CanaryPercent"),
        ({"BakeSeconds": "3601"}, "BakeSeconds"),
        ({"InstanceType": "m5.large"}, "such as ml.m5.large"),
        ({"StartTimeout": "30"}, "StartTimeout"),
    ],
)
def test_a_mistake_in_the_parameters_is_refused_before_anything_is_made(
    given: dict[str, str], words: str
) -> None:
    (text,) = stack(**given).refusals()
    assert words in text


def test_the_page_has_each_parameter() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`|[a-z]+) \|", PAGE, re.MULTILINE))
    parameters = template()["Parameters"]
    assert shown == {name: str(one.get("Default", "")) for name, one in parameters.items()}


@pytest.fixture
def _cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with import_module("moto").mock_aws():
        yield


def there() -> tuple[list[str], list[str], int]:
    """Return the images, types of instances and the number of endpoints that SageMaker has.

    Each has to name another by its name.
    """
    client = boto3.client("sagemaker")
    models = [one["ModelName"] for one in client.list_models()["Models"]]
    configs = [
        client.describe_endpoint_config(EndpointConfigName=one["EndpointConfigName"])
        for one in client.list_endpoint_configs()["EndpointConfigs"]
    ]
    variants = [one["ProductionVariants"][0] for one in configs]
    assert {one["ModelName"] for one in variants} <= set(models)
    endpoints = [
        client.describe_endpoint(EndpointName=one["EndpointName"])["EndpointConfigName"]
        for one in client.list_endpoints()["Endpoints"]
    ]
    assert set(endpoints) <= {one["EndpointConfigName"] for one in configs}
    images = [client.describe_model(ModelName=one)["PrimaryContainer"]["Image"] for one in models]
    return images, [one["InstanceType"] for one in variants], len(endpoints)


@pytest.mark.slow
@NO_ALARMS
@pytest.mark.usefixtures("_cloud")
def test_a_stack_is_made_changed_and_removed() -> None:
    stacks = boto3.client("cloudformation")

    def given(**values: str) -> dict[str, Any]:
        pairs = {**NEEDED, **values}.items()
        return {
            "StackName": "mine",
            "TemplateBody": FILE.read_text(),
            "Parameters": [{"ParameterKey": key, "ParameterValue": one} for key, one in pairs],
        }

    stacks.create_stack(**given())
    assert there() == ([IMAGE], ["ml.m5.large"], 1)
    # moto changes a resource that names a changed parameter itself, so all three are changed here.
    stacks.update_stack(**given(Image=f"{IMAGE}.1", InstanceType="ml.c5.large", BakeSeconds="60"))
    assert there() == ([f"{IMAGE}.1"], ["ml.c5.large"], 1)
    stacks.delete_stack(StackName="mine")
    assert there() == ([], [], 0)


DOCKER = re.compile(r"docker |make image|push-image|dispatcher emulate triton-dispatcher")
# What the page takes as given, and what stands for the image that Docker would push.
FIRST_OF_AWS = f"""
export AWS_DEFAULT_REGION=eu-central-1 AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none
IMAGE={IMAGE}
"""
EMULATE = """
set -m
{{
{block}
}} >emulate.log 2>&1 &
trap 'kill -INT -- -$! && wait $! || true' EXIT  # Ctrl-C
until grep -q InService: emulate.log; do sleep 0.2; jobs %% >jobs.log; done
"""


def session(port: int) -> tuple[str, list[str]]:
    """Return the page's blocks as one script of bash, and those that need Docker."""
    script, skipped, cloud = ["set -eu"], [], False
    script.append('make() { command make -o .venv/.serve "$@"; }  # its packages are there')
    for language, block in re.findall(r"(?ms)^```(sh|python)\n(.*?)^```", PAGE):
        if DOCKER.search(block):
            skipped.append(block)
        elif language == "python":
            asked = block.replace(":8090", f":{port}")
            script.append(f".venv/bin/python - >answer.json <<'END'\n{asked}END")
        elif "dispatcher emulate" in block:
            there = block.replace(" emulate ", f" emulate --port {port} ")
            script.append(EMULATE.format(block=there))
        else:
            if "aws " in block and not cloud:
                script.append(FIRST_OF_AWS)
                cloud = True
            script.append(block)
    return "\n".join(script), skipped


def clone(folder: Path) -> None:
    """Copy what a fresh clone has; the packages and the weights are links."""
    for path in tracked():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / path, folder / path, follow_symlinks=False)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "dispatcher").symlink_to(folder / "tool" / "dispatcher")
    links = [(one, Path(".venv", one.relative_to(sys.prefix))) for one in packages()]
    weights = [one for one in PROJECT.glob("model_repository/*/**/*model.onnx*") if one.is_file()]
    for target, name in links + [(one, one.relative_to(PROJECT)) for one in weights]:
        (folder / name).parent.mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).symlink_to(target)


def packages() -> Iterator[Path]:
    for folder in (Path(sys.prefix), Path(sys.prefix, "bin")):
        yield from (one for one in folder.iterdir() if one.name not in {"bin", "dispatcher"})


@NO_ALARMS
@pytest.mark.slow
def test_the_page_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_ = python_with(CLI).parent
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
    script, skipped = session(free_ports(1)[0])
    assert [one.split()[0].partition("=")[0] for one in skipped] == ["make", "pushed"]
    clone(tmp_path)
    import_module("moto.cloudformation.models")  # else the first request waits for that
    server = import_module("moto.server").ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    own = {key: one for key, one in os.environ.items() if not key.startswith(("AWS_", "PYTHON"))}
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={
                **own,
                "PATH": f"{bin_}:{os.environ['PATH']}",
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "PIP_DRY_RUN": "1",  # the tests' packages stay as they are
                "PIP_NO_BUILD_ISOLATION": "0",  # which means without
            },
            check=False,
            capture_output=True,
            text=True,
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = re.findall(r"(?ms)^```json\n(.*?)^```", PAGE)
    assert readme.same(json.loads((tmp_path / "answer.json").read_text()), json.loads(shown))
    log = (tmp_path / "emulate.log").read_text()
    assert re.search(r"serve: models in \S+: photos$", log, re.MULTILINE), "my model alone"
    assert ", 0 fail" in done.stdout
    assert "Would install sagemaker-emulator" in done.stdout
