"""Pictures and answers in S3, through the whole chain: NGINX, gunicorn, Triton and ResNet-50."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import PICTURES, PROJECT, Endpoint, picture, running

if TYPE_CHECKING:
    from tests.support.s3 import S3Server

CAT = "images/chelsea.png"


@pytest.fixture(scope="module")
def by_key(
    models: None, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    """The container with ResNet-50 alone, loaded by the first request, and a bucket."""
    folder = tmp_path_factory.mktemp("by_key")
    (folder / "models").mkdir()
    (folder / "models" / "resnet").symlink_to(PROJECT / "model_repository" / "resnet")
    s3.put(CAT, (PICTURES / "chelsea.png").read_bytes())
    settings = s3.environment(
        MODEL_REPOSITORY=str(folder / "models"),
        LOAD_ON_DEMAND="true",
        MODEL_SERVER_LOG_LEVEL="debug",
    )
    with running(folder, **settings) as endpoint:
        yield endpoint


def test_a_picture_by_key_has_the_result_of_the_picture_itself(
    by_key: Endpoint, s3: S3Server
) -> None:
    named = by_key.ask(modelname="resnet", payload={"s3_key": CAT})
    assert named.status == 200, named.json
    sent = by_key.ask(modelname="resnet", payload={"img": picture(PICTURES / "chelsea.png")})
    assert "Egyptian cat" in sent.json["result"][0], sent.json
    assert named.json == sent.json
    body = json.dumps({"s3_key": CAT, "output": {}})
    stored = by_key.call("/infer/resnet", body, headers={"Content-Type": "application/json"})
    place = f"results/resnet/latest/pictures/{CAT}.json"
    assert stored.json["output"]["s3_key"] == place
    content, content_type = s3.read(place)
    assert (json.loads(content), content_type) == (sent.json, "application/json")
    missing = by_key.ask(modelname="resnet", payload={"s3_key": "images/none.jpg"})
    assert (missing.status, missing.json["error"]["code"]) == (404, "object_not_found")


def test_the_time_of_s3_is_logged_and_counted_and_no_secret_is(by_key: Endpoint) -> None:
    from tests.support.s3 import FULL, SECRET  # noqa: PLC0415  boto3 takes half a second

    assert by_key.ask(modelname="resnet", payload={"s3_key": CAT}).status == 200
    page = by_key.call("/metrics").body.decode()
    assert 'dispatcher_s3_seconds_count{model="resnet",status="200"}' in page
    log: Path = by_key.log
    assert '"s3_s": ' in log.read_text()
    for word in (SECRET, FULL, "Signature="):
        assert word not in log.read_text()
