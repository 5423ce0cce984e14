"""What is tried beside a model: who gets it, what changes that, and what keeps it from anybody."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clients.base import Environment
from clients.errors import BadRequest, UnknownModel
from clients.plugins.registry import load_clients
from clients.triton.server import ModelState
from dispatcher.errors import BadBody, BadModel
from dispatcher.rollout.plan import CANARY, NO_CHOICE, STABLE, Canary, Choice, Plan, Variant
from dispatcher.rollout.rollouts import Rollouts
from dispatcher.status.status import Status
from dispatcher.status.status_file import SIZE, News
from tests.support.fake_triton import FakeTriton

TWO = [ModelState("m", "1", "READY"), ModelState("m", "2", "READY")]
CANARY_2: Any = {"canary": {"version": 2, "share": 0.5}}


class Side:
    """One web worker's rollouts; several share a folder."""

    def __init__(self, folder: Path, states: list[ModelState], *, toml: str = "") -> None:
        self.states = states
        repository = folder / "models"
        for name in {state.name for state in states}:
            (repository / name).mkdir(parents=True, exist_ok=True)
            (repository / name / "dispatch.toml").write_text(toml)
        self.server = FakeTriton()
        self.registry = load_clients(Environment(self.server, repository))
        self.rollouts = Rollouts(
            folder / "rollouts",
            self.registry,
            self.server,
            lambda: Status(models=self.states),
            News(folder / "news"),
        )

    def choose(self, identity: str = "a", session: str = "") -> Choice:
        """Choose as the next request does, which follows the news first."""
        self.rollouts.news.follow()
        plan = self.rollouts.plans.get("m")
        return plan.choose("m", session, "", identity) if plan else NO_CHOICE

    def put(self, given: Any) -> Plan:
        return self.rollouts.change("m", lambda plan: plan.changed(given, 7.0))


def test_a_share_is_exact_grows_and_sticks() -> None:
    """A caller that has got the canary keeps it when the share grows."""
    some = [f"request {number}" for number in range(20_000)]
    taken = {share: {one for one in some if Variant("", "2", share).takes("m", one)}
             for share in (0.0, 0.0001, 0.05, 0.2, 1.0)}  # fmt: skip
    assert taken[0.0] == set() < taken[0.05] < taken[0.2] < taken[1.0] == set(some)
    assert len(taken[0.05]) / len(some) == pytest.approx(0.05, abs=0.005)
    assert len(taken[0.0001]) < 10
    other = {one for one in some if Variant("", "3", 0.05).takes("m", one)}
    assert len(other & taken[0.05]) < 100, "another canary has other callers"


def test_what_a_caller_sticks_to_goes_before_the_request() -> None:
    plan = Plan(canary=Canary(version="2", share=0.5, sticky="key"))

    def versions(plan: Plan, **by: str) -> set[str]:
        numbers = [str(number) for number in range(50)]
        fixed = {"session": "", "owner": "", **by}
        return {plan.choose("m", **{"request_id": one, **fixed}).version for one in numbers}

    assert versions(plan) == {"", "2"}
    assert len(versions(plan, owner="shop")) == len(versions(plan, session="s")) == 1
    plan = Plan(canary=Canary(version="2", share=0.5))
    assert versions(plan, owner="shop") == {"", "2"}
    assert len(versions(plan, session="a sequence")) == 1


def test_requests_without_a_version_are_kept_from_what_is_tried(tmp_path: Path) -> None:
    """Triton's latest would be it; probes and classes that ask others name no version either."""
    side = Side(tmp_path, TWO)
    assert side.choose() == NO_CHOICE
    assert side.server.pinned == {}
    side.put({"shadow": {"version": 2, "share": 0.1}})
    assert side.choose() == Choice("", "1", STABLE)
    assert side.server.pinned == {"m": "1"}
    side.put(CANARY_2)
    found = Counter(side.choose(str(one)).version for one in range(200))
    assert found["1"] > 50 < found["2"]
    side.states = [TWO[1]]  # version 1 was unloaded
    side.rollouts.look()
    assert side.choose() == Choice("", "", STABLE)
    waiting = side.rollouts.plans["m"].waiting
    assert "no other version of 'm' is ready" in waiting[CANARY]
    side.states = TWO
    side.rollouts.look()
    side.states = []  # it is loaded once more, and Triton lists nothing meanwhile
    side.rollouts.look()
    assert side.choose().version == "1"


