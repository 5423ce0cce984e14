"""What each model may use of /dev/shm, and that no batch goes over it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from clients.base import Client, Environment, Payload
from clients.errors import TooLargeAtOnce
from clients.plugins.registry import Registry
from clients.repository.config_text import NotReadable, read
from clients.triton.client import translated
from container.repository.compose import compose
from container.repository.shared_memory_plan import Plan, changed, configurations, lower, share_out
from container.triton_backends.machine import shared_folder, shared_memory
from container.triton_backends.machine.shared_memory import (
    MIB,
    PREFIX,
    SHARES,
    Share,
    TooLarge,
    fit,
)
from container.triton_backends.model_config import ModelConfigError
from dispatcher.codecs.metadata import Metadata
from dispatcher.execution.admission import Admission
from dispatcher.execution.executor import Executor
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.request import ModelRequest
from tests.conftest import PICTURES, PROJECT, Endpoint, picture, running
from tests.support.fake_triton import FakeTriton

TEXTS = [
    *[path.read_text() for path in sorted(PROJECT.glob("model_repository/*/config.pbtxt"))],
    """
    # a comment { with a brace
    name: "a \\"quoted\\" name" 'and more'
    max_batch_size: 0x10,
    input { name: "x" data_type: TYPE_FP32 dims: 3 dims: -1 }
    input: < name: "y"; data_type: TYPE_INT64; dims: [] >
    output [ { name: "z" data_type: TYPE_BOOL dims: [ 1, 2 ] } ]
    parameters { key: "k" value { string_value: "v" } }
    dynamic_batching { preferred_batch_size: [ 4, 8 ] preferred_batch_size: 16 }
    """,
    "",
]


def parsed(text: str) -> Any:
    """What protobuf itself reads."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("text", TEXTS)
def test_a_configuration_is_read_as_protobuf_reads_it(text: str) -> None:
    message, expected = read(text), parsed(text)
    assert message.number("max_batch_size") == expected.max_batch_size
    for kind in ("input", "output"):
        assert [
            (m.text("name"), m.text("data_type"), [int(t) for t in m.texts("dims")])
            for m in message.messages(kind)
        ] == [
            (t.name, model_config_pb2.DataType.Name(t.data_type), list(t.dims))
            for t in getattr(expected, kind)
        ]
    assert [m.number("count") for m in message.messages("instance_group")] == [
        g.count for g in expected.instance_group
    ]


@pytest.mark.parametrize("text", ["input {", "max_batch_size", "a: [1", "}", "a: }", "a: \x01 b"])
def test_what_is_no_configuration_is_not_read(text: str) -> None:
    with pytest.raises(NotReadable):
        read(text)


@pytest.mark.parametrize("text", [t for t in TEXTS if "max_batch_size" in t])
def test_a_changed_configuration_differs_in_nothing_else(text: str) -> None:
    expected, came = parsed(text), parsed(changed(text, 2))
    assert came.max_batch_size == 2
    assert [group.count for group in came.instance_group] == [1]
    assert not came.dynamic_batching.preferred_batch_size
    expected.max_batch_size = 2
    for message in (expected, came):
        message.ClearField("instance_group")
        if message.HasField("dynamic_batching"):
            message.dynamic_batching.ClearField("preferred_batch_size")
    assert came == expected


OURS = configurations(PROJECT / "model_repository")


