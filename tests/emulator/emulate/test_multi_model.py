"""Multi-model endpoints: models come and go, by the container's answers."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.support.emulate import Emulated, emulated


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three archives and a folder, each with one file of 1,000 bytes; and two that are wrong."""
    folder = tmp_path_factory.mktemp("models")
    files = tmp_path_factory.mktemp("files")
    for name in ("a", "b", "c", "broken"):
        (files / name).write_bytes(bytes(1000))
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(files / name, name)
    (folder / "plain").mkdir()
    (folder / "plain" / "d").write_bytes(bytes(1000))
    (folder / "damaged.tar.gz").write_bytes((folder / "a.tar.gz").read_bytes()[:-30])
    (files / "link").symlink_to("a")
    with tarfile.open(folder / "link.tar.gz", "w:gz") as archive:
        archive.add(files / "link", "link")
    return folder


@pytest.fixture(scope="module")
def small(
    container: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulated]:
    """A container with room for two models, and then answers 507."""
    with emulated(
        tmp_path_factory.mktemp("emulate"),
        *(container, "--multi-model", models, "--env", "CAPACITY=2"),
    ) as running:
        yield running


def test_a_model_is_loaded_under_an_opaque_name_when_first_asked(small: Emulated) -> None:
    body, _ = small.invoke(TargetModel="a.tar.gz")
    came = json.loads(body)
    assert re.fullmatch(r"/models/[0-9a-f]{32}/invoke", came["path"])
    assert came["headers"]["x-amzn-sagemaker-target-model"] == "a.tar.gz"
    assert came["files"] == ["a"]
    assert came["variables"]["SAGEMAKER_MULTI_MODEL"] == "true"
    small.invoke(TargetModel="a.tar.gz")
    assert small.lines.count("loaded a.tar.gz as") == 1
    with pytest.raises(ClientError, match="missing a target model header"):
        small.invoke()


def test_another_model_is_unloaded_where_the_container_answers_507(small: Emulated) -> None:
    for name in ("a", "b", "a", "plain"):
        body, _ = small.invoke(TargetModel=f"{name}.tar.gz")
    assert json.loads(body)["files"] == ["d"]
    after = small.lines.rpartition("POST /models is answered with 507")[2]
    assert "unloaded b.tar.gz" in after  # a was asked more recently
    assert "unloaded a.tar.gz" not in after
    body, _ = small.invoke(TargetModel="b.tar.gz")
    assert json.loads(body)["files"] == ["b"]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("none.tar.gz", "ValidationError", "Failed to download model data.*a.tar.gz"),
        ("../models/a.tar.gz", "ValidationError", "Failed to download model data"),
        ("damaged.tar.gz", "ValidationError", "Failed to extract.*cannot be read as a tar.gz"),
        ("link.tar.gz", "ValidationError", "Failed to extract.*link is a link"),
        ("broken.tar.gz", "ModelError", r"client error \(400\).*the model is broken"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    small: Emulated, name: str, code: str, message: str
) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        small.invoke(TargetModel=name)
    assert caught.value.response["Error"]["Code"] == code
    small.invoke(TargetModel="a.tar.gz")  # the others are served as before
