"""The canary: what it finds out, what it says of it, and when a new start of Triton may help."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clients.base import Client, Environment
from clients.errors import (
    BadPayload,
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
)
from clients.plugins.registry import Registry
from clients.tensors.client import zeros
from clients.triton.client import Triton
from clients.triton.server import Signature, TensorSpec
from dispatcher.readiness.prober import KNOCKS, UNTRIED, Canary
from dispatcher.readiness.supervisor_status import Notice
from tests.conftest import Endpoint, descendants, running, wait_for
from tests.end_to_end.test_chain import BERT, small_repository
from tests.support.fake_triton import FakeTriton

__all__ = ["small_repository"]


class Echo(Client):
    modelname = "echo"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.infer({})
        if payload.get("x") != 1:
            raise ValueError("not the example")


class Other(Echo):
    modelname = "other"


def triton(state: str = "running", starts: int = 1, reason: str = "") -> Notice:
    return Notice(programs={"Triton": {"state": state, "starts": starts, "reason": reason}})


@dataclass
class Stage:
    """A canary for `echo`, which is required, and `other`, which is not; time stands still."""

    server: FakeTriton = field(default_factory=lambda: FakeTriton({"echo": dict, "other": dict}))
    notice: Notice = field(default_factory=triton)
    time: float = 100.0
    memory: Path | None = None
    replaced: int = 0

    def __post_init__(self) -> None:
        environment = Environment(self.server, Path())
        registry = Registry({"echo": Echo(environment), "other": Other(environment)})
        self.canary = Canary(
            ["echo"],
            registry,
            self.server,
            8,
            8,
            lambda: self.notice,
            lambda: self.time,
            self.memory,
            self.replace,
        )
        self.canary.list_models()

    def replace(self) -> None:
        self.replaced += 1

    def round(self) -> list[str]:
        """Try what is due, and return it."""
        due = list(self.canary.due())
        for model, trial in due:
            self.canary.look(model, trial)
        return [model for model, _ in due]

    def require(self, *names: str) -> None:
        """Begin again with other required models, or clients."""
        self.canary.required = names
        self.canary.__post_init__()
        self.canary.list_models()

    def look(self, model: str = "echo") -> None:
        self.canary.look(model, self.canary.trials[model])


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_before_the_first_trial_nothing_is_known(stage: Stage) -> None:
    assert UNTRIED in stage.canary.reasons()[0]
    assert Canary(["echo"], Registry(), FakeTriton(), 8, 8).reasons() == [
        "Triton was not asked yet"
    ]


def test_a_model_that_answers_its_example_is_well(stage: Stage) -> None:
    assert stage.round() == ["echo", "other"]
    assert stage.canary.reasons() == []
    assert stage.canary.report("echo") == {"ok": True, "reason": "", "age_s": 0.0}
    stage.time += 3
    assert (stage.canary.report("echo") or {})["age_s"] == 3.0


def test_a_model_that_is_well_is_knocked_at_and_asked_its_example_now_and_then(
    stage: Stage,
) -> None:
    for _ in range(2 * (KNOCKS + 1)):
        stage.canary.list_models()
        stage.round()
        assert stage.canary.reasons() == []
        stage.time += 8
    asked = [call["model"] for call in stage.server.calls]
    assert asked.count("echo") == 2
    assert stage.server.knocks == ["echo"] * 2 * KNOCKS


def test_a_model_that_does_not_hear_the_knock_is_asked_its_example(stage: Stage) -> None:
    stage.round()
    stage.time += 8
    stage.server.models_run["echo"] = ModelFailed("its process is gone")
    assert stage.round() == ["echo"]
    assert "its process is gone" in stage.canary.reasons()[0]
    assert stage.canary.stuck("echo")
    stage.server.models_run["echo"] = dict
    stage.time += 1
    calls = len(stage.server.calls)
    assert stage.round() == ["echo"]
    assert len(stage.server.calls) == calls + 1
    assert stage.canary.reasons() == []


def test_one_whose_queue_is_full_is_busy_where_it_answers_others(stage: Stage) -> None:
    stage.server.models_run["echo"] = ModelBusy("Exceeds maximum queue size")
    stage.server.counts["echo"] = itertools.chain([5, 5, 5], itertools.repeat(6))
    stage.look()
    assert stage.canary.reasons() == []


def test_one_whose_queue_is_full_and_that_answers_nobody_is_named(stage: Stage) -> None:
    stage.round()
    stage.canary.timeout = 0.5
    stage.server.models_run["echo"] = ModelBusy("Exceeds maximum queue size")
    stage.server.failed = frozenset({"echo"})
    stage.server.counts["echo"] = itertools.repeat(5)
    stage.look()
    assert "Exceeds maximum queue size" in stage.canary.reasons()[0]
    assert not stage.canary.stuck("echo"), "what it waits for may be another's"


@pytest.mark.parametrize("what", ["a request failed", "Triton was started anew", "it is disabled"])
def test_a_knock_is_not_enough_after_a_change(stage: Stage, what: str) -> None:
    stage.round()
    stage.time += 8
    if what == "a request failed":
        stage.server.failed = frozenset({"echo"})
    elif what == "it is disabled":
        stage.canary.registry.broken["echo"] = "its file cannot be imported"
    else:
        stage.notice = triton(starts=2)
        stage.canary.list_models()
    stage.round()
    assert "echo" not in stage.server.knocks
    assert bool(stage.canary.reasons()) == (what == "it is disabled")


@pytest.mark.parametrize("error", [ModelFailed("it is gone"), ModelUnavailable("it is loading")])
def test_one_that_does_not_answer_is_named_with_the_reason(stage: Stage, error: Exception) -> None:
    stage.server.models_run["echo"] = error
    stage.round()
    assert stage.canary.reasons() == [f"the required model 'echo' does not answer: {error}"]
    stage.server.models_run["echo"] = dict
    stage.look()
    assert stage.canary.reasons() == []


def test_an_alias_may_be_required(stage: Stage) -> None:
    stage.canary.registry.aliases["another"] = "echo"
    stage.require("another", "third")
    assert stage.canary.reasons() == ["the required model 'third' is not ready"]
    stage.require("another")
    stage.round()
    assert stage.canary.reasons() == []
    stage.server.unloaded.add("echo")
    stage.canary.list_models()
    (reason,) = stage.canary.reasons()
    assert reason.startswith("the required model 'another' is not ready: its model is 'echo'")


class Alone(Client):
    """Asks no model."""

    modelname = "alone"
    example = {"x": 1}
    answer: Any = "well"

    def inference(self, payload: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_required_class_that_asks_no_model_is_ready_once_its_example_works(stage: Stage) -> None:
    stage.canary.registry.clients["alone"] = alone = Alone(Environment(stage.server, Path()))
    stage.require("alone")
    assert UNTRIED in stage.canary.reasons()[0]
    for _ in range(KNOCKS + 2):
        stage.canary.list_models()
        stage.round()
        assert stage.canary.reasons() == []
        stage.time += 8
    assert stage.server.knocks == []
    alone.answer = BadPayload("it has no dictionary")
    stage.round()
    (reason,) = stage.canary.reasons()
    assert "'alone' does not answer" in reason
    assert "it has no dictionary" in reason
    assert not stage.canary.mendable(), "a new start of Triton would find it as it is"


class Chain(Client):
    """Asks two models, neither of its own name."""

    modelname = "chain"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.infer({}, model="echo")
        self.infer({}, model="other")


class ChainOnEcho(Chain):
    """Asks two, the first of which is its own."""

    model = "echo"


@pytest.mark.parametrize("kind", [Chain, ChainOnEcho])
@pytest.mark.parametrize("fault", [ModelFailed("it fell over"), DeadlineExceeded("no word")])
def test_the_part_of_a_chain_that_died_is_named(
    stage: Stage, kind: type[Client], fault: InferenceError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the other part answers, the chain included."""
    monkeypatch.setattr("dispatcher.readiness.prober.WORD_S", 0.0)
    stage.canary.registry.clients["chain"] = kind(Environment(stage.server, Path()))
    stage.require("chain")
    stage.round()
    assert stage.canary.reasons() == []
    stage.server.models_run["other"] = fault
    stage.server.counts["echo"] = itertools.count()
    stage.canary.trials["chain"].knocks = KNOCKS  # then its example is due
    stage.look("chain")
    (reason,) = stage.canary.reasons()
    assert reason == (
        "the required model 'chain' does not answer: the model 'other', which it asks too: "
        f"{fault.message}"
    )
    assert stage.canary.mendable()
    stage.canary.refuse("echo")  # it answers those who ask it alone


