"""An author's test sees the same of a model as the class sees on the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from clients.base import Client, Hints, Parameter, Payload
from clients.errors import (
    AskFailed,
    BadParameter,
    ClientDisabled,
    TensorsRefused,
    UnknownModel,
    UnknownVersion,
)
from clients.testing import OnnxModels, answer
from tests.support.models import onnx_models


@pytest.fixture
def models(tmp_path: Path) -> OnnxModels:
    """Two models that give back what they are given."""
    for name, kind in (("numbers", TensorProto.FLOAT), ("texts", TensorProto.STRING)):
        ends = [helper.make_tensor_value_info(end, kind, [None, 2]) for end in "xy"]
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])], name, ends[:1], ends[1:]
        )
        file = tmp_path / name / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, file)
    return OnnxModels(tmp_path)


def test_an_answer_cannot_be_written_into(models: OnnxModels) -> None:
    """gRPC's answer cannot either, where `scores -= scores.max()` is an error."""
    given = np.ones((1, 2), np.float32)
    scores = models.infer("numbers", {"x": given}, timeout=9)["y"]
    with pytest.raises(ValueError, match="read-only"):
        scores -= scores.max()
    assert scores.tolist() == [[1, 1]]
    given += 1


def test_without_a_payload_the_first_of_several_examples_is_sent(models: OnnxModels) -> None:
    class Several(Client):
        modelname = "numbers"
        examples = ({"numbers": [1, 2]}, {"numbers": [3, 4]})

        def inference(self, payload: Payload) -> Any:
            return self.infer({"x": self.numbers(payload, "numbers")[None]})["y"][0].tolist()

    assert answer(Several, None, models) == [1, 2]


def test_texts_are_bytes(models: OnnxModels) -> None:
    """They may be sent as either, so that one model's can be sent to another."""
    given = np.array([["one", "zwölf"], [b"three", ""]], np.object_)
    texts = models.infer("texts", {"x": given}, timeout=9)["y"]
    assert texts.tolist() == [[b"one", "zwölf".encode()], [b"three", b""]]
    for again in (texts, texts.astype("S")):
        assert (models.infer("texts", {"x": again}, timeout=9)["y"] == texts).all()


LISTED = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }\n'
)


@pytest.mark.parametrize(
    ("config", "most"), [("max_batch_size: 8", 8), ("", 4), ("max_batch_size: 0", 0), (LISTED, 0)]
)
def test_a_batch_that_is_too_large_is_refused(models: OnnxModels, config: str, most: int) -> None:
    """Where the configuration says nothing it takes four."""
    (models.folder / "numbers" / "config.pbtxt").write_text(config)
    assert models.signature("numbers", timeout=9).max_batch_size == most
    models.infer("numbers", {"x": np.ones((most or 99, 2), np.float32)}, timeout=9)
    if most:
        with pytest.raises(TensorsRefused, match=f"the model takes at most {most} at once"):
            models.infer("numbers", {"x": np.ones((most + 1, 2), np.float32)}, timeout=9)


def test_a_scalar_has_the_one_dimension_that_triton_wants(models: OnnxModels) -> None:
    """And beside a batch likewise: as `test_onnxruntime_on_triton.py` has it of Triton itself."""
    onnx_models.scalar(models.folder / "scalar" / "1" / "model.onnx")
    onnx_models.scalar_rows(models.folder / "rows" / "1" / "model.onnx")
    for model, shape, wrong in (("scalar", [1], []), ("rows", [2, 1], [2])):
        given = np.full(shape, 2, np.float32)
        assert (models.infer(model, {"x": given}, timeout=9)["y"] == given + 1).all()
        assert models.infer(model, {"x": given}, timeout=9)["y"].shape == given.shape
        with pytest.raises(TensorsRefused) as caught:
            models.infer(model, {"x": np.zeros(wrong, np.float32)}, timeout=9)
        assert caught.value.hint.startswith(f"send the same data as {shape}")


def test_a_model_gets_its_state_as_at_the_beginning_of_a_sequence(models: OnnxModels) -> None:
    onnx_models.running(models.folder / "running" / "1" / "model.onnx")
    state = 'input_name: "sum" output_name: "next" data_type: TYPE_FP32 dims: [1]'
    config = f"max_batch_size: 4\nsequence_batching {{ state {{ {state} }} }}\n"
    (models.folder / "running" / "config.pbtxt").write_text(config)
    (only,) = models.signature("running", timeout=9).inputs
    assert only.name == "x"
    answered = models.infer("running", {"x": np.array([[7]], np.float32)}, timeout=9)
    assert answered["y"].tolist() == [[7]]


def test_a_version_is_a_text(models: OnnxModels) -> None:
    given = {"x": np.ones((1, 2), np.float32)}
    models.infer("numbers", given, version="1", timeout=9)
    with pytest.raises(TensorsRefused, match="model version must be a string"):
        models.infer("numbers", given, version=1, timeout=9)  # type: ignore[arg-type]


def test_classes_come_as_triton_writes_them_without_labels(models: OnnxModels) -> None:
    given = {"x": np.array([[1, 3], [2.5, -1]], np.float32)}
    best = models.infer("numbers", given, classes={"y": 1}, timeout=9)["y"]
    assert best.tolist() == [[b"3.000000:1"], [b"2.500000:0"]]