def test_a_docker_container_s_64_mb_hold_all_regions() -> None:
    plan = share_out(OURS, 64 * MIB)
    assert sum(share.region for share in plan.shares.values()) <= 64 * MIB
    batches = {name: share.batch for name, share in plan.shares.items()}
    assert batches["yolov5"] == 1
    assert 1 <= (batches["resnet"] or 0) < 16
    assert batches["bert_base"] is None, "how large a text is nobody knows beforehand"
    # One YOLOv5 picture is 3 × 640 × 640 floats in and 25200 × 85 out.
    assert plan.shares["yolov5"].tensors == 4 * (3 * 640 * 640 + 25200 * 85)
    assert len(list(plan.told())) == 2


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ('backend: "onnxruntime"', 2),
        ('platform: "onnxruntime_onnx" instance_group { kind: KIND_CPU }', 2),
        ('backend: "onnxruntime" instance_group [ { count: 3 }, { kind: KIND_AUTO } ]', 5),
        ('backend: "onnxruntime" instance_group { count: 1 }', 1),
        ('backend: "pytorch"', 1),
        ('backend: "onnxruntime" instance_group { kind: KIND_GPU }', 1),
    ],
)
def test_all_instances_that_triton_starts_have_a_share(config: str, count: int) -> None:
    """As `SetDefaultInstanceCount` in Triton's core has it where no number is configured."""
    share = share_out({"texts": config}, 64 * MIB).shares["texts"]
    assert share.region == 64 * MIB // count


def test_a_model_without_batches_gets_one_instance_where_two_are_too_many() -> None:
    text = OURS["yolov5"].replace("max_batch_size: 8", "").replace("count: 1", "")
    assert "instance_group" in text
    plan = share_out({"yolov5": text}, 64 * MIB)
    share = plan.shares["yolov5"]
    # Two pictures of 3 × 640 × 640 floats and an answer of 25200 × 85, and half as much again.
    assert share.region == 3 * MIB // 2 + int(4 * (2 * 3 * 640 * 640 + 25200 * 85) * 1.5)
    assert list(plan.told()) == [
        "yolov5: one instance, for /dev/shm has 64 MB (docker run --shm-size=1g gives enough)"
    ]
    came = parsed(changed(text, share.batch or 0))
    assert (came.max_batch_size, [group.count for group in came.instance_group]) == (0, [1])


def test_with_1_gb_everything_is_as_configured() -> None:
    plan = share_out(OURS, 1024 * MIB)
    assert list(plan.told()) == []
    assert set(plan.shares) == {"bert_base"}
    # 16 texts of 128 tokens with a logit for each of 30522 words.
    assert plan.shares["bert_base"].tensors > 16 * 128 * 30522 * 4
    assert plan.options() == []


def test_a_model_without_room_is_not_loaded_and_says_why() -> None:
    large = OURS["yolov5"].replace("640", "4000")
    plan = share_out({**OURS, "yolov5": large}, 64 * MIB)
    assert plan.shares["yolov5"].tensors == 0
    assert plan.shares["resnet"].tensors > 0, "the others are served"
    with pytest.raises(ModelConfigError, match=r"'yolov5'.* 64 MB .*--shm-size"):
        Share.of({"name": "yolov5"}, plan.environment())


def test_a_comment_at_the_end_is_one() -> None:
    """Also where there is nothing behind it, and whatever stands in it."""
    message = read('max_batch_size: 4  # eight (was: 16)\n# max_batch_size: 2 "x')
    assert message.number("max_batch_size") == 4
    assert len(list(message.all("max_batch_size"))) == 1


def test_models_of_other_backends_and_unreadable_ones_are_left_alone() -> None:
    plan = share_out({"mine": 'backend: "python"', "broken": "input {"}, 64 * MIB)
    assert plan.shares == {}


def test_a_model_needs_no_word_on_its_backend(tmp_path: Path) -> None:
    for name, file, text in (
        ("bare", "model.onnx", None),
        ("short", "model.onnx", "max_batch_size: 4"),
        ("odd", "model.onnx", 'backend: "mine"'),
        ("script", "model.pt", "max_batch_size: 4"),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / file).touch()
        if text:
            (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "empty").mkdir()
    found = configurations(tmp_path)
    backends = {name: read(text).text("backend") for name, text in found.items()}
    onnx = {"bare": "onnxruntime", "short": "onnxruntime"}
    assert backends == {**onnx, "odd": "mine", "script": "pytorch"}
    assert set(share_out(found, 64 * MIB).shares) == {*onnx, "script"}


