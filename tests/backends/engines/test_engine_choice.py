"""Which engine runs a model: what may be wished, what is kept of a trial, and what fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from backends import engine_choice
from backends.engine_choice import (
    AUTO,
    BF16,
    EXACT,
    F32,
    ONNXRUNTIME,
    OPENVINO,
    EngineChoice,
    EnginePreference,
)
from backends.machine.shared_folder import write_json
from backends.measure_runs import MeasuredRuns
from backends.model_config import FileSignature, FileTensor, ModelConfigError
from backends.openvino.session import properties
from backends.schedule import schedule_runs
from tests.backends.conftest import cpu_config
from tests.support.models import onnx_models

SIGNATURE = FileSignature(
    (FileTensor("x", "TYPE_FP32", (-1, 3)),), (FileTensor("y", "TYPE_FP32", (-1, 3)),)
)
Ask = Callable[..., EngineChoice]
Trials = list[EnginePreference]
DEFAULT = EnginePreference()
FOUND = EngineChoice(OPENVINO, BF16, "", 1.9, "`y` differs by 0.002 of its range", SIGNATURE)


class TestWishes:
    @pytest.mark.parametrize(
        ("given", "environment", "expected"),
        [
            ({}, {}, EnginePreference(AUTO, EXACT)),
            ({}, {"MODEL_PRECISION": "auto"}, EnginePreference(AUTO, AUTO)),
            ({"precision": "exact"}, {"MODEL_PRECISION": "auto"}, EnginePreference(AUTO, EXACT)),
            ({"engine": "openvino", "precision": "auto"}, {}, EnginePreference(OPENVINO, AUTO)),
            ({"engine": "onnxruntime"}, {}, EnginePreference(ONNXRUNTIME, EXACT)),
        ],
    )
    def test_the_configuration_counts_more_than_the_environment(
        self, given: dict[str, str], environment: dict[str, str], expected: EnginePreference
    ) -> None:
        assert engine_choice.preference(cpu_config(**given), environment) == expected

    def test_the_accelerator_is_the_engine(self) -> None:
        accelerators = {"cpu_execution_accelerator": [{"name": "openvino"}]}
        given = {**cpu_config(), "optimization": {"execution_accelerators": accelerators}}
        assert engine_choice.preference(given, {}).engine == OPENVINO

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"engine": "tensorrt"}, "'engine' is 'tensorrt', but .* auto, openvino, onnxruntime"),
            ({"precision": "bf16"}, "'precision' is 'bf16', but expected is one of exact, auto"),
        ],
    )
    def test_others_are_refused(self, given: dict[str, str], said: str) -> None:
        with pytest.raises(ModelConfigError, match=said):
            engine_choice.preference(cpu_config(**given), {})

    @pytest.mark.parametrize(
        ("precision", "flags", "expected"),
        [
            (AUTO, "fma avx512_bf16", [BF16, F32]),
            (AUTO, "amx_tile amx_bf16", [BF16, F32]),
            (AUTO, "fma avx2 avx512f", [F32]),
            (EXACT, "avx512_bf16 amx_bf16", [F32]),
        ],
    )
    def test_bf16_is_for_processors_that_have_it(
        self, precision: str, flags: str, expected: list[str], tmp_path: Path
    ) -> None:
        said = f"processor : 0\nmodel name\t: A CPU\nflags\t\t: fpu {flags}\n\nprocessor : 1\n"
        (tmp_path / "cpuinfo").write_text(said)
        processor = engine_choice.processor(tmp_path / "cpuinfo")
        assert processor == f"A CPU fpu {flags}"
        assert (
            list(engine_choice.precisions(EnginePreference(AUTO, precision), processor)) == expected
        )


def test_openvino_gets_threads_and_streams() -> None:
    assert properties(F32, 8, 2) == {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": 8,
        "ENABLE_CPU_PINNING": False,
        "NUM_STREAMS": 2,
    }


@pytest.mark.parametrize("key", ["NUM_STREAMS", "INFERENCE_NUM_THREADS", "intra_op_thread_count"])
def test_a_number_that_is_none_is_named(key: str) -> None:
    said = f"'{key}' is 'many', but expected is a whole number"
    with pytest.raises(ModelConfigError, match=said):
        schedule_runs(cpu_config(**{key: "many"}), None, 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "m" / "1" / "model.onnx"
    onnx_models.plus_one(file)
    return file


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    """What is tried, all of which gives `FOUND`."""
    made: Trials = []

    def measured(_folder: Path, _file: Path, asked: EnginePreference, _: float) -> EngineChoice:
        made.append(asked)
        return FOUND

    monkeypatch.setattr(engine_choice, "measure_choice", measured)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def ask(file: Path, cache: Path) -> Ask:
    """Return the choice for the file, from the cache or by a trial."""

    def find(preference: EnginePreference = DEFAULT, **environment: str) -> EngineChoice:
        given = {"ENGINE_CACHE": str(cache), **environment}
        return engine_choice.find_choice(file.parents[1], file, preference, given)

    return find


class TestTheCache:
    def test_a_trial_is_made_once(self, ask: Ask, cache: Path, trials: Trials) -> None:
        assert [ask() for _ in range(3)] == [FOUND] * 3
        assert len(trials) == 1
        (kept,) = cache.glob("*.json")
        assert json.loads(kept.read_text())["precision"] == "bf16"

    def test_what_is_measured_later_is_kept_with_it(
        self, ask: Ask, file: Path, cache: Path, trials: Trials
    ) -> None:
        more = replace(ask(), runs=MeasuredRuns(8, 4, 2, joined=True, gain=1.31, megabytes=90))
        given = {"ENGINE_CACHE": str(cache)}
        kept = engine_choice.cached_file(file.parents[1], file, DEFAULT, given)
        assert kept
        write_json(kept, asdict(more))
        assert ask() == more
        assert len(trials) == 1

    def test_without_a_cache_it_is_made_each_time(self, file: Path, trials: Trials) -> None:
        for count in (1, 2):
            assert engine_choice.find_choice(file.parents[1], file, DEFAULT, {}) == FOUND
            assert len(trials) == count

    @pytest.mark.parametrize(
        "damaged",
        ["", "{", "[]", "{}", "null", '{"engine": "abacus", "precision": "f32"}', "\0\xff"],
    )
    def test_one_that_is_damaged_is_mended(
        self, ask: Ask, cache: Path, trials: Trials, damaged: str
    ) -> None:
        ask()
        (kept,) = cache.glob("*.json")
        whole = kept.read_text()
        kept.write_text(damaged)
        assert ask() == FOUND
        assert len(trials) == 2
        assert kept.read_text() == whole

    def test_where_it_cannot_be_written_all_works_as_well(
        self, ask: Ask, cache: Path, trials: Trials
    ) -> None:
        cache.parent.write_text("in the way")
        assert [ask() for _ in range(2)] == [FOUND] * 2
        assert len(trials) == 2
        assert cache.parent.read_text() == "in the way"

    @pytest.mark.parametrize(
        "change",
        [
            lambda folder: onnx_models.plus_one(folder / "1" / "model.onnx", ("n", 4)),
            lambda folder: (folder / "1" / "weights.bin").write_bytes(b"more"),
            lambda folder: (folder / "dispatch.toml").write_text('family = "embedding"\n'),
            lambda folder: (folder / "samples" / "one.txt").write_text("another text\n"),
            lambda folder: (folder / "samples" / "two.txt").write_text("a text\n"),
        ],
        ids=["the model", "its weights", "the keys", "a sample", "one more sample"],
    )
    def test_what_a_trial_reads_makes_a_new_one(
        self, ask: Ask, file: Path, trials: Trials, change: Callable[[Path], Any]
    ) -> None:
        folder = file.parents[1]
        (folder / "samples").mkdir()
        (folder / "samples" / "one.txt").write_text("a text\n")
        ask()
        (folder / "labels.txt").write_text("nothing that a trial reads\n")
        ask()
        assert len(trials) == 1
        change(folder)
        ask()
        assert len(trials) == 2

    def test_each_wish_has_its_own(self, ask: Ask, trials: Trials) -> None:
        preferences = [
            EnginePreference(),
            EnginePreference(precision=AUTO),
            EnginePreference(OPENVINO),
            EnginePreference(OPENVINO, AUTO),
        ]
        for preference in preferences * 2:
            ask(preference)
        assert trials == preferences

    @pytest.mark.parametrize("attribute", ["processor", "_version"])
    def test_so_has_each_processor_and_version(
        self, ask: Ask, trials: Trials, monkeypatch: pytest.MonkeyPatch, attribute: str
    ) -> None:
        ask()
        monkeypatch.setattr(engine_choice, attribute, lambda *_: "another")
        ask()
        assert len(trials) == 2


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have something else make the trials."""

    def put(script: str) -> None:
        (tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "python").chmod(0o755)
        monkeypatch.setattr(engine_choice.sys, "executable", str(tmp_path / "python"))

    return put