def test_a_version_that_is_not_ready_gets_no_request_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(tmp_path, TWO[:1])
    why = side.put(CANARY_2).waiting[CANARY]
    assert why == (
        "version 2 of 'm' is not ready: put it there, write `version_policy { all { } }` into its "
        "config.pbtxt, then POST /load_model/m"
    )
    assert caplog.text.count(why) == 1
    side.states = [TWO[0], ModelState("m", "2", "LOADING")]
    caplog.clear()
    side.rollouts.look()
    assert not caplog.text, "it is not known yet what will be ready"
    assert {side.choose(str(one)) for one in range(50)} == {Choice("", "1", STABLE)}
    with pytest.raises(BadRequest, match="not ready"):
        side.rollouts.change("m", lambda plan: plan.promoted(8))
    side.states = TWO
    side.rollouts.look()
    assert {side.choose(str(one)).version for one in range(50)} == {"1", "2"}
    side.put({"canary": {"model": "other", "share": 1}})
    assert "'other' is not ready" in side.rollouts.plans["m"].waiting[CANARY]


def test_no_request_gets_a_version_that_is_tried_while_its_model_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At a start, and on demand, requests may come before it is known what is ready."""
    for version in "123":
        (tmp_path / "models" / "m" / version).mkdir(parents=True)
    config = tmp_path / "models" / "m" / "config.pbtxt"
    config.write_text("version_policy { specific { versions: [1, 2] } }")
    loading = [ModelState("m", "", "")]
    side = Side(tmp_path, loading, toml="canary = {version = 2, share = 1}")
    assert side.choose() == Choice("", "1", STABLE)
    assert side.rollouts.plans["m"].waiting == {CANARY: "the model itself is not loaded"}
    side.states = [TWO[1], ModelState("m", "1", "LOADING")]
    side.rollouts.look()
    assert side.server.pinned == {"m": "1"}, "which callers wait for"
    side.states = loading
    side.rollouts.look()
    assert not caplog.text
    side.rollouts.refuse_reload("m")  # it does not
    config.write_text("")  # the latest alone
    side = Side(tmp_path, loading, toml="canary = {version = 3, share = 1}")
    assert side.choose().version == ""
    with pytest.raises(BadModel, match="only version 3 would be loaded, which is tried") as found:
        side.rollouts.refuse_reload("m")
    assert "version_policy { all { } }" in found.value.hint
    side.put({"canary": None})
    side.rollouts.refuse_reload("m")


def test_all_web_workers_follow_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """And one alone has the canary fall back, whoever sees it first."""
    one, other = Side(tmp_path, TWO), Side(tmp_path, TWO)
    one.put({"canary": {"version": 2, "share": 1}})
    assert other.choose() == Choice("", "2", CANARY)
    assert not one.rollouts.fall_back("m", "of another canary", 6.0)
    fell = [side.rollouts.fall_back("m", "it failed", 7.0) for side in (other, one, other)]
    assert fell == [True, False, False]
    later = Side(tmp_path, TWO)
    for side in (one, other, later):
        assert side.choose() == Choice("", "1", STABLE)
        assert side.rollouts.plans["m"].back == "it failed"
    one.put({"canary": {"share": 0.9}})  # somebody says otherwise
    for side in (other, later):
        assert side.choose().of
        assert side.rollouts.plans["m"] == one.rollouts.plans["m"]
        assert side.rollouts.plans["m"].canary == Canary(version="2", share=0.9)


def test_what_is_promoted_or_taken_away_does_not_come_by_itself(tmp_path: Path) -> None:
    """A canary that is taken away is still the latest version, and must get no request."""
    side = Side(tmp_path, TWO)
    side.put(CANARY_2)
    side.put({"canary": None})
    assert side.choose() == Choice("", "1", STABLE)
    assert "DELETE /models/m/rollout" in side.rollouts.plans["m"].waiting[STABLE]
    side.put(CANARY_2)
    side.rollouts.change("m", lambda plan: plan.promoted(8))
    assert side.choose() == Choice("", "2", STABLE)
    with pytest.raises(BadBody, match="the stable one already"):
        side.put(CANARY_2)
    side.rollouts.change("m", lambda _: None)
    assert side.choose() == NO_CHOICE
    assert side.server.pinned == {}
    with pytest.raises(UnknownModel):
        side.rollouts.name("nobody")


def test_a_full_disk_does_not_keep_a_canary_from_falling_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one of a file: there is room for what is kept, which is written in place."""
    one, other = (Side(tmp_path, TWO, toml="canary = {version = 2, share = 1}") for _ in "12")
    assert (tmp_path / "rollouts" / "plans").stat().st_blocks * 512 >= SIZE

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(News, "add", full)  # it adds at the end
    since = one.rollouts.plans["m"].since
    assert one.rollouts.fall_back("m", "it failed", since)
    other.rollouts.look()
    assert one.choose() == other.choose() == Choice("", "1", STABLE)


