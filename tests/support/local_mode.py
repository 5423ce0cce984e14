"""Deploys the image with the SageMaker SDK's local mode, asks it, and deletes it.

Not part of the test run: the SDK is large, and wants an environment of its own, a Docker engine
with Compose v2, and port 8080.

    python3 -m venv sdk && sdk/bin/pip install sagemaker==3.27.0
    AWS_DEFAULT_REGION=us-east-1 AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none \
      sdk/bin/python tests/support/local_mode.py triton-dispatcher
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sagemaker.core.local.local_session import LocalSession

PICTURE = Path(__file__).parent.parent / "pictures" / "coffee.png"
NAME = "triton-dispatcher-local"


def main(image: str) -> None:
    session = LocalSession()
    session.config = {"local": {"local_code": True, "serving_port": 8080}}
    client = session.sagemaker_client
    runtime = session.sagemaker_runtime_client

    def invoke(body: bytes | str, content_type: str) -> Any:
        answer = runtime.invoke_endpoint(
            Body=body, EndpointName=NAME, ContentType=content_type, Accept="application/json"
        )
        return json.loads(answer["Body"].read())

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").touch()  # the SDK refuses an empty folder
        client.create_model(
            ModelName=NAME,
            PrimaryContainer={
                "Image": image,
                "ModelDataUrl": f"file://{folder}",
                "Environment": {"MODEL_SERVER_LOG_LEVEL": "info"},
            },
        )
        variant = {
            "ModelName": NAME,
            "VariantName": "AllTraffic",
            "InstanceType": "local",
            "InitialInstanceCount": 1,
        }
        client.create_endpoint_config(EndpointConfigName=NAME, ProductionVariants=[variant])
        client.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
        try:
            assert client.describe_endpoint(EndpointName=NAME)["EndpointStatus"] == "InService"
            img = base64.b64encode(PICTURE.read_bytes()).decode()
            answer = invoke(
                json.dumps({"modelname": "resnet", "payload": {"img": img}}), "application/json"
            )
            assert answer["result"][0].endswith(":espresso"), answer
            text = "The world has [MASK] people."
            answer = invoke(
                json.dumps({"modelname": "bert_base", "payload": {"text": text}}),
                "application/json",
            )
            assert answer["result"][0]["token"] == "The world has many people.", answer
        finally:
            before = time.monotonic()
            client.delete_endpoint(EndpointName=NAME)
            client.delete_endpoint_config(EndpointConfigName=NAME)
            client.delete_model(ModelName=NAME)
            sys.stdout.write(f"deleted in {time.monotonic() - before:.1f} s\n")
    sys.stdout.write("deployed, asked and deleted\n")


if __name__ == "__main__":
    main(sys.argv[1])