def test_only_the_links_to_what_is_lowered_are_replaced(tmp_path: Path) -> None:
    source, made = PROJECT / "model_repository", tmp_path / "repository"
    compose(made, None, source, instead=False, say=lambda line: None)
    lower(made, Plan())
    assert all((made / name).is_symlink() for name in OURS)
    lower(made, share_out(OURS, 64 * MIB))
    assert parsed((made / "yolov5" / "config.pbtxt").read_text()).max_batch_size == 1
    assert (made / "yolov5" / "labels.txt").samefile(source / "yolov5" / "labels.txt")
    assert (made / "bert_base").is_symlink()
    assert parsed((source / "yolov5" / "config.pbtxt").read_text()).max_batch_size == 8


def test_an_instance_knows_its_share() -> None:
    environment = {SHARES: json.dumps({"size": 64 * MIB, "models": {"a": [1000, 5 * MIB]}})}
    share = Share.of({"name": "a"}, environment)
    assert share.has_room(1000)
    assert not share.has_room(1001)
    grown: list[int] = []
    for _ in range(2):
        share.reserve(200, grown.append)
    assert len(grown) == 1
    assert 3 * MIB < grown[0] < 4 * MIB


def part_model(**more: Any) -> dict[str, Any]:
    """256 KiB in and 256 KiB out: batches of n need 1.5 + 1.125 n MiB."""
    tensor = {"data_type": "TYPE_FP32", "dims": ["64", "1024"]}
    return {
        "name": "b",
        "max_batch_size": 16,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        **more,
    }


LITTLE = {SHARES: json.dumps({"size": 64 * MIB, "models": {"a": [1000, 5 * MIB]}})}


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ({}, 5),  # 7.1 of 8 MiB
        ({"instance_group": [{"count": 2}]}, 2),  # 3.75 of 4
        ({"max_batch_size": 3}, 3),
        ({"max_batch_size": 0}, 0),
        ({"model_warmup": [{"batch_size": 7}]}, 7),
        ({"name": "a"}, 16),
    ],
)
def test_a_model_that_comes_later_gets_batches_that_fit(more: dict[str, Any], batch: int) -> None:
    config = part_model(**more)
    fit(config, LITTLE)
    assert config["max_batch_size"] == batch
    gathers = part_model(**more, dynamic_batching={"preferred_batch_size": [16]})
    fit(gathers, LITTLE)
    assert gathers["max_batch_size"] == more.get("max_batch_size", 16), "Triton would refuse it"
    plenty = part_model(**more)
    fit(plenty, {SHARES: json.dumps({"size": 1024 * MIB, "models": {}})})
    assert plenty == part_model(**more)


OPEN = Path("/proc/self/fd")


def identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:  # closed since it was listed
        return None
    return found.st_dev, found.st_ino


def open_files() -> set[tuple[int, int] | None]:
    """Return what is open, by identity: another thread may be given a number that became free."""
    return {identity(path) for path in OPEN.iterdir()}


def test_the_room_of_a_model_that_comes_later_is_held_until_its_first_run() -> None:
    share = Share.of(part_model(), LITTLE)
    assert share.held is not None
    # Of 5.6 MiB 1.25 are for the inputs of that run, which are there before.
    assert os.fstat(share.held).st_blocks * 512 == int((5.625 - 1.25) * MIB)
    assert not os.fstat(share.held).st_nlink
    assert share.has_room(int(2.5 * MIB))
    assert not share.has_room(int(2.5 * MIB) + 1)
    held, grown = identity(OPEN / str(share.held)), list[int]()
    assert held in open_files()

    number, size = share.held, os.fstat(share.held).st_size

    def grow(more: int) -> None:
        assert os.fstat(number).st_blocks == 0
        assert os.fstat(number).st_size == size, "it is counted until the region has it"
        grown.append(more)

    for _ in range(2):
        share.reserve(MIB, grow)
    assert grown == [int(4.625 * MIB)]
    assert held not in open_files()