def test_a_part_that_failed_is_named_before_the_chain(stage: Stage) -> None:
    stage.canary.registry.clients["chain"] = Chain(Environment(stage.server, Path()))
    stage.require("chain", "other")
    stage.server.models_run["other"] = ModelFailed("it fell over")
    stage.round()
    first, second = stage.canary.reasons()
    assert first == "the required model 'other' does not answer: it fell over"
    assert "'chain'" in second


def test_a_part_that_is_merely_busy_is_no_fault_of_the_chain(stage: Stage) -> None:
    stage.canary.registry.clients["chain"] = Chain(Environment(stage.server, Path()))
    stage.require("chain")
    stage.server.models_run["other"] = DeadlineExceeded("no word")
    stage.server.counts["other"] = itertools.count()
    stage.round()
    assert stage.canary.reasons() == []


def test_a_client_that_fails_on_its_own_example_is_said_so(stage: Stage) -> None:
    stage.canary.registry.clients["echo"].example = {"x": 2}  # type: ignore[misc]
    stage.round()
    assert "its own example" in stage.canary.reasons()[0]


def test_a_client_that_changes_what_it_is_given_has_its_example_again(stage: Stage) -> None:
    class Emptying(Echo):
        example = {"x": 1, "boxes": [{"left": 5}]}

        def inference(self, payload: Any) -> Any:
            payload["boxes"].pop()["left"] += 1
            return payload.pop("x")

    stage.canary.registry.clients["echo"] = Emptying(Environment(stage.server, Path()))
    for _ in range(2):
        stage.look()
        assert stage.canary.trials["echo"].reason == ""
    assert Emptying.example == {"x": 1, "boxes": [{"left": 5}]}