class TestTrialsThatFail:
    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ("kill -SEGV $$", "failed: exit code -11"),
            ("echo first >&2; echo 'no such operator' >&2; exit 1", "failed: no such operator"),
            ("exit 0", "could not be made: list index out of range"),
            ("echo '{}'", "could not be made: Object missing required field `engine`"),
        ],
        ids=["a crash", "an error", "nothing said", "something else said"],
    )
    def test_onnx_runtime_runs_the_model(
        self, ask: Ask, python: Callable[[str], None], script: str, reason: str
    ) -> None:
        python(script)
        assert ask() == EngineChoice(ONNXRUNTIME, F32, f"the comparison of engines {reason}")

    def test_nothing_of_them_is_kept(self, ask: Ask, python: Callable[[str], None]) -> None:
        """The next start may have more memory."""
        python("kill -KILL $$")
        assert ask().reason.endswith("exit code -9")
        python(f"echo '{json.dumps(asdict(FOUND))}'")
        assert ask().engine == OPENVINO

    def test_one_that_was_ended_is_kept_until_it_may_take_longer(
        self, ask: Ask, python: Callable[[str], None]
    ) -> None:
        """So that no start but the first waits for it."""
        python("exec sleep 60")
        ended = ask(ENGINE_COMPARISON_LIMIT_S="0.4")
        assert (ended.engine, ended.gave_up_s) == (ONNXRUNTIME, 0.4)
        assert ended.reason == (
            "the comparison of engines took longer than 0.4 s; `dispatcher engines` gives it "
            "more time"
        )
        python(f"echo '{json.dumps(asdict(FOUND))}'")
        assert ask(ENGINE_COMPARISON_LIMIT_S="0.4") == ended
        assert ask(ENGINE_COMPARISON_LIMIT_S="60") == FOUND

    def test_runs_are_measured_with_it_where_no_server_waits(
        self, ask: Ask, python: Callable[[str], None]
    ) -> None:
        python('echo "$5 $6 $7" >&2; exit 1')
        assert ask(ENGINE_COMPARISON_LIMIT_S="60").reason.endswith("failed: auto exact")
        assert ask(ENGINE_COMPARISON_LIMIT_S="61").reason.endswith("failed: auto exact runs")

    def test_without_any_python_there_is_a_reason(
        self, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_choice.sys, "executable", "/no/such/python")
        found = ask()
        assert found.engine == ONNXRUNTIME
        assert "could not be made: [Errno 2] No such file or directory" in found.reason