def test_a_model_that_comes_later_is_not_loaded_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(opened: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    monkeypatch.setattr(shared_memory, "ENDING_S", 0.0)
    with pytest.raises(ModelConfigError, match=r"'b': No space left on device: .*--shm-size"):
        Share.of(part_model(), LITTLE)
    left = Path("/dev/shm").glob(f"*hold_{os.getpid()}*")
    assert list(left) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /dev/shm."""
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    return tmp_path


def write_region(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def test_what_all_models_have_is_no_more_than_they_may_where_others_have_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.6 MiB are held for each."""
    monkeypatch.setattr(shared_memory, "ENDING_S", 0.0)
    environment = {**LITTLE, PREFIX: "ours_"}
    write_region(folder / "ours_region", 50 * MIB)
    write_region(folder / "theirs", 100 * MIB)
    share = Share.of(part_model(), environment)
    other = Share.of(part_model(), environment)
    assert other.held is not None
    with pytest.raises(ModelConfigError, match=r"'b': No space left on device: .*in 64 MB"):
        Share.of(part_model(), environment)
    share.reserve(0, lambda size: os.truncate(folder / "ours_region", 50 * MIB + size))
    with pytest.raises(ModelConfigError):
        Share.of(part_model(), environment)
    os.close(other.held)
    again = Share.of(part_model(), environment)
    assert again.held is not None
    os.close(again.held)


def test_what_others_have_only_for_a_moment_is_waited_for(folder: Path) -> None:
    """As a process has that only completes a configuration."""
    write_region(folder / "ours_region", 62 * MIB)
    leaving = threading.Timer(0.3, (folder / "ours_region").unlink)
    leaving.start()
    share = Share.of(part_model(), {**LITTLE, PREFIX: "ours_"})
    leaving.join()
    assert share.held is not None
    os.close(share.held)


@pytest.mark.usefixtures("folder")
def test_what_a_planned_model_has_not_taken_yet_is_not_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_memory, "ENDING_S", 0.0)
    plan = {"size": 64 * MIB, "models": {"planned": [1000, 60 * MIB]}}
    environment = {SHARES: json.dumps(plan), PREFIX: "ours_"}
    planned = Share.of(part_model(name="planned"), environment)
    assert planned.held is not None
    assert os.fstat(planned.held).st_blocks == 0
    with pytest.raises(ModelConfigError):
        Share.of(part_model(), environment)
    planned.reserve(0, lambda size: None)
    later = Share.of(part_model(), environment)
    assert later.held is not None
    os.close(later.held)


def test_of_models_that_are_loaded_at_once_each_counts_what_the_others_hold(folder: Path) -> None:
    environment = {**LITTLE, PREFIX: "ours_", shared_folder.VARIABLE: str(folder)}
    write_region(folder / "ours_region", 50 * MIB)

    def load(_: int) -> int | None:
        try:
            return Share.of(part_model(), environment).held
        except ModelConfigError:
            return None

    with ThreadPoolExecutor(4) as pool:
        held = [one for one in pool.map(load, range(4)) if one is not None]
    for one in held:
        os.close(one)
    assert len(held) == 2


def test_room_that_another_one_gives_back_is_waited_for() -> None:
    share, tries = Share(64 * MIB, 1000, 5 * MIB), list[int]()

    def grow(size: int) -> None:
        tries.append(size)
        if len(tries) < 4:
            raise MemoryError

    share.reserve(0, grow)
    assert tries == [int(3.5 * MIB)] * 4


def test_room_that_nobody_gives_back_is_waited_for_once() -> None:
    share, tries = Share(64 * MIB, 1000, 5 * MIB, _patience=0.2), list[int]()

    def grow(size: int) -> None:
        tries.append(size)
        raise MemoryError

    counts = []
    for _ in range(3):
        with pytest.raises(TooLarge, match="--shm-size"):
            share.reserve(0, grow)
        counts.append(len(tries))
    assert counts[0] > 1
    assert counts[1:] == [counts[0] + 1, counts[0] + 2]


