"""Bad input: a sentence with the fix, and the same state as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID

from tests.tool.deploy.conftest import BUCKET, REGISTRY, ROLE, Cloud

OTHER = REGISTRY.replace("eu-central-1", "us-east-1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--image", f"{REGISTRY}/theirs:9"), "aws ecr describe-images"),
        (("--image", f"{REGISTRY}/nobodys:1"), "look at the image's name"),
        (("--image", f"{OTHER}/theirs:1"), "give --region us-east-1"),
        (("--image", "registry.example/theirs:1"), "IMAGE@sha256:"),
        (("--image", ""), "--image"),
        (("--role", "me"), "docs/sagemaker.md"),
        (("--model", "absent.tar.gz"), "there is no 'absent.tar.gz'"),
        (("--bucket", "nonsense"), "expected s3://BUCKET/PREFIX"),
        (("--bucket", "s3://nobodys"), "aws s3 mb"),
        (("--serverless", "1000"), "expected 1024"),
        (("--serverless", "1024", "--instance", "ml.m5.large"), "has no instances"),
        (("--autoscale", "1", "2"), "--invocations"),
        (("--autoscale", "0", "2", "--invocations", "3"), "MIN above 0"),
        (("--backlog", "3", "--autoscale", "0", "2"), "--async"),
        (("--canary", "60"), "--canary"),
        (("--async", "out"), "expected s3://BUCKET/PREFIX"),
        (("--env", "A"), "expected NAME=VALUE"),
        (("--emit", "pulumi", "x"), "expected cloudformation, terraform, cdk"),
        (("--emit", "cdk", ""), "the file of --emit is ''; expected a name"),
        (("--prices", "absent.json"), "absent.json cannot be read"),
        (("--variant", "AllTraffic", "1", "x"), "another name than the others'"),
        (("--variant", "new", "0", "x"), "expected a number above 0"),
        (("--variant", "new", "1", f"{REGISTRY}/theirs:9"), "aws ecr describe-images"),
        (("--serverless", "1024", "--variant", "new", "1", "x"), "or --variant"),
        (("--ask", "absent.json"), "expected a file with a request"),
    ],
)
def test_a_mistake_in_the_options(cloud: Cloud, arguments: tuple[str, ...], text: str) -> None:
    before = cloud.state()
    model = ("--model", str(cloud.archive)) if "--bucket" in arguments else ()
    code, said = cloud.deploy(*model, *arguments)
    assert code == 2
    assert text in said
    assert cloud.state() == before


def prices(**fields: Any) -> str:
    return json.dumps({"date": "2026", "region": "x", "instances": {"ml.m5.large": fields}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", 'no object "instances"'),
        ('{"instances": {"ml.m5.large": 1}}', 'no text "date"'),
        (prices(), "usd_per_hour of ml.m5.large is null"),
        (prices(usd_per_hour=-1), "is -1; expected a number above 0"),
        (prices(usd_per_hour="1"), 'is "1"'),
        (prices(usd_per_hour=float("nan")), "is NaN"),
        (prices(usd_per_hour=True), "is true"),
    ],
)
def test_a_file_of_prices_that_cannot_be_used(
    cloud: Cloud, tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "prices.json").write_text(text)
    code, said = cloud.deploy("--prices", str(tmp_path / "prices.json"), "--dry-run")
    assert code == 2
    assert expected in said


@pytest.mark.parametrize("words", [("a_b",), ("create",), ("mine", "yours"), ("x" * 55,)])
def test_a_mistake_in_the_name(cloud: Cloud, words: tuple[str, ...]) -> None:
    code, said = cloud.run(*words, "--image", "x", "--role", ROLE)
    assert code == 2
    assert "expected" in said


def test_a_corrupt_archive(cloud: Cloud) -> None:
    before = cloud.state()
    content = cloud.archive.read_bytes()
    cloud.archive.write_bytes(content[: len(content) // 2])
    code, said = cloud.deploy("--model", str(cloud.archive))
    assert code == 2
    assert "cannot be read as a tar.gz" in said
    assert cloud.state() == before


def test_a_folder_with_mistakes(cloud: Cloud) -> None:
    before = cloud.state()
    (cloud.models / "net" / "1" / "model.onnx").write_bytes(b"")
    code, said = cloud.deploy("--model", str(cloud.models))
    assert code == 2
    assert "has mistakes" in said
    assert cloud.state() == before


def test_no_credentials(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    boto3.DEFAULT_SESSION = None
    code, said = cloud.deploy()
    assert code == 2
    assert "aws configure" in said


def test_no_region(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    boto3.DEFAULT_SESSION = None
    code, said = cloud.deploy()
    assert code == 2
    assert "--region" in said


def test_a_name_that_is_taken(cloud: Cloud) -> None:
    sagemaker = cloud.client("sagemaker")
    variant = {"VariantName": "a", "ModelName": "m", "InitialInstanceCount": 1}
    sagemaker.create_model(
        ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": f"{REGISTRY}/theirs:1"}
    )
    sagemaker.create_endpoint_config(
        EndpointConfigName="c", ProductionVariants=[{**variant, "InstanceType": "ml.m5.large"}]
    )
    sagemaker.create_endpoint(EndpointName="mine", EndpointConfigName="c")
    before = cloud.state()
    for word in ("create", "update"):
        code, said = cloud.deploy(word=word)
        assert code == 2
        assert "choose another NAME" in said
        assert cloud.state() == before
    code, said = cloud.run("delete", "mine", "--yes")
    assert code == 0
    assert "there is nothing with the tag" in said
    assert cloud.state() == before


def test_a_repository_that_is_another_s(cloud: Cloud, docker: list[tuple[str, ...]]) -> None:
    cloud.client("ecr").create_repository(repositoryName="mine")
    before = cloud.state()
    code, said = cloud.deploy(image="local")
    assert code == 2
    assert "choose another NAME" in said
    assert cloud.state() == before
    assert cloud.deploy("--repository", "theirs", image="local")[0] == 0


def test_an_endpoint_with_a_longer_name_is_left_alone(cloud: Cloud, tmp_path: Path) -> None:
    cloud.deploy("--model", str(cloud.archive))
    before = cloud.state()
    options = ("--image", f"{REGISTRY}/theirs:1", "--role", ROLE, "--no-ask")
    assert cloud.run("mine-too", *options, "--model", str(cloud.archive))[0] == 0
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    left = cloud.state()
    assert left["endpoints"] == ["mine-too"]
    assert left["objects"][0].startswith("mine-too/")
    assert cloud.run("delete", "mine-too", "--yes")[0] == 0
    assert cloud.state()["objects"] == []
    assert before["endpoints"] == ["mine"]


def test_an_update_of_nothing(cloud: Cloud) -> None:
    before = cloud.state()
    code, said = cloud.deploy(word="update")
    assert code == 2
    assert "without the word `update`" in said
    assert cloud.state() == before


def test_an_object_of_others_in_the_bucket_is_left(cloud: Cloud) -> None:
    cloud.client("s3").put_object(Bucket=BUCKET, Key="mine/theirs.txt", Body=b"x")
    cloud.deploy("--model", str(cloud.archive))
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    assert cloud.state()["objects"] == ["mine/theirs.txt"]
    assert DEFAULT_ACCOUNT_ID in BUCKET
