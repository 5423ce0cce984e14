"""What plain boto3 sees of `emulate`, before a real HTTP server as the container."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EventStreamError

from tests.support.emulate import Emulated, emulated


@pytest.fixture(scope="module")
def service(container: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    model = tmp_path_factory.mktemp("model")
    with emulated(
        tmp_path_factory.mktemp("emulate"),
        *(container, "--serverless", "--timeout=1.5"),
        *("--env", "GREETING=a=b", "--model", model),
    ) as running:
        yield running


def test_a_container_gets_what_boto3_sends(service: Emulated) -> None:
    body, answer = service.invoke(
        b"\0\xff",
        ContentType="image/x",
        Accept="text/y",
        InferenceId="an id",
        TargetVariant="AllTraffic",
        SessionId="NEW_SESSION",
    )
    came = json.loads(body)
    assert (came["path"], came["size"]) == ("/invocations", 2)
    sent = {
        "content-type": "image/x",
        "accept": "text/y",
        "x-amzn-sagemaker-inference-id": "an id",
        "x-amzn-sagemaker-target-variant": "AllTraffic",
        "x-amzn-sagemaker-session-id": "NEW_SESSION",
    }
    assert came["headers"].items() >= sent.items()
    assert not {"authorization", "x-amz-date", "user-agent"} & set(came["headers"])
    assert came["variables"]["GREETING"] == "a=b"
    assert Path(came["variables"]["MODEL_DIR"]).is_dir()
    assert came["variables"]["MODEL_DIR_USE"] == "instead"
    assert answer["ContentType"] == "application/json"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert "CustomAttributes" not in answer  # only what the container itself sets
    body, answer = service.invoke(b"abc", CustomAttributes="upper")
    assert (body, answer["CustomAttributes"]) == (b"ABC", "done")
    assert "ContentType" not in answer


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("status", "side"), [(400, "client"), (507, "server"), (302, "server")])
def test_an_error_of_the_container_is_a_model_error(
    service: Emulated, status: int, side: str, *, streamed: bool
) -> None:
    runtime = service.runtime
    call = runtime.invoke_endpoint_with_response_stream if streamed else runtime.invoke_endpoint
    with pytest.raises(ClientError) as caught:
        call(EndpointName="mine", Body=b"x", CustomAttributes=f"status={status}")
    error: Any = caught.value.response
    assert type(caught.value).__name__ == "ModelError"
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert error["OriginalStatusCode"] == status
    assert error["OriginalMessage"] == ("the reason " * 400)[:2048]
    assert error["LogStreamArn"].endswith(":log-group:/aws/sagemaker/Endpoints/mine")
    assert f'Received {side} error ({status}) from primary with message "the' in str(caught.value)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [("sleep=2", "Your invocation timed out while waiting"), ("close", "closed without an answer")],
)
def test_no_answer_is_a_model_error_with_status_0(
    service: Emulated, attributes: str, message: str
) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        service.invoke(CustomAttributes=attributes)
    assert caught.value.response["OriginalStatusCode"] == 0


REFUSED = {
    "a body of more than 4 MB": ({"body": bytes(4 * 2**20 + 1)}, "length less than or equal to"),
    "attributes of more than 1024": ({"CustomAttributes": "a" * 1025}, "equal to 1024"),
    "a session of another form": ({"SessionId": "a b"}, "'sessionId' failed to satisfy"),
    "a target model": ({"TargetModel": "a"}, "not a multi-model endpoint"),
    "an unknown variant": ({"TargetVariant": "third"}, "there is: AllTraffic"),
    "an inference component": ({"InferenceComponentName": "a"}, "leave it out of the call"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_service_refuses_does_not_reach_the_container(
    service: Emulated, name: str
) -> None:
    members, message = REFUSED[name]
    with pytest.raises(ClientError, match=message) as caught:
        service.invoke(**members)
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_an_answer_is_streamed_as_it_comes(service: Emulated) -> None:
    answer = service.runtime.invoke_endpoint_with_response_stream(
        EndpointName="mine", Body=b"x", Accept="text/z", CustomAttributes="parts=3"
    )
    begin = time.monotonic()
    times, parts = [], []
    for event in answer["Body"]:
        times.append(time.monotonic() - begin)
        parts.append(event["PayloadPart"]["Bytes"])
    assert parts == [b"part 0", b"part 1", b"part 2"]
    assert times[2] - times[0] > 0.3  # the container waits 0.2 s after each
    assert answer["ContentType"] == "application/jsonlines"


def test_a_stream_that_breaks_off_is_a_model_stream_error(service: Emulated) -> None:
    answer = service.runtime.invoke_endpoint_with_response_stream(
        EndpointName="mine", Body=b"x", CustomAttributes="parts=-2"
    )
    events = iter(answer["Body"])
    assert [next(events)["PayloadPart"]["Bytes"] for _ in range(2)] == [b"part 0", b"part 1"]
    with pytest.raises(EventStreamError, match=r"ModelStreamError.*closed in the middle"):
        next(events)
    answer["Body"].close()


def test_waiters_find_the_endpoint_in_service(service: Emulated) -> None:
    sagemaker = service.client("sagemaker")
    sagemaker.get_waiter("endpoint_in_service").wait(EndpointName="mine")
    described = sagemaker.describe_endpoint(EndpointName="mine")
    assert [one["VariantName"] for one in described["ProductionVariants"]] == ["AllTraffic"]
    with pytest.raises(ClientError, match=r"does not answer SageMaker\.ListModels"):
        sagemaker.list_models()
    with pytest.raises(ClientError, match=r"does not answer POST .*/async-invocations"):
        service.runtime.invoke_endpoint_async(EndpointName="mine", InputLocation="s3://a/b")


def test_the_terminal_shows_what_happens_and_all_that_boto3_needs(service: Emulated) -> None:
    service.invoke(bytes(4 * 2**20))  # as much as is taken
    lines = service.lines
    assert "AllTraffic | the container starts" in lines
    assert "AllTraffic: InService after" in lines
    assert "InvokeEndpoint 200 in" in lines
    assert "\x1b" not in lines  # it is no terminal
    line = next(one for one in lines.splitlines() if "InService: boto3" in one)
    made, _, rest = line.partition("InService: ")[2].partition(".invoke_endpoint")
    names = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name, raising=False)
        client = eval(made, {"boto3": boto3})  # our own text
    assert client.meta.endpoint_url == f"http://127.0.0.1:{service.port}"
    assert f"AWS_REGION={client.meta.region_name}" in rest
