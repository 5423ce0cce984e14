"""The plan as a file: checked by others' tools, and against what boto3 would be sent."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import validate_parameters

from tool.__main__ import main
from tool.deploy.plan import Scaling, Variant, Wanted, plan

ROLE = "arn:aws:iam::123456789012:role/service"
IMAGE = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/mine:1"
OPTIONS = {
    "real-time": (
        *("--instance", "ml.m5.large", "--count", "2", "--volume", "64"),
        *("--autoscale", "1", "4", "--concurrency", "3", "--alarm", "latency", "--canary", "10"),
    ),
    "serverless": ("--serverless", "2048"),
    "asynchronous": (
        *("--async", "s3://answers/out", "--async-failure", "s3://answers/bad"),
        *("--autoscale", "0", "2", "--backlog", "5"),
    ),
    "multi-model": ("--multi-model", "s3://models/many/"),
    "variants": (
        *("--variant", "new", "0.25", f"{IMAGE}.1", "--variant", "same", "1", IMAGE),
        *("--instance", "ml.m5.large", "--autoscale", "1", "2", "--invocations", "9"),
    ),
    "pool": ("--instance", "ml.g6.xlarge", "--instance", "ml.g5.xlarge"),
}


def emitted(folder: Path, form: str, *options: str) -> tuple[int, Path]:
    file = folder / {"cdk": "app.py", "terraform": "main.tf.json"}.get(form, "template.json")
    common = ("deploy", "mine", "--image", IMAGE, "--role", ROLE, "--tag", "team=vision")
    return main([*common, *options, "--emit", form, str(file)]), file


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform team's file is written without credentials."""
    monkeypatch.setattr("boto3.client", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_cloudformation_passes_its_linter(tmp_path: Path, name: str) -> None:
    code, file = emitted(tmp_path, "cloudformation", *OPTIONS[name])
    assert code == 0
    lint = [Path(sys.executable).with_name("cfn-lint"), "--regions", "eu-central-1", "--", file]
    done = subprocess.run([sys.executable, *lint], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_linter_sees_a_mistake(tmp_path: Path) -> None:
    _, file = emitted(tmp_path, "cloudformation", *OPTIONS["serverless"])
    file.write_text(file.read_text().replace("MaxConcurrency", "MostConcurrency"))
    cfn_lint = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run(
        [sys.executable, cfn_lint, file], check=False, capture_output=True, text=True
    )
    assert "MostConcurrency" in done.stdout


CALLS = {
    "model": ("sagemaker", "CreateModel"),
    "config": ("sagemaker", "CreateEndpointConfig"),
    "endpoint": ("sagemaker", "CreateEndpoint"),
    "alarm": ("cloudwatch", "PutMetricAlarm"),
    "target": ("application-autoscaling", "RegisterScalableTarget"),
    "policy": ("application-autoscaling", "PutScalingPolicy"),
}


@pytest.mark.parametrize(
    "how",
    [
        {"instances": ("ml.g6.xlarge", "ml.g5.xlarge"), "canary": 10, "alarms": ("latency",)},
        {"serverless": (2048, 5)},
        {
            "instances": ("ml.m5.large",),
            "volume_gb": 64,
            "async_output": "s3://a/b",
            "scaling": Scaling(0, 2, "backlog", 5),
        },
        {"instances": ("ml.m5.large",), "scaling": Scaling(1, 2, "concurrency", 5)},
    ],
)
def test_boto3_takes_the_plan(how: dict[str, Any]) -> None:
    """Also where moto does not know a member yet."""
    session = botocore.session.Session()
    variants = (Variant("AllTraffic", 1, IMAGE), Variant("new", 0.5, f"{IMAGE}.1"))
    variants = variants[:1] if "serverless" in how else variants
    for one in plan(Wanted("mine", ROLE, variants, **how)):
        service, call = CALLS[one.kind]
        shape = session.get_service_model(service).operation_model(call).input_shape
        validate_parameters(dict(one.properties), shape)


def values(content: Any) -> set[str]:
    """Return all values of a document, as text."""
    if isinstance(content, dict):
        return {text for one in content.values() for text in values(one)}
    if isinstance(content, list):
        return {text for one in content for text in values(one)}
    return {str(content)}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "pool"])