def test_a_choice_is_hidden_by_its_own_process_and_cannot_keep_a_model(tmp_path: Path) -> None:
    file = engine_choice.show(FOUND, tmp_path, "m", "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", Mock(side_effect=OSError("the disk is read-only")))
        engine_choice.hide(file)
    said = file.read_text()
    for other in ("[]", json.dumps({**json.loads(said), "pid": 0})):
        file.write_text(other)
        engine_choice.hide(file)
        assert file.read_text() == other
    file.write_text(said)
    engine_choice.hide(file)
    assert not file.exists()


def test_a_verdict_is_one_sentence() -> None:
    assert FOUND.sentence() == (
        "run by OpenVINO in bf16, 1.90 times as fast as ONNX Runtime in f32; "
        "worst difference on samples: `y` differs by 0.002 of its range"
    )
    found = EngineChoice(ONNXRUNTIME, F32, "it has tensors of text")
    said = "run by ONNX Runtime in f32 (it has tensors of text)"
    assert found.sentence() == said
    runs = MeasuredRuns(8, 4, 2, joined=False, gain=1.3, megabytes=90)
    assert replace(found, runs=runs).sentence() == (
        f"{said}; up to 2 at a time run on all 8 cores, more of them 4 side by side: "
        "1.30 times the answers, 90 MB; one request per run"
    )
    turns = replace(found, runs=MeasuredRuns(2, 1, 1, joined=True)).sentence()
    assert turns == f"{said}; a run has all 2 cores; requests share runs"