def test_runs_that_begin_together_grow_the_region_once() -> None:
    share = Share(64 * MIB, 1000, 5 * MIB)
    grown: list[int] = []

    def grow(size: int) -> None:
        time.sleep(0.05)  # while others come
        grown.append(size)

    def run() -> int:
        share.reserve(0, grow)
        return len(grown)

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run) for _ in range(4)]
    assert [one.result() for one in runs] == [1] * 4, "and none begins before it has grown"


class Halving(Client):
    """Has room for three payloads at a time."""

    modelname = "halving"
    example = {}
    max_batch_size = 16  # type: ignore[assignment]
    runs: list[int]

    def inference(self, payload: Payload) -> Any:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Any) -> list[Any]:
        self.runs.append(len(payloads))
        numbers = [payload.pop("n") for payload in payloads]  # as authors do
        if len(payloads) > 3 or any("large" in payload for payload in payloads):
            raise TooLargeAtOnce("too large")
        return numbers


def halving() -> Halving:
    client = Halving.__new__(Halving)
    client.runs = []
    return client


def result(client: Client, payloads: list[Any]) -> Any:
    registry, environment = Registry({"halving": client}), Environment(FakeTriton(), PROJECT)
    lookup = ModelLookup(registry, environment, lambda _: None)
    dispatcher = Executor(lookup, Admission(1, 1, 0, 1).calls, patience=1)
    ask = ModelRequest("halving", payloads, is_list=True)
    return dispatcher.prepare(ask, Metadata(), time.monotonic() + 10).result()


def test_a_batch_that_has_no_room_is_halved_until_it_has() -> None:
    client = halving()
    assert result(client, [{"n": n} for n in range(10)]) == list(range(10))
    assert client.runs == [10, 5, 3, 2, 5, 3, 2]


def test_a_payload_that_has_no_room_by_itself_is_named() -> None:
    with pytest.raises(TooLargeAtOnce) as caught:
        result(halving(), [{"n": 0}, {"n": 1, "large": 1}])
    assert caught.value.message == "payload[1]: too large"


def test_what_the_backends_refuse_is_told_by_its_status_alone() -> None:
    error = InferenceServerException("whatever", status="StatusCode.UNIMPLEMENTED")
    assert isinstance(translated(error), TooLargeAtOnce)


@pytest.fixture(scope="module")
def scarce(models: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The container with as much shared memory as Docker gives by default."""
    with running(tmp_path_factory.mktemp("scarce"), SHARED_MEMORY_MB="64") as endpoint:
        yield endpoint


def masks(count: int) -> dict[str, str]:
    """122 kB of the model's answer for each."""
    return {"text": "[MASK] " * count}


@pytest.mark.slow
def test_the_largest_batches_and_mixed_load_stay_within_it(scarce: Endpoint) -> None:
    """The sizes of the regions in /dev/shm are the judge."""
    img = {"img": picture(PICTURES / "coffee.png")}
    cases: list[tuple[str, Any]] = [
        ("resnet", [img] * 16),
        ("yolov5", [img] * 8),
        ("bert_base", [masks(30)] * 16),
        ("bert_base", [masks(110)] * 3),
        ("yolov5", img),
        ("resnet", img),
    ]
    failed: list[Any] = []

    def call(place: int) -> None:
        name, payload = cases[place % len(cases)]
        answer = scarce.ask(modelname=name, payload=payload)
        if answer.status != 200:
            failed.append(answer.body)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    regions = Path("/dev/shm").glob(f"triton_dispatcher_{scarce.process.pid}_*")
    assert 0 < sum(path.stat().st_size for path in regions) <= 64 * MIB


def test_a_request_that_never_has_room_is_told_how_to_mend_it(scarce: Endpoint) -> None:
    answer = scarce.ask(modelname="bert_base", payload=masks(150))
    assert answer.status == 507
    error = answer.json["error"]
    assert error["code"] == "too_large_at_once"
    assert "--shm-size" in error["message"]
    assert scarce.ask(modelname="bert_base", payload=masks(1)).status == 200
