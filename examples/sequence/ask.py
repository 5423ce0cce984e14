"""Ask a stateful model with boto3, as on Amazon SageMaker.

usage: python ask.py http://127.0.0.1:8080
"""

import json
import sys

import boto3
from botocore import UNSIGNED
from botocore.config import Config

client = boto3.client(
    "sagemaker-runtime",
    endpoint_url=sys.argv[1],
    region_name="us-east-1",  # any, but boto3 wants one
    config=Config(signature_version=UNSIGNED),
)


def ask(number: float, session: str, **beside: bool) -> tuple[float, dict]:
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [number]}
    body = {"modelname": "total", "inputs": [tensor], **beside}
    answer = client.invoke_endpoint(
        EndpointName="any", ContentType="application/json", SessionId=session, Body=json.dumps(body)
    )
    return json.load(answer["Body"])["outputs"][0]["data"][0], answer


total, answer = ask(10, "NEW_SESSION")
session = answer["NewSessionId"].partition(";")[0]  # "…; Expires=…"
print("begun:", total)
print("goes on:", ask(5, session)[0])
total, answer = ask(4, session, sequence_end=True)
print("ended:", total, answer["ClosedSessionId"] == session)
try:
    ask(1, session)
except client.exceptions.ModelError as error:
    print("after the end:", error.response["OriginalStatusCode"])