def test_a_client_that_refuses_its_own_example_is_said_so(stage: Stage) -> None:
    stage.server.models_run["echo"] = BadPayload("`text` has 8 tokens", hint="shorten it")
    stage.round()
    (reason,) = stage.canary.reasons()
    assert reason.endswith("refuses its own `example`: `text` has 8 tokens (shorten it)")


def test_a_model_that_refuses_what_its_client_sends_is_not_said_to_be_the_client(
    stage: Stage,
) -> None:
    stage.server.models_run["echo"] = TensorsRefused("expected [2, 12], got [1, 12]")
    stage.round()
    (reason,) = stage.canary.reasons()
    assert "does not answer: expected [2, 12], got [1, 12]" in reason


def test_when_the_models_are_tried(stage: Stage) -> None:
    """Required ones every 8 s, sooner while they fail; others once, and when requests fail."""
    assert stage.round() == ["echo", "other"]
    stage.time += 7.9
    assert stage.round() == []
    stage.time += 0.1
    assert stage.round() == ["echo"]
    stage.server.models_run["echo"] = ModelFailed("gone")
    stage.time += 8
    assert stage.round() == ["echo"]
    stage.time += 0.25
    assert stage.round() == ["echo"]
    stage.server.models_run["echo"] = dict
    stage.round()
    stage.server.failed = frozenset({"other"})
    stage.time += 0.25
    assert "other" in stage.round()
    stage.server.models_run["other"] = ModelFailed("gone")
    stage.time += 0.25
    assert "other" in stage.round()
    stage.time += 7
    assert "other" not in stage.round(), "one that fails by itself is tried at leisure"


def test_what_is_unloaded_is_forgotten_and_what_is_loaded_is_tried(stage: Stage) -> None:
    stage.round()
    stage.server.unloaded.add("other")
    stage.canary.list_models()
    assert stage.canary.report("other") is None
    stage.server.unloaded.clear()
    stage.canary.list_models()
    assert stage.round() == ["other"]


def test_nothing_is_tried_while_triton_is_away_and_all_is_when_it_is_back(stage: Stage) -> None:
    stage.round()
    stage.notice = triton("waiting", 1, "it died (SIGKILL)")
    stage.time += 100
    assert stage.round() == []
    assert stage.canary.reasons() == ["Triton is being restarted: it died (SIGKILL)"]
    stage.notice = triton(starts=2)
    assert stage.canary.reasons() == ["Triton was not asked yet"]
    assert stage.round() == [], "what was learnt of the one before is void"
    stage.canary.list_models()
    assert UNTRIED in stage.canary.reasons()[0]
    assert stage.round() == ["echo", "other"]
    assert stage.canary.reasons() == []


