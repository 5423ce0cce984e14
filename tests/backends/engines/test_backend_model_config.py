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
UNSHAPED = spec("u")


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


BATCHED = {"input": [tensor("x", 3)], "output": [tensor("y", -1)]}
UNBATCHED = {"input": [tensor("x", -1, 3)], "output": [tensor("y", -1, -1)]}
BY_FOUR = {"max_batch_size": 4, **BATCHED}
DYNAMIC = {"dynamic_batching": {}}
SEQUENCE = {"sequence_batching": {}}
WARMUP = {"model_warmup": [{"batch_size": 2}]}


class TestCompletion:
    @pytest.mark.parametrize(
        ("limit", "written", "independent", "added"),
        [
            (None, {}, True, {**BY_FOUR, **DYNAMIC}),
            (None, {}, False, UNBATCHED),
            (0, {}, None, UNBATCHED),
            (8, {}, False, BATCHED),
            (1, {}, None, BATCHED),
            (2, {"input": [tensor("x", 3)]}, True, {"output": [tensor("y", -1)], **DYNAMIC}),
            (
                None,
                {"input": [tensor("x", 3)]},
                False,
                {"max_batch_size": 4, "output": [tensor("y", -1)]},
            ),
            (
                None,
                {"output": [tensor("y", -1)]},
                True,
                {"max_batch_size": 4, "input": [tensor("x", 3)], **DYNAMIC},
            ),
            (None, WARMUP, False, BY_FOUR),
            (None, {"input": [tensor("x", -1, 3)]}, None, {"output": [tensor("y", -1, -1)]}),
            (None, {"output": [tensor("y", -1, -1)]}, None, {"input": [tensor("x", -1, 3)]}),
            (8, DYNAMIC, None, BATCHED),
            (8, SEQUENCE, None, BATCHED),
            (None, DYNAMIC, None, BY_FOUR),
            (None, SEQUENCE, None, BY_FOUR),
            (None, UNBATCHED, None, {}),
        ],
        ids=[
            "rows that are known to be independent batch",
            "a dynamic first dimension alone means no batch",
            "a written 0 means no batch whatever is known",
            "a written size is kept but requests share no runs",
            "one row needs no scheduler",
            "given inputs are kept",
            "inputs for a batch get one but requests share no runs",
            "so do outputs, and share them where rows are independent",
            "so does a warmup",
            "inputs that are listed with their first dimension get no batch",
            "nor do outputs",
            "a chosen scheduler is kept",
            "so is that of sequences",
            "a scheduler gets a batch",
            "so does that of sequences",
            "a configuration with inputs and outputs is left alone",
        ],
    )
    def test_of_dynamic_rows(
        self,
        limit: int | None,
        written: dict[str, Any],
        independent: bool | None,
        added: dict[str, Any],
    ) -> None:
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
        assert completed({"name": "m"}, SCALAR)["input"] == [tensor("x", 1)]
        rows = FileSignature((spec("x", -1),), (spec("y", -1),))
        added = completed({"name": "m"}, rows, independent=True)
        assert added["output"] == [tensor("y", 1, reshape={"shape": []})]

    def test_an_output_of_unknown_rank_may_be_of_any_size(self) -> None:
        added = completed({"name": "m"}, FileSignature(ROWS.inputs, (UNSHAPED,)))
        assert added == {"input": [tensor("x", -1, 3)], "output": [tensor("u", -1)]}

    def test_batching_of_a_fixed_dimension_is_refused(self) -> None:
        said = r"max_batch_size is 8 .* 'x' has shape \[1, 3\] in the file, .* dynamic \(-1\) first"
        with pytest.raises(ModelConfigError, match=said):
            completed({"name": "m", "max_batch_size": 8}, FIXED, stated=True)


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
            ({"sequence_batching": {"state": [{}]}}, "sequence_batching has state"),
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