def test_terraform_has_the_same(tmp_path: Path, name: str) -> None:
    _, file = emitted(tmp_path, "terraform", *OPTIONS[name])
    document = json.loads(file.read_text())
    _, other = emitted(tmp_path, "cloudformation", *OPTIONS[name])
    template = json.loads(other.read_text())["Resources"]
    terraform = values(document["resource"])
    for resource in template.values():
        properties = {k: v for k, v in resource["Properties"].items() if k != "Tags"}
        expected = values(properties) - {"EndpointName", "VariantName"}  # keys in Terraform
        assert expected <= terraform
    for kind, labelled in document["resource"].items():
        for body in labelled.values():
            assert kind == "aws_appautoscaling_policy" or body["tags"]["team"] == "vision"


# From the documentation of Terraform's AWS provider.
TERRAFORM_CONFIG = {
    "name": str,
    "production_variants": [
        {
            "variant_name": "AllTraffic",
            "model_name": str,
            "initial_instance_count": 2,
            "instance_type": "ml.m5.large",
            "initial_variant_weight": 1,
            "volume_size_in_gb": 64,
            "container_startup_health_check_timeout_in_seconds": 480,
        }
    ],
}


def test_terraform_s_own_names_are_used(tmp_path: Path) -> None:
    _, file = emitted(tmp_path, "terraform", *OPTIONS["real-time"])
    resources = json.loads(file.read_text())["resource"]
    config = resources["aws_sagemaker_endpoint_configuration"]["config"]
    (variant,) = config["production_variants"]
    (expected,) = TERRAFORM_CONFIG["production_variants"]
    assert variant.keys() == expected.keys()
    assert {**expected, "model_name": variant["model_name"]} == variant
    assert config["depends_on"] == ["aws_sagemaker_model.model"]
    endpoint = resources["aws_sagemaker_endpoint"]["endpoint"]
    assert endpoint["name"] == "mine"
    assert endpoint["endpoint_config_name"] == config["name"]
    (alarm,) = resources["aws_cloudwatch_metric_alarm"].values()
    assert alarm["dimensions"] == {"EndpointName": "mine", "VariantName": "AllTraffic"}
    assert alarm["alarm_name"] == "mine-errors"
    (model,) = resources["aws_sagemaker_model"].values()
    assert model["execution_role_arn"] == ROLE
    assert model["primary_container"] == {"image": IMAGE}


def test_what_terraform_cannot_express_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, file = emitted(tmp_path, "terraform", *OPTIONS["pool"])
    assert code == 2
    assert "no InstancePools" in capsys.readouterr().err
    assert not file.exists()


def test_the_cdk_app_includes_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, file = emitted(tmp_path, "cdk", *OPTIONS["real-time"])
    assert code == 0
    _, template = emitted(tmp_path / "..", "cloudformation", *OPTIONS["real-time"])
    seen: list[Any] = []

    class Node:
        def __init__(self, *arguments: Any, **how: Any) -> None:
            seen.append((arguments[1:], how))

        def synth(self) -> None:
            seen.append("synth")

    cdk = types.ModuleType("aws_cdk")
    include = types.ModuleType("aws_cdk.cloudformation_include")
    cdk.App, cdk.Stack, include.CfnInclude = Node, Node, Node  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_cdk", cdk)
    monkeypatch.setitem(sys.modules, "aws_cdk.cloudformation_include", include)
    runpy.run_path(str(file))
    (included,) = [Path(one[1]["template_file"]) for one in seen if "template_file" in one[1]]
    assert included.read_text() == template.read_text()
    assert seen[-1] == "synth"
    assert re.search("mine", seen[1][0][0])


def test_cloudformation_makes_each_after_what_it_names(tmp_path: Path) -> None:
    _, file = emitted(tmp_path, "cloudformation", *OPTIONS["real-time"])
    resources = json.loads(file.read_text())["Resources"]
    assert [(name, one.get("DependsOn")) for name, one in resources.items()] == [
        ("Model", None),
        ("Config", ["Model"]),
        ("Alarm", ["Config"]),
        ("Endpoint", ["Alarm"]),
        ("Target", ["Endpoint"]),
        ("Policy", ["Target"]),
    ]
