"""AWS as moto has it, what moto lacks, and what is in it, asked without the code under test."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import botocore.loaders
import botocore.session
import pytest
from moto import mock_aws
from moto.applicationautoscaling.models import applicationautoscaling_backends
from moto.core import DEFAULT_ACCOUNT_ID
from moto.sagemaker.models import sagemaker_backends

from tests.support.quantize import CONFIG, TOML, conv_net
from tool.__main__ import main
from tool.deploy import wait
from tool.deploy.resources import artifacts
from tool.pack.archive import write_archive
from tool.pack.contents import contents_of

REGION = "eu-central-1"
BUCKET = f"sagemaker-{REGION}-{DEFAULT_ACCOUNT_ID}"
ROLE = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/service"
REGISTRY = f"{DEFAULT_ACCOUNT_ID}.dkr.ecr.{REGION}.amazonaws.com"
IMAGE = f"{REGISTRY}/theirs:1"
SCALED = ("--autoscale", "1", "4", "--invocations", "100")
MADE = [
    "CreateRepository",
    "docker push",
    "PutObject",
    "CreateModel",
    "CreateEndpointConfig",
    "PutMetricAlarm",
    "CreateEndpoint",
    "RegisterScalableTarget",
    "PutScalingPolicy",
]
CHANGED = ["CreateModel", "CreateEndpointConfig", "UpdateEndpoint", "AddTags"]
AFTER_CHANGE = ["DeleteEndpointConfig", "DeleteModel"]
REMOVED = [
    "DeleteScalingPolicy",
    "DeregisterScalableTarget",
    "DeleteEndpoint",
    "DeleteAlarms",
    "DeleteEndpointConfig",
    "DeleteModel",
    "DeleteObject",
    "BatchDeleteImage",
    "DeleteRepository",
]
READS = ("Describe", "List", "Get", "Head", "Invoke")


LOADER = botocore.loaders.create_loader()  # reads descriptions of services once, not per test


def session() -> boto3.Session:
    core = botocore.session.Session()
    core.register_component("data_loader", LOADER)
    return boto3.Session(botocore_session=core)


@dataclass
class Cloud:
    """An account, and the command that is run on it."""

    models: Path
    archive: Path
    capsys: Any
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # that change something
    on_change: Callable[[str, str], None] = lambda *_: None
    update_fails: bool = False
    clients: dict[str, Any] = field(default_factory=dict)  # of a session without these hooks

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run `dispatcher deploy`; return the exit code and all that it prints."""
        code = main(["deploy", *arguments])
        printed = self.capsys.readouterr()
        return code, printed.out + printed.err

    def deploy(self, *arguments: str, word: str = "create", image: str = IMAGE) -> tuple[int, str]:
        """Deploy without asking the models, unless the arguments have `--ask`."""
        quiet = () if "--ask" in arguments else ("--no-ask",)
        return self.run(word, "mine", "--image", image, "--role", ROLE, *quiet, *arguments)

    def client(self, service: str) -> Any:
        if service not in self.clients:
            self.clients[service] = session().client(service, region_name=REGION)
        return self.clients[service]

    def state(self) -> dict[str, list[str]]:
        """Return the names of all that there is."""
        sagemaker, ecr = self.client("sagemaker"), self.client("ecr")
        scaling = self.client("application-autoscaling")
        objects = self.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())
        targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")
        policies = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")
        alarms = self.client("cloudwatch").describe_alarms()["MetricAlarms"]
        found = {
            "models": [one["ModelName"] for one in sagemaker.list_models()["Models"]],
            "configs": [
                one["EndpointConfigName"]
                for one in sagemaker.list_endpoint_configs()["EndpointConfigs"]
            ],
            "endpoints": [one["EndpointName"] for one in sagemaker.list_endpoints()["Endpoints"]],
            "alarms": [one["AlarmName"] for one in alarms],
            "targets": [one["ResourceId"] for one in targets["ScalableTargets"]],
            "policies": [one["PolicyName"] for one in policies["ScalingPolicies"]],
            "objects": [one["Key"] for one in objects],
            "repositories": [
                one["repositoryName"] for one in ecr.describe_repositories()["repositories"]
            ],
        }
        return {kind: sorted(names) for kind, names in found.items()}

    def endpoint(self, name: str = "mine") -> Any:
        """Return moto's own record of the endpoint."""
        return sagemaker_backends[DEFAULT_ACCOUNT_ID][REGION].endpoints[name]

    def changes(self) -> list[str]:
        """Return the calls that changed something since the last time."""
        found = [name for name, _ in self.calls]
        self.calls.clear()
        return found

    def interrupt(self, number: int, when: str) -> None:
        """Let Ctrl-C come before or after the n-th call that changes something, from 0."""
        left = [number]

        def change(moment: str, _name: str) -> None:
            if moment == when:
                left[0] -= 1
                if left[0] == -1:
                    signal.raise_signal(signal.SIGINT)  # also where a thread uploads

        self.on_change = change

    def parameters(self, call: str) -> dict[str, Any]:
        """Return what SageMaker was sent in the last call of a name."""
        return json.loads([params for name, params in self.calls if name == call][-1]["body"])

    def note(self, model: Any, params: dict[str, Any], **_: Any) -> Any:
        """Note a call that changes something; answer the one that moto lacks."""
        if model.name.startswith(READS):
            return None
        self.on_change("before", model.name)
        self.calls.append((model.name, params))
        if model.name != "UpdateEndpoint":
            return None
        wanted = json.loads(params["body"])
        endpoint = self.endpoint()
        if self.update_fails:
            endpoint.failure_reason = "an alarm went off"
        else:
            endpoint.endpoint_config_name = wanted["EndpointConfigName"]
            endpoint.failure_reason = None
        return type("Answer", (), {"status_code": 200})(), {"EndpointArn": endpoint.arn}

    def done(self, model: Any, **_: Any) -> None:
        if not model.name.startswith(READS):
            self.on_change("after", model.name)


