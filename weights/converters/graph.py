"""Builds an ONNX graph node by node, and checks it when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from weights.errors import WeightsError

# What ONNX Runtime has read since 1.12, and thus every Triton since 22.08.
OPSET = 17
IR_VERSION = 8
PRODUCER = "triton-dispatcher weights"


class GraphBuilder:
    """Collects nodes and constants; a node has the name of its output tensor."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add one operation and return the name of the tensor that it makes, `output`."""
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant as float32 (or int64, for integers) and return its name."""
        dtype = np.float32 if np.issubdtype(array.dtype, np.floating) else np.int64
        stored = np.ascontiguousarray(array, dtype).reshape(array.shape)
        self._constants[name] = numpy_helper.from_array(stored, name)
        return name

    def convolution(
        self,
        name: str,
        source: str,
        kernel: NDArray[Any],
        bias: NDArray[Any],
        output: str = "",
        **attributes: Any,
    ) -> str:
        """Add a convolution with a kernel of height × width × in × out."""
        constants = [
            self.constant(f"{name}.kernel", kernel.transpose(3, 2, 0, 1)),
            self.constant(f"{name}.bias", bias),
        ]
        shape = list(kernel.shape[:2])
        inputs = [source, *constants]
        return self.node("Conv", inputs, output or name, kernel_shape=shape, **attributes)

    def finish(
        self,
        name: str,
        inputs: tuple[str, Sequence[int]],
        outputs: tuple[str, Sequence[int]],
    ) -> onnx.ModelProto:
        """Return the checked model with one float32 input and one float32 output.

        `inputs` and `outputs` are each a tensor's name and its shape without the batch axis,
        which is put in front and is dynamic.
        """
        graph = helper.make_graph(
            self._nodes,
            name,
            [_tensor(*inputs)],
            [_tensor(*outputs)],
            list(self._constants.values()),
        )
        model = helper.make_model(
            graph,
            producer_name=PRODUCER,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        check(model)
        return model


def check(model: onnx.ModelProto) -> None:
    """Raise WeightsError unless ONNX's full check passes, shapes included."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise WeightsError(f"the converted model is not valid ONNX: {error}") from error


def _tensor(name: str, shape: Sequence[int]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