def test_where_there_is_no_room_for_a_thread_deaths_are_seen_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(stage.canary, "give_up", lambda: done.append("give up"))
    monkeypatch.setattr(stage.canary, "see_deaths", lambda: done.append("see deaths"))
    with pytest.raises(RuntimeError):
        stage.canary._begin_what_is_due()
    assert done == ["give up", "see deaths"]


def test_stopping_is_the_first_thing_to_say(stage: Stage) -> None:
    stage.round()
    stage.notice = Notice(stopping=True, programs=stage.notice.programs)
    assert stage.canary.reasons() == ["the container is stopping"]


def test_a_triton_that_is_silent_is_not_ready(stage: Stage) -> None:
    stage.round()
    stage.server.states, stage.server.ready = DeadlineExceeded("no answer"), False
    stage.canary.list_models()
    assert stage.canary.reasons() == ["Triton is not ready: no answer"]
    with pytest.raises(ModelUnavailable, match="Triton is not ready"):
        stage.canary.refuse("other")


def test_a_triton_that_did_say_what_it_has_and_is_silent_is_to_be_started_anew(
    stage: Stage,
) -> None:
    assert not stage.canary.silent()
    stage.server.states, stage.server.ready = DeadlineExceeded("no answer"), False
    stage.canary.list_models()
    assert stage.canary.silent()
    stage.notice = triton(starts=2)
    stage.canary.list_models()
    assert not stage.canary.silent(), "this one never spoke: it is starting"
    stage.server.states = None
    stage.canary.list_models()
    assert not stage.canary.silent()


def test_a_triton_that_loads_a_model_does_not_list_them_and_is_well(stage: Stage) -> None:
    stage.round()
    stage.server.states = DeadlineExceeded("no answer")
    stage.canary.list_models()
    assert stage.canary.reasons() == []


def test_a_canary_that_does_not_run_is_said_so(stage: Stage) -> None:
    stage.round()
    stage.time += 20.5
    assert stage.canary.reasons() == ["Triton was not asked for 20 s"]


@pytest.mark.parametrize("error", [ModelFailed("gone"), DeadlineExceeded("it hangs")])
def test_a_model_without_a_client_is_asked_zeros(error: Exception) -> None:
    """Only one that answered them has to: nobody said that it takes them."""
    server = FakeTriton({"plain": error})
    inputs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("text", "BYTES", (-1,)))
    server.signatures["plain"] = Signature(4, inputs)
    canary = Canary(["plain"], Registry(), server, 8, 8)
    canary.list_models()
    trial = canary.trials["plain"]
    canary.look("plain", trial)
    assert canary.reasons() == []
    server.models_run["plain"] = dict
    canary.look("plain", trial)
    asked = server.calls[-1]["inputs"]
    assert (asked["x"].shape, asked["x"].dtype.str) == ((1, 3), "<f4")
    assert asked["text"].tolist() == [b""]
    server.models_run["plain"] = error
    canary.look("plain", trial)
    assert "'plain' does not answer" in canary.reasons()[0]
    assert canary.stuck("plain")


# What a new start of Triton can mend


def test_what_was_found_out_before_a_start_of_triton_refuses_nobody_after_it(stage: Stage) -> None:
    stage.server.states, stage.server.ready = ModelUnavailable("connection refused"), False
    stage.canary.list_models()
    with pytest.raises(ModelUnavailable, match="connection refused"):
        stage.canary.refuse("echo")
    stage.notice = triton(starts=2)
    stage.canary.refuse("echo")


def test_triton_is_not_asked_before_it_is_there(stage: Stage) -> None:
    """A connection that was refused keeps the next from being tried for a while."""
    stage.notice = triton("starting", 2)
    stage.time += 100
    stage.server.models_run["echo"] = ModelUnavailable("it is not there")
    before, stage.server.states = stage.canary.index, []
    stage.canary.start()
    time.sleep(0.5)
    assert stage.canary.index is before
    assert stage.server.calls == []
    stage.notice = triton(starts=2)
    wait_for(lambda: stage.canary.index is not before, 5, "the first look after the start")


