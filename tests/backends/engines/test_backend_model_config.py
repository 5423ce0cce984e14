"""Completing and checking a configuration, without a file and without Triton."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from backends import completion
from backends.config_check import check, refuse_ragged, take_every_shape
from backends.model_config import (
    FileSignature,
    FileTensor,
    ModelConfigError,
    instance_count,
    read_kind,
)
from clients.model_files.config_text import read


def spec(name: str, *shape: int, data_type: str = "TYPE_FP32") -> FileTensor:
    return FileTensor(name, data_type, shape)


def tensor(name: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", "dims": list(dims), **more}


ROWS = FileSignature((spec("x", -1, 3),), (spec("y", -1, -1),))
FIXED = FileSignature((spec("x", 1, 3),), (spec("y", -1, 3),))
SCALAR = FileSignature((spec("x"),), (spec("y"),))
UNSHAPED = FileTensor("u", "TYPE_FP32", (), has_rank=False)


def completed(
    config: dict[str, Any],
    signature: FileSignature,
    *,
    stated: bool = False,
    independent: bool | None = False,
) -> dict[str, Any]:
    """Return what is added; `independent` is what a trial shows, None where there must be none."""
    opened = SimpleNamespace(signature=signature)
    message = read(f"max_batch_size: {config.get('max_batch_size', 0)}" if stated else "")
    with pytest.MonkeyPatch.context() as patch:
        against = Mock(return_value="" if independent else "they are not")
        patch.setattr(completion, "_find_against", against)
        added = dict(completion.complete(config, message, opened).fields)
    assert independent is not None or not against.called
    return added


X, Y = tensor("x", 3), tensor("y", -1)
WHOLE_X, WHOLE_Y = tensor("x", -1, 3), tensor("y", -1, -1)
BATCHED, UNBATCHED = {"input": [X], "output": [Y]}, {"input": [WHOLE_X], "output": [WHOLE_Y]}
BY_FOUR = {"max_batch_size": 4, **BATCHED}
DYNAMIC: dict[str, Any] = {"dynamic_batching": {}}
SEQUENCE: dict[str, Any] = {"sequence_batching": {}}
WARMUP = {"model_warmup": [{"batch_size": 2}]}

COMPLETED: dict[str, tuple[int | None, dict[str, Any], bool | None, dict[str, Any]]] = {
    "rows that are known to be independent batch": (None, {}, True, {**BY_FOUR, **DYNAMIC}),
    "a dynamic first dimension alone means no batch": (None, {}, False, UNBATCHED),
    "a written 0 means no batch whatever is known": (0, {}, None, UNBATCHED),
    "a written size is kept but requests share no runs": (8, {}, False, BATCHED),
    "one row needs no scheduler": (1, {}, None, BATCHED),
    "given inputs are kept": (2, {"input": [X]}, True, {"output": [Y], **DYNAMIC}),
    "inputs for a batch get one but requests share no runs": (
        None,
        {"input": [X]},
        False,
        {"max_batch_size": 4, "output": [Y]},
    ),
    "so do outputs, and share them where rows are independent": (
        None,
        {"output": [Y]},
        True,
        {"max_batch_size": 4, "input": [X], **DYNAMIC},
    ),
    "so does a warmup": (None, WARMUP, False, BY_FOUR),
    "inputs that are listed with their first dimension get no batch": (
        None,
        {"input": [WHOLE_X]},
        None,
        {"output": [WHOLE_Y]},
    ),
    "nor do outputs": (None, {"output": [WHOLE_Y]}, None, {"input": [WHOLE_X]}),
    "a chosen scheduler is kept": (8, DYNAMIC, None, BATCHED),
    "so is that of sequences": (8, SEQUENCE, None, BATCHED),
    "a scheduler gets a batch": (None, DYNAMIC, None, BY_FOUR),
    "so does that of sequences": (None, SEQUENCE, None, BY_FOUR),
    "a configuration with inputs and outputs is left alone": (None, UNBATCHED, None, {}),
}
"""The maximum that is written, what else is, whether rows are independent, and what is added."""


class TestCompletion:
    @pytest.mark.parametrize("case", COMPLETED)
    def test_of_dynamic_rows(self, case: str) -> None:
        limit, written, independent, added = COMPLETED[case]
        config = {"name": "m", "max_batch_size": limit or 0, **written}
        stated = limit is not None
        assert completed(config, ROWS, stated=stated, independent=independent) == added
        check(config | added, ROWS)

    def test_one_fixed_first_dimension_means_none(self) -> None:
        assert completed({"name": "m"}, FIXED, independent=None) == {
            "input": [tensor("x", 1, 3)],
            "output": [tensor("y", -1, 3)],
        }

    def test_scalars_are_declared_as_one(self) -> None:
        both = {"input": [tensor("x", 1)], "output": [tensor("y", 1)]}
        assert completed({"name": "m"}, SCALAR) == both
        rows = FileSignature((spec("x", -1),), (spec("y", -1),))
        added = completed({"name": "m"}, rows, independent=True)
        assert added["output"] == [tensor("y", 1, reshape={"shape": []})]

    def test_an_output_of_unknown_rank_may_be_of_any_size(self) -> None:
        added = completed({"name": "m"}, FileSignature(ROWS.inputs, (UNSHAPED,)))
        assert added == {"input": [tensor("x", -1, 3)], "output": [tensor("u", -1)]}

    def test_an_input_of_unknown_rank_has_to_be_listed(self) -> None:
        said = "not say how many dimensions the input 'u' has, .* list every input in config.pbtxt"
        with pytest.raises(ModelConfigError, match=said):
            completed({"name": "m"}, FileSignature((UNSHAPED,), ROWS.outputs))

    @pytest.mark.parametrize(("file", "shape"), [(FIXED, r"\[1, 3\]"), (SCALAR, r"\[\]")])
    def test_batching_of_fixed_sizes_is_refused(self, file: FileSignature, shape: str) -> None:
        said = rf"max_batch_size is 8 .* 'x' has shape {shape} in the file, .* dynamic \(-1\) first"
        with pytest.raises(ModelConfigError, match=said):
            completed({"name": "m", "max_batch_size": 8}, file, stated=True)


def with_state(**more: Any) -> dict[str, Any]:
    state = {"input_name": "x", "output_name": "y", "data_type": "TYPE_FP32", "dims": [3]}
    return {"input": [], "sequence_batching": {"state": [state | more]}}


class TestCheck:
    def config(self, **more: Any) -> dict[str, Any]:
        return {
            "name": "m",
            "max_batch_size": 8,
            "input": [tensor("x", 3)],
            "output": [tensor("y", -1)],
            **more,
        }

    @pytest.mark.parametrize("dims", [[3], [-1]])
    def test_dynamic_inputs_fit_either_way(self, dims: list[int]) -> None:
        check(self.config(input=[tensor("x", *dims)]), ROWS)

    def test_a_dynamic_output_of_a_fixed_one_does_not_fit(self) -> None:
        said = r"'y' has dims \[-1\] behind the batch dimension .* shape \[-1, 3\] in the file"
        with pytest.raises(ModelConfigError, match=said):
            check(self.config(), FileSignature(ROWS.inputs, (spec("y", -1, 3),)))

    def test_reshape_counts_instead_of_dims(self) -> None:
        check(self.config(input=[tensor("x", 3, 1, reshape={"shape": ["3"]})]), ROWS)

    @pytest.mark.parametrize("limit", [0, 4])
    def test_of_an_unknown_rank_the_configuration_is_believed(self, limit: int) -> None:
        given = [tensor("u", -1, 2)]
        config = {"name": "m", "max_batch_size": limit, "input": given, "output": given}
        check(config, FileSignature((UNSHAPED,), (UNSHAPED,)))

    def test_a_scalar_is_listed_as_one(self) -> None:
        config = {"name": "m", "input": [tensor("x", 1)], "output": [tensor("y", 1)]}
        check(config, SCALAR)
        with pytest.raises(ModelConfigError, match=r"'x' has dims \[7\] .* but shape \[\] in"):
            check(config | {"input": [tensor("x", 7)]}, SCALAR)

    def test_not_every_output_needs_a_declaration(self) -> None:
        check(self.config(), FileSignature(ROWS.inputs, (*ROWS.outputs, spec("z", -1))))

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"input": [tensor("z", 3)]}, "has input 'z', but the file's inputs are 'x'"),
            ({"output": [tensor("z", 3)]}, "has output 'z', but the file's outputs are 'y'"),
            ({"input": [tensor("x", 4)]}, r"'x' has dims \[4\] behind .* shape \[-1, 3\]"),
            ({"input": [tensor("x", 3, 3)]}, r"'x' has dims \[3, 3\] behind"),
            ({"output": [tensor("y", 5)]}, r"output 'y' has dims \[5\] behind"),
            ({"input": []}, "input 'x' is missing .* TYPE_FP32 with shape"),
            (
                {"input": [{**tensor("x", 3), "data_type": "TYPE_INT8"}]},
                "'x' is TYPE_INT8 in the configuration, but TYPE_FP32 in the file",
            ),
            ({"input": [tensor("x", 3, optional=True)]}, "'x' is optional .* no default"),
            ({"batch_input": [{}]}, "has batch_input, but ragged"),
            (with_state(input_name="z"), "has input 'z', but the file's inputs are 'x'"),
            (with_state(output_name="z"), "has output 'z', but the file's outputs are 'y'"),
            (with_state(dims=[4]), r"input 'x' has dims \[4\] behind"),
        ],
    )
    def test_what_does_not_fit_is_named(self, more: dict[str, Any], message: str) -> None:
        with pytest.raises(ModelConfigError) as caught:
            check(self.config(**more), ROWS)
        assert re.match(rf"unable to load model 'm': .*{message}.*\.$", caught.value.what)

    def test_controls_of_a_sequence_are_inputs(self) -> None:
        both = FileSignature((*ROWS.inputs, spec("start", -1, 1)), ROWS.outputs)
        control = {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}
        sequence = {"control_input": [{"name": "start", "control": [control]}]}
        check(self.config(sequence_batching=sequence), both)
        with pytest.raises(ModelConfigError, match="input 'start' is missing"):
            check(self.config(), both)


def test_every_shape_is_taken_of_tensors_of_any_size() -> None:
    config = {"name": "m", "input": [tensor("x", 3), tensor("y", -1, 3)]}
    take_every_shape(config)
    assert config["input"] == [tensor("x", 3), tensor("y", -1, 3, allow_ragged_batch=True)]


def test_ragged_batches_are_refused() -> None:
    config = {"name": "m", "input": [tensor("x", -1, allow_ragged_batch=True)]}
    with pytest.raises(ModelConfigError, match="model 'm': input 'x' has allow_ragged_batch"):
        refuse_ragged(config)
    refuse_ragged({"name": "m", "input": [tensor("x", -1)]})


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        ([], 1),
        ([{"count": 3, "kind": "KIND_CPU"}], 3),
        ([{"count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}, {"count": 1}], 5),
    ],
)
def test_instances_are_counted_on_each_gpu(groups: list[dict[str, Any]], count: int) -> None:
    assert instance_count({"instance_group": groups}) == count


@pytest.mark.parametrize(
    ("stated", "text", "asked"),
    [
        ("GPU", "instance_group [ { count: 2 kind: KIND_AUTO } ] # KIND_GPU", "AUTO"),
        ("GPU", "instance_group { count: 2 }", "AUTO"),
        ("GPU", 'name: "m"', "AUTO"),
        ("GPU", "cannot [ be read", "AUTO"),
        ("GPU", None, "AUTO"),
        ("GPU", "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU, gpus: [ 0 ] } ]", "GPU"),
        ("CPU", "instance_group { kind: KIND_CPU }", "CPU"),
        ("MODEL", "instance_group { kind: KIND_MODEL }", "MODEL"),
    ],
)
def test_what_triton_calls_gpu_was_perhaps_left_to_it(
    tmp_path: Path, stated: str, text: str | None, asked: str
) -> None:
    if text is not None:
        (tmp_path / "config.pbtxt").write_text(text)
    assert read_kind(stated, tmp_path) == asked