def test_a_file_says_it_too_and_its_mistake_disables_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(tmp_path / "a", TWO, toml="canary = {version = 2, share = 1}")
    assert side.choose() == Choice("", "2", CANARY)
    side.put({"canary": None})
    assert side.choose() == Choice("", "1", STABLE), "a route goes before the file"
    side.rollouts.change("m", lambda _: None)
    assert side.choose() == Choice("", "2", CANARY)
    wrong = Side(tmp_path / "b", TWO, toml="shadow = {version = 2, share = 1.5}")
    assert wrong.choose() == Choice("", "1", STABLE), "it is not the latest for all"
    assert wrong.rollouts.plans["m"].variants() == [Variant(version="2")]
    several = "canary = [{version = 2, share = 0.1}, {version = 3, share = 0.1}]"
    three = [*TWO, ModelState("m", "3", "READY")]
    assert Side(tmp_path / "c", three, toml=several).choose() == Choice("", "1", STABLE)
    assert wrong.registry.broken == {}
    fault = wrong.rollouts.faults["m"]
    assert fault.endswith(
        "m/dispatch.toml: `shadow.share` is 1.5 (expected a number from 0 to 1, such as 0.05)"
    )
    assert fault in caplog.text


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"canary": {"version": 2, "share": 1.5}}, "`canary.share` is 1.5", "from 0 to 1"),
        ({"canary": [{"version": 2}, {"version": 3}]}, "is a list", "one at a time"),
        ({"canary": {"version": 0, "share": 1}}, "`canary.version` is 0", "whole number from 1"),
        ({"canary": {"version": 2}}, "`canary.share` is missing", "such as 0.05"),
        ({"shadow": {"share": 0.1}}, "names no version", "version = 2"),
        ({"shadow": {"version": 2, "share": True}}, "`shadow.share` is true", "a number"),
        ({"shadow": {"version": 2, "shares": 1}}, "`shadow.shares` is not known", "`share`"),
        ({"canary": {"version": 2, "share": 1, "sticky": "ip"}}, "is 'ip'", '"session" or "key"'),
        ({"canary": 2}, "`canary` is 2", "a table"),
        ({"stable": {}}, "'stable' is not known", "'shadow' and 'canary'"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_fix(given: Any, message: str, hint: str) -> None:
    with pytest.raises(BadBody, match=message) as caught:
        Plan().changed(given, 0)
    assert hint in caught.value.hint