def failing(stage: Stage, error: Exception, model: str = "echo") -> bool:
    """Whether a model is stuck that answered before and now fails in this way."""
    stage.round()
    stage.server.models_run[model] = error
    stage.look(model)
    return stage.canary.stuck(model)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModelFailed("its process is gone"), True),
        (DeadlineExceeded("it hangs"), True),
        (ModelUnavailable("it was unloaded"), False),
        (TooLargeAtOnce("no room in shared memory"), False),
        (TensorsRefused("its client is wrong"), False),
        (ValueError("its client is broken"), False),
    ],
)
def test_a_model_that_answered_and_does_not_any_more_is_stuck(
    stage: Stage, error: Exception, expected: bool
) -> None:
    assert failing(stage, error) == expected
    if expected:
        with pytest.raises(ModelUnavailable, match="'echo' does not answer any more"):
            stage.canary.refuse("echo")
    else:
        stage.canary.refuse("echo")
    stage.canary.refuse("other")


@pytest.mark.parametrize("first", [1, 3])
def test_one_that_never_answered_is_not_stuck(stage: Stage, first: int) -> None:
    """A bad file, or a wrong example: another start would find it as it is."""
    stage.notice = triton(starts=first)
    stage.canary.list_models()
    stage.server.models_run["echo"] = ModelFailed("gone")
    stage.round()
    assert not stage.canary.stuck("echo")
    assert stage.canary.reasons() != []
    stage.canary.refuse("echo")


def test_one_that_fails_since_a_new_start_has_one_more(stage: Stage) -> None:
    """Its process may have been killed before it was asked for the first time."""
    assert failing(stage, ModelFailed("gone"))
    stuck = []
    for starts in (2, 3, 4):
        stage.notice = triton(starts=starts)
        stage.canary.list_models()
        assert not stage.canary.stuck("echo"), "it was not tried yet"
        stage.round()
        stuck.append(stage.canary.stuck("echo"))
    assert stuck == [True, False, False]


@pytest.mark.parametrize(("starts", "stuck"), [(1, True), (2, True), (3, False)])
def test_what_answered_is_known_to_web_workers_that_come_later(
    tmp_path: Path, starts: int, stuck: bool
) -> None:
    """One that was killed is no reason to leave a model hanging."""
    Stage(memory=tmp_path).round()
    later = Stage(memory=tmp_path, notice=triton(starts=starts))
    later.server.models_run["echo"] = DeadlineExceeded("it hangs")
    later.round()
    assert later.canary.stuck("echo") == stuck


def test_a_model_without_a_client_that_hangs_is_found_by_a_later_worker_too(
    tmp_path: Path,
) -> None:
    server = FakeTriton({"plain": dict})
    for well in (True, False):
        canary = Canary(["plain"], Registry(), server, 8, 8, memory=tmp_path)
        canary.list_models()
        canary.look("plain", canary.trials["plain"])
        assert (canary.reasons() == []) == well
        server.models_run["plain"] = DeadlineExceeded("it hangs")
    assert canary.stuck("plain")


def test_no_room_to_note_who_answered_hurts_nobody(tmp_path: Path) -> None:
    stage = Stage(memory=tmp_path / "none")
    stage.round()
    assert stage.canary.reasons() == []
    assert failing(stage, DeadlineExceeded("it hangs"))


def test_an_optional_model_that_is_stuck_is_503_by_itself(stage: Stage) -> None:
    assert failing(stage, ModelFailed("gone"), "other")
    assert stage.canary.reasons() == []
    stage.canary.refuse("echo")
    with pytest.raises(ModelUnavailable, match="'other' does not answer any more"):
        stage.canary.refuse("other")


@pytest.mark.parametrize(("counts", "well"), [([7, 7], False), ([7, 8], True)])
def test_one_that_is_busy_is_told_from_one_that_hangs(
    stage: Stage, counts: list[int], well: bool
) -> None:
    """By its answers to others, whichever worker they came through."""
    stage.round()
    stage.server.counts["echo"] = iter(counts)
    stage.server.models_run["echo"] = DeadlineExceeded("no answer")
    stage.look()
    assert (stage.canary.reasons() == []) == well


# On the real chain


