"""The task definitions: as Amazon ECS takes them, and as the server needs them."""

from __future__ import annotations

import json
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from dispatcher.settings import read_settings
from tests.deploy.conftest import DEPLOY, VARIABLES
from tests.deploy.test_chart import Render

FILES = sorted((DEPLOY / "ecs").glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def task(request: pytest.FixtureRequest) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(request.param.read_text())
    return definition


@pytest.fixture
def server(task: dict[str, Any]) -> dict[str, Any]:
    (container,) = task["containerDefinitions"]
    return dict(container)


def enumerations(shape: Any, value: Any) -> None:
    """Check what botocore does not: the values of enumerations."""
    if shape.type_name == "structure":
        for name, one in value.items():
            enumerations(shape.members[name], one)
    elif shape.type_name == "list":
        for one in value:
            enumerations(shape.member, one)
    elif getattr(shape, "enum", None):
        assert value in shape.enum


def test_botocore_takes_it(task: dict[str, Any]) -> None:
    service = botocore.session.get_session().get_service_model("ecs")
    shape = service.operation_model("RegisterTaskDefinition").input_shape
    assert ParamValidator().validate(task, shape).generate_report() == ""
    enumerations(shape, task)
    assert ParamValidator().validate({**task, "familie": "x"}, shape).has_errors()


def test_the_server_takes_its_settings(server: dict[str, Any]) -> None:
    environment = {one["name"]: one["value"] for one in server["environment"]}
    assert set(environment) <= VARIABLES
    settings = read_settings(environment)
    assert server["portMappings"][0]["containerPort"] == settings.port
    assert server["stopTimeout"] == settings.stop_timeout + 3


def test_its_health_check_is_the_liveness_probe_of_the_chart(
    server: dict[str, Any], render: Render
) -> None:
    """A task that fails it is replaced. It may be silent for a minute, and load for longer."""
    command = " ".join(server["healthCheck"]["command"])
    assert render().server()["livenessProbe"]["httpGet"]["path"] in command
    check = server["healthCheck"]
    assert check["interval"] * check["retries"] >= 60
    # The limits of ECS.
    assert 5 <= check["interval"] <= 300
    assert 2 <= check["timeout"] <= 60
    assert 1 <= check["retries"] <= 10
    assert 0 <= check["startPeriod"] <= 300


def test_fargate_is_given_only_what_it_has() -> None:
    """It has no size of /dev/shm, tmpfs, security options or stop timeout above 120 s."""
    (container,) = json.loads((DEPLOY / "ecs" / "fargate.json").read_text())["containerDefinitions"]
    assert set(container["linuxParameters"]) <= {"capabilities", "initProcessEnabled"}
    assert container["linuxParameters"]["capabilities"] == {"drop": ["ALL"]}
    assert "dockerSecurityOptions" not in container
    assert container["stopTimeout"] <= 120
    assert int(container["user"]) > 0


def test_on_ec2_only_tmp_and_shared_memory_can_be_written() -> None:
    (container,) = json.loads((DEPLOY / "ecs" / "ec2.json").read_text())["containerDefinitions"]
    assert container["readonlyRootFilesystem"] is True
    assert [one["containerPath"] for one in container["linuxParameters"]["tmpfs"]] == ["/tmp"]
    assert container["linuxParameters"]["sharedMemorySize"] == 1024  # as the chart's 1Gi
    assert int(container["user"]) > 0
