"""How shared memory is shared out among the models at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from backends.machine.shared_memory import MIB, Share
from backends.model_config import ModelConfigError
from clients.model_files.config_text import NotProtobufText, read
from container.repository.compose import compose
from container.repository.shared_memory_plan import (
    SharedMemoryPlan,
    change_config,
    find_ours,
    lower,
    share_out,
)
from tests.conftest import PROJECT

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
    dynamic_batching { preferred_batch_size: [ 4, 8 ]; preferred_batch_size: 16, }
    instance_group { count: 2 }; instance_group: [ { count: 3 } ],
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
    counts = [m.number("count") for m in message.messages("instance_group")]
    assert counts == [group.count for group in expected.instance_group]


@pytest.mark.parametrize("text", ["input {", "max_batch_size", "a: [1", "}", "a: }", "a: \x01 b"])
def test_what_is_no_configuration_is_not_read(text: str) -> None:
    with pytest.raises(NotProtobufText):
        read(text)
    # A comment at the end is one, whatever stands in it, and where nothing is behind it.
    message = read('max_batch_size: 4  # eight (was: 16)\n# max_batch_size: 2 "x')
    assert message.number("max_batch_size") == 4
    assert len(message.all("max_batch_size")) == 1


@pytest.mark.parametrize("text", [t for t in TEXTS if "max_batch_size" in t])
def test_a_changed_configuration_differs_in_nothing_else(text: str) -> None:
    expected, came = parsed(text), parsed(change_config(text, 2))
    assert came.max_batch_size == 2
    assert [group.count for group in came.instance_group] == [1]
    assert not came.dynamic_batching.preferred_batch_size
    expected.max_batch_size = 2
    for message in (expected, came):
        message.ClearField("instance_group")
        if message.HasField("dynamic_batching"):
            message.dynamic_batching.ClearField("preferred_batch_size")
    assert came == expected


OURS = find_ours(PROJECT / "model_repository")
YOLOV5 = (PROJECT / "model_repository" / "yolov5" / "config.pbtxt").read_text()


def test_a_docker_container_s_64_mb_hold_all_regions() -> None:
    plan = share_out(OURS, 64 * MIB)
    assert sum(share.region for share in plan.shares.values()) <= 64 * MIB
    batches = {name: share.batch for name, share in plan.shares.items()}
    assert batches["yolov5"] == 1
    assert 1 <= (batches["resnet"] or 0) < 16
    assert batches["bert_base"] is None, "how large a text is nobody knows beforehand"
    # One YOLOv5 picture is 3 × 640 × 640 bytes in and 25200 × 85 floats out.
    assert plan.shares["yolov5"].tensors == 3 * 640 * 640 + 4 * 25200 * 85
    assert len(list(plan.changes())) == 2


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ('backend: "onnxruntime"', 2),
        ('platform: "onnxruntime_onnx" instance_group { kind: KIND_CPU }', 2),
        ('backend: "onnxruntime" instance_group [ { count: 3 }, { kind: KIND_AUTO } ]', 5),
        ('backend: "onnxruntime" instance_group { count: 1 }', 1),
        ('backend: "onnxruntime" instance_group { kind: KIND_GPU }', 1),
    ],
)
def test_all_instances_that_triton_starts_have_a_share(config: str, count: int) -> None:
    """As `SetDefaultInstanceCount` in Triton's core has it where no number is configured."""
    share = share_out({"texts": read(config)}, 64 * MIB).shares["texts"]
    assert share.region == 64 * MIB // count


def test_a_model_without_batches_gets_one_instance_where_two_are_too_many() -> None:
    text = YOLOV5.replace("max_batch_size: 8", "").replace("count: 1", "")
    assert "instance_group" in text
    plan = share_out({"yolov5": read(text)}, 64 * MIB)
    share = plan.shares["yolov5"]
    # Two pictures of 3 × 640 × 640 bytes, and an answer of 25200 × 85 floats; half as much again.
    assert share.region == 3 * MIB // 2 + int((2 * 3 * 640 * 640 + 4 * 25200 * 85) * 1.5)
    assert list(plan.changes()) == [
        "yolov5: one instance, because /dev/shm has 64 MB (docker run --shm-size=1g gives enough)"
    ]
    came = parsed(change_config(text, share.batch or 0))
    assert (came.max_batch_size, [group.count for group in came.instance_group]) == (0, [1])


def test_with_1_gb_everything_is_as_configured() -> None:
    plan = share_out(OURS, 1024 * MIB)
    assert list(plan.changes()) == []
    assert set(plan.shares) == {"bert_base"}
    # 16 texts of 128 tokens with a logit for each of 30522 words.
    assert plan.shares["bert_base"].tensors > 16 * 128 * 30522 * 4
    assert plan.options() == []


@pytest.mark.parametrize(("heavy", "mib"), [(0, 1024), (1, 768), (3, 256)])
def test_with_1_gb_models_of_variable_shapes_get_what_is_left(heavy: int, mib: int) -> None:
    mine = 'backend: "onnxruntime" instance_group { count: 1 } '
    shape = "data_type: TYPE_FP32 dims: 1048576"
    fixed = read(f"{mine} max_batch_size: 14 input {{ {shape} }} output {{ {shape} }}")
    models = {"texts": read(mine), **{f"fixed{one}": fixed for one in range(heavy)}}
    tensors = share_out(models, 1024 * MIB).shares["texts"].tensors
    # 14 rows of 8 MiB in and 4 out, half as much again, and 1.5 MiB take 253.5 of 256 MiB.
    assert tensors == pytest.approx(mib * MIB / 2, rel=0.03)


def test_a_model_without_room_is_not_loaded_and_says_why() -> None:
    large = read(YOLOV5.replace("640", "4000"))
    plan = share_out({**OURS, "yolov5": large}, 64 * MIB)
    assert plan.shares["yolov5"].tensors == 0
    assert plan.shares["resnet"].tensors > 0, "the others are served"
    with pytest.raises(ModelConfigError, match=r"'yolov5'.* 64 MB .*--shm-size"):
        Share.of({"name": "yolov5"}, plan.environment())


def test_a_model_needs_no_word_on_its_backend(tmp_path: Path) -> None:
    """Models of other backends, and configurations that cannot be read, are left alone."""
    for name, file, text in (
        ("bare", "model.onnx", None),
        ("short", "model.onnx", "max_batch_size: 4"),
        ("odd", "model.onnx", 'backend: "mine"'),
        ("mine", "model.py", 'backend: "python"'),
        ("broken", "net.onnx", "input {"),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / file).touch()
        if text:
            (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "empty").mkdir()
    assert set(share_out(find_ours(tmp_path), 64 * MIB).shares) == {"bare", "short"}


def test_only_the_links_to_what_is_lowered_are_replaced(tmp_path: Path) -> None:
    source, made = PROJECT / "model_repository", tmp_path / "repository"
    compose(made, None, source, instead=False, say=lambda line: None)
    lower(made, SharedMemoryPlan())
    assert all((made / name).is_symlink() for name in OURS)
    lower(made, share_out(OURS, 64 * MIB))
    assert parsed((made / "yolov5" / "config.pbtxt").read_text()).max_batch_size == 1
    assert (made / "yolov5" / "labels.txt").samefile(source / "yolov5" / "labels.txt")
    assert (made / "bert_base").is_symlink()
    assert parsed((source / "yolov5" / "config.pbtxt").read_text()).max_batch_size == 8