def stub_of(endpoint: Endpoint, model: str) -> int:
    for pid in descendants(endpoint.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        if re.search(rf"triton_python_backend_stub \S*/{model}/", command):
            return pid
    raise AssertionError(f"no process runs {model}")


@pytest.mark.slow
def test_a_model_whose_process_is_gone_is_mended_by_a_new_start_of_triton(
    small_repository: Path, tmp_path: Path
) -> None:
    """Triton itself goes on calling the model ready."""
    settings = {"MODEL_REPOSITORY": str(small_repository), "CANARY_INTERVAL": "1"}
    with running(tmp_path, **settings) as endpoint:
        assert endpoint.call("/ping").status == 200
        os.kill(stub_of(endpoint, "bert_base"), signal.SIGKILL)
        wait_for(lambda: endpoint.call("/ping").status == 503, 20, "/ping turning 503")
        assert endpoint.call("/ping").json["error"]["code"] == "stuck"
        health = endpoint.call("/health").json
        assert "'bert_base' does not answer" in health["reasons"][0]
        assert health["models"][0]["state"] == "READY"
        assert health["models"][0]["canary"]["ok"] is False
        answer = endpoint.ask(**BERT)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        wait_for(lambda: endpoint.call("/ping").status == 200, 70, "/ping turning 200")
        assert endpoint.call("/health").json["programs"]["Triton"]["restarts"] == 1
        assert endpoint.ask(**BERT).status == 200


@pytest.mark.slow
def test_a_model_that_has_lost_one_of_two_processes_is_mended_as_well(
    small_repository: Path, tmp_path: Path
) -> None:
    """The other answers, and Triton goes on giving requests to the one that is gone."""
    config = small_repository / "bert_base" / "config.pbtxt"
    text = config.read_text()
    for old, new in (("count: 1", "count: 2"), ("dynamic_batching { }", "")):
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)  # each request is a run of its own, and one at a time is lost
    settings = {"MODEL_REPOSITORY": str(small_repository), "CANARY_INTERVAL": "1"}
    with running(tmp_path, **settings) as endpoint:
        os.kill(stub_of(endpoint, "bert_base"), signal.SIGKILL)
        wait_for(
            lambda: b"1 of its 2 processes are left" in endpoint.call("/ping").body,
            10,
            "/ping saying so",
        )
        # Triton sees after a second that the one it hands a request to is gone.
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(endpoint.ask, **BERT) for _ in range(4)]
        statuses = [one.result().status for one in answers]
        assert set(statuses) <= {200, 502}
        assert statuses.count(200) >= 2
        wait_for(lambda: endpoint.call("/ping").status == 200, 70, "/ping turning 200")
        assert endpoint.call("/health").json["programs"]["Triton"]["restarts"] == 1
        assert {endpoint.ask(**BERT).status for _ in range(4)} == {200}


def test_a_model_of_a_type_that_is_not_served_is_not_known_to_fail(stage: Stage) -> None:
    brain = Signature(0, (TensorSpec("x", "BF16", (1,)),))
    stage.server.signatures["brain"] = brain
    assert not stage.canary.try_model("brain", known=False)
    with pytest.raises(TensorsRefused, match="`x` is BF16, which is not served"):
        zeros(brain)


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), None])
def test_a_disk_that_is_away_or_hangs_does_not_keep_triton_from_being_asked(
    stage: Stage, fault: OSError | None
) -> None:
    free, began = threading.Event(), []

    def mend() -> None:
        began.append(1)
        if fault:
            raise fault
        free.wait(10)

    stage.canary.mend = mend
    canary = threading.Thread(target=stage.canary.mend_if_idle)
    canary.start()
    wait_for(lambda: bool(began), 5, "the mending")
    stage.canary.list_models()
    assert stage.canary.index is not None
    assert stage.canary.index.states
    if not fault:
        stage.canary.mend_if_idle()  # not twice at a time
        assert began == [1]
    free.set()
    canary.join(10)


def test_nobody_is_asked_while_triton_is_being_started() -> None:
    """A connection that is refused is not tried again for a while, when Triton may be there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Triton(f"127.0.0.1:{listener.getsockname()[1]}", 8 * 2**20)
        notice = triton("starting")
        canary = Canary(["echo"], Registry(), server, 8, 8, lambda: notice)
        canary.start()
        listener.settimeout(1)
        with pytest.raises(TimeoutError):
            listener.accept()
        notice = triton()
        listener.accept()[0].close()
        notice = triton("ending")
