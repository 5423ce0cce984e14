"""SageMaker's Python SDK against `emulate`, as users write it, but for its address."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.emulate.test_async import written
from tests.support.emulate import Emulated, emulated
from tests.support.s3 import BUCKET, S3Server
from tests.tool.conftest import python_with

pytestmark = pytest.mark.slow

# Of the third version, the package that has its resources.
SDK = {2: "sagemaker==2.257.7", 3: "sagemaker-core==2.27.0"}
PREDICTOR = """
import json

from sagemaker.async_inference import WaiterConfig
from sagemaker.deserializers import JSONDeserializer
from sagemaker.predictor import Predictor
from sagemaker.predictor_async import AsyncPredictor
from sagemaker.serializers import JSONSerializer

predictor = Predictor("mine", serializer=JSONSerializer(), deserializer=JSONDeserializer())
echo = predictor.predict({"x": 1}, target_variant="AllTraffic")
text = Predictor("mine").predict(b"abc", custom_attributes="upper").decode()
stream = predictor.predict_stream({"x": 1}, custom_attributes="stream=3")
pieces = [piece.decode() for piece in stream]
later = AsyncPredictor(predictor).predict(
    {"x": 1},
    input_path="s3://BUCKET/in/predictor.json",
    waiter_config=WaiterConfig(max_attempts=20, delay=1),
)
try:
    predictor.predict({}, custom_attributes="status=418")
except Exception as error:
    refused = str(error)
"""
ENDPOINT = """
import json

from sagemaker.core.deserializers import JSONDeserializer
from sagemaker.core.resources import Endpoint
from sagemaker.core.serializers import JSONSerializer

endpoint = Endpoint.get(endpoint_name="mine")
assert endpoint.endpoint_status == "InService"
endpoint.wait_for_status("InService")
text = endpoint.invoke(body=b"abc", custom_attributes="upper").body.read().decode()
place = endpoint.invoke_async(input_location="s3://BUCKET/in/endpoint.json").output_location
try:
    endpoint.invoke(body=b"{}", custom_attributes="status=418")
except Exception as error:
    refused = str(error)
endpoint.serializer, endpoint.deserializer = JSONSerializer(), JSONDeserializer()
more = {"content_type": "application/json", "target_variant": "AllTraffic"}
echo = endpoint.invoke(body={"x": 1}, **more).body
later = place
pieces = None  # its invoke_with_response_stream cannot read botocore's own EventStream
"""
SHOW = """
print(json.dumps([echo, text, pieces, later, refused]))
"""


@pytest.fixture(scope="module")
def service(
    container: Path, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulated]:
    with emulated(
        tmp_path_factory.mktemp("emulate"),
        *(container, "--async-output", f"s3://{BUCKET}/out", "--s3-endpoint-url", s3.url),
        environment=s3.environment(),
    ) as running:
        yield running


@pytest.mark.parametrize(("version", "program"), [(2, PREDICTOR), (3, ENDPOINT)])
def test_the_sdk_works_as_it_does_with_the_service(
    version: int, program: str, service: Emulated, s3: S3Server, tmp_path: Path
) -> None:
    s3.put("in/endpoint.json", b'{"x": 1}')
    address = f"http://127.0.0.1:{service.port}"
    done = subprocess.run(
        [python_with(tmp_path, SDK[version]), "-c", program.replace("BUCKET", BUCKET) + SHOW],
        env={
            **os.environ,
            **s3.environment(),
            "HOME": str(tmp_path),
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL_SAGEMAKER": address,
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": address,
            "AWS_ENDPOINT_URL_S3": s3.url,
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    echo: Any
    echo, text, pieces, later, refused = json.loads(done.stdout.splitlines()[-1])
    assert echo["headers"]["content-type"] == "application/json"
    assert echo["headers"]["x-amzn-sagemaker-target-variant"] == "AllTraffic"
    assert (echo["size"], text) == (len('{"x": 1}'), "ABC")
    if version == 2:
        assert pieces == ["part 0", "part 1", "part 2"]
        assert (later["path"], later["size"]) == ("/invocations", len('{"x": 1}'))
    else:
        content, _ = written(s3, later)
        assert json.loads(content)["size"] == len('{"x": 1}')
    assert "ModelError" in refused
    assert "the reason" in refused