@pytest.fixture
def cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cloud]:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
        ("AWS_DEFAULT_REGION", REGION),
        ("AWS_CONFIG_FILE", str(tmp_path / "no-config")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wait, "POLL_S", 0.0)
    net = tmp_path / "models" / "net"
    conv_net(net / "1" / "model.onnx")
    (net / "config.pbtxt").write_text(CONFIG)
    (net / "dispatch.toml").write_text(TOML)
    (net / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    archive = tmp_path / "model.tar.gz"
    write_archive(contents_of(tmp_path / "models"), archive)
    found = Cloud(tmp_path / "models", archive, capsys)
    with mock_aws():
        boto3.DEFAULT_SESSION = session()
        boto3.DEFAULT_SESSION.events.register("before-call", found.note)
        boto3.DEFAULT_SESSION.events.register("after-call", found.done)
        client = found.client("s3")
        client.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        found.client("ecr").create_repository(repositoryName="theirs")
        push(found, "theirs", "1")
        yield found
        for backend in (applicationautoscaling_backends, sagemaker_backends):
            backend[DEFAULT_ACCOUNT_ID][REGION].reset()
    boto3.DEFAULT_SESSION = None


def push(cloud: Cloud, repository: str, tag: str, content: str = "") -> None:
    """Put an image into a repository, as `docker push` does."""
    cloud.client("ecr").put_image(
        repositoryName=repository,
        imageManifest=json.dumps({"schemaVersion": 2, "content": f"{tag} {content}"}),
        imageManifestMediaType="application/vnd.oci.image.manifest.v1+json",
        imageTag=tag,
    )


@pytest.fixture
def docker(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A Docker that has one image, and notes what it is asked."""
    asked: list[tuple[str, ...]] = []

    def answer(*arguments: str, **how: Any) -> str:
        asked.append(arguments)
        if arguments[0] == "push":
            repository, _, tag = arguments[1].partition("/")[2].rpartition(":")
            cloud.calls.append(("docker push", {}))
            cloud.on_change("before", "docker push")
            push(cloud, repository, tag)
            cloud.on_change("after", "docker push")
        return f"sha256:{'0123456789abcdef' * 4}\n" if arguments[0] == "image" else ""

    monkeypatch.setattr(artifacts, "docker", answer)
    monkeypatch.setattr("tool.deploy.source.docker", answer)
    return asked