def test_a_model_without_a_file_or_a_version_is_unknown(models: OnnxModels) -> None:
    given = {"x": np.ones((1, 2), np.float32)}
    with pytest.raises(UnknownModel, match=r"others/1/model\.onnx"):
        models.infer("others", given, timeout=9)
    with pytest.raises(UnknownVersion, match="'numbers' has no version '3'"):
        models.infer("numbers", given, version="3", timeout=9)


class Asking(Client):
    """Asks its model with the arguments of `infer` that the payload has."""

    modelname = "numbers"
    example = {}

    def inference(self, payload: Payload) -> Any:
        given = np.array([[1, 2], [3, 4]], np.float32)
        hints = Hints(rows={"y": [1]}) if payload.get("hints") else Hints()
        how = {name: value for name, value in payload.items() if name != "hints"}
        return self.infer({"x": given}, hints=hints, **how)["y"].tolist()


def test_hints_are_heeded_where_the_server_does_not_know_them(models: OnnxModels) -> None:
    assert answer(Asking, {}, models) == [[1, 2], [3, 4]]
    assert answer(Asking, {"hints": True}, models) == [[3, 4]]


class Asks(Client):
    """Asks another model what its payload says."""

    modelname = "asks"
    example = {}

    def inference(self, payload: Payload) -> Any:
        return self.ask(payload["name"], payload["made"], payload.get("parameters"))


class Length(Client):
    modelname = "length"
    aliases = ("size",)
    example = {"text": "x"}
    parameters = {"factor": Parameter(1, 1, 9, "what to multiply by")}

    def inference(self, payload: Payload) -> Any:
        return len(self.text(payload)) * self.request.parameters["factor"]


def test_other_models_are_asked_by_their_classes_or_by_what_a_test_names(
    models: OnnxModels,
) -> None:
    def asked(name: str, made: Any, parameters: Any = None) -> Any:
        def stand_in(payload: Payload, parameters: Mapping[str, Any]) -> Any:
            return [payload["x"], dict(parameters)]

        payload = {"name": name, "made": made, "parameters": parameters}
        return answer(Asks, payload, models, others={"length": Length, "fake": stand_in})

    assert asked("length", {"text": "four"}, {"factor": 2}) == 8
    assert asked("length", [{"text": "a"}, {"text": "bc"}]) == [1, 2]
    assert asked("fake", {"x": 5}, {"any": 1}) == [5, {"any": 1}]
    assert asked("fake", [{"x": 5}, {"x": 6}]) == [[5, {}], [6, {}]]
    with pytest.raises(AskFailed, match="'asks' asked 'length', which refuses the payload"):
        asked("length", {"txt": ""})
    with pytest.raises(UnknownModel, match="'nobody', which 'asks' asks: there is no model"):
        asked("nobody", {})
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    assert asked("numbers", {"inputs": [tensor]})["outputs"][0]["data"] == [1, 2]


def test_a_model_of_a_family_is_asked_by_its_dispatch_toml(models: OnnxModels) -> None:
    (models.folder / "numbers" / "dispatch.toml").write_text(
        'aliases = ["sums"]\nexample = { inputs = [] }'
    )
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [3, 4]}
    found = answer(Asks, {"name": "sums", "made": {"inputs": [tensor]}}, models)
    assert found["outputs"][0]["data"] == [3, 4]


def test_a_class_beside_the_models_is_asked_as_it_is_served(models: OnnxModels) -> None:
    place = models.folder / "code" / "clients" / "doubles.py"
    place.parent.mkdir(parents=True)
    place.write_text(
        "from clients.base import Client\n\nclass Doubles(Client):\n    modelname = 'doubles'\n"
        "    example = {'x': 1}\n\n    def inference(self, payload):\n"
        "        return 2 * payload['x']\n"
    )
    assert answer(Asks, {"name": "doubles", "made": {"x": 4}}, models) == 8


def test_an_error_says_its_hint(models: OnnxModels) -> None:
    with pytest.raises(BadParameter, match=r"is 99 \(expected a whole number from 1 to 9"):
        answer(Length, None, models, parameters={"factor": 99})
    assert str(BadParameter("x is 9")) == "x is 9"


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"example": None}, "it has no example"),
        ({"aliases": "x"}, "its aliases are 'x'"),
        ({"media": {"picure": "img"}}, "its media have 'picure'"),
        ({"pair_fields": ("query",)}, "its pair_fields are"),
        (
            {"compared_as": "clases"},
            "its compared_as is .clases.; it may be classes, words, objects",
        ),
    ],
)
def test_a_class_that_would_not_be_served_has_no_answer(
    models: OnnxModels, declared: dict[str, object], words: str
) -> None:
    right = {"modelname": "numbers", "example": {}, "inference": lambda self, payload: 1}
    assert answer(type("Right", (Client,), right), {}, models) == 1
    with pytest.raises(ClientDisabled, match=f"Wrong: {words}"):
        answer(type("Wrong", (Client,), right | declared), {}, models)
