"""Ctrl-C at every step: the same command goes on, and a deletion leaves nothing."""

from __future__ import annotations

import pytest

from tests.tool.deploy.conftest import AFTER_CHANGE, CHANGED, MADE, REMOVED, SCALED, Cloud


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize("number", range(len(MADE)))
def test_ctrl_c_in_a_deployment(
    cloud: Cloud, docker: list[tuple[str, ...]], number: int, when: str
) -> None:
    before = cloud.state()
    arguments = ("--model", str(cloud.archive), *SCALED)
    cloud.interrupt(number, when)
    code, said = cloud.deploy(*arguments, image="local")
    assert code == 130
    assert "goes on from here" in said
    cloud.on_change = lambda *_: None
    after_ctrl_c = cloud.state()
    assert cloud.deploy(*arguments, image="local")[0] == 0
    whole = cloud.state()
    assert all(set(names) <= set(whole[kind]) for kind, names in after_ctrl_c.items())
    assert {kind: len(names) for kind, names in whole.items()} == {
        **dict.fromkeys(whole, 1),
        "repositories": 2,
    }
    assert sorted(set(cloud.changes())) == sorted(MADE)
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    assert cloud.state() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MADE)))
def test_what_ctrl_c_left_is_removed(
    cloud: Cloud, docker: list[tuple[str, ...]], number: int
) -> None:
    before = cloud.state()
    cloud.interrupt(number, "after")
    assert cloud.deploy("--model", str(cloud.archive), *SCALED, image="local")[0] == 130
    cloud.on_change = lambda *_: None
    assert cloud.state() != before
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    assert cloud.state() == before


@pytest.mark.parametrize("number", range(len(REMOVED)))
def test_ctrl_c_in_a_deletion(cloud: Cloud, docker: list[tuple[str, ...]], number: int) -> None:
    before = cloud.state()
    cloud.deploy("--model", str(cloud.archive), *SCALED, image="local")
    cloud.changes()
    cloud.interrupt(number, "after")
    assert cloud.run("delete", "mine", "--yes")[0] == 130
    assert cloud.changes() == REMOVED[: number + 1]
    cloud.on_change = lambda *_: None
    assert cloud.run("delete", "mine", "--yes")[0] == 0
    assert cloud.state() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CHANGED + AFTER_CHANGE)))
def test_ctrl_c_in_an_update(cloud: Cloud, number: int) -> None:
    cloud.deploy()
    cloud.interrupt(number, "after")
    assert cloud.deploy("--env", "A=1", word="update")[0] == 130
    cloud.on_change = lambda *_: None
    assert cloud.deploy("--env", "A=1", word="update")[0] == 0
    state = cloud.state()
    assert (len(state["models"]), len(state["configs"])) == (1, 1)
    assert cloud.endpoint().endpoint_config_name == state["configs"][0]
