"""For an author's own tests: a class asked as the endpoint asks it, and models run without Triton.

from clients.base import Environment
from clients.testing import OnnxModels, answer, clients_in

(Double,) = clients_in("code/clients/double.py")
assert answer(Double, {"numbers": [1, 2.5]}, OnnxModels(".")) == [2.0, 5.0]
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Client, Environment, Payload
from clients.errors import ClientDisabled, ModelFailed, TensorsRefused, UnknownModel, UnknownVersion
from clients.plugins.discovery import classes_of_file
from clients.plugins.validation import declaration_fault, object_fault
from clients.repository.config_text import read
from clients.repository.files import text_of
from clients.request import Request
from clients.tensors.client import at_most
from clients.tensors.scores import digits
from clients.triton.server import (
    Above,
    ModelServer,
    ModelState,
    Padding,
    Rows,
    Signature,
    Tensors,
    TensorSpec,
)

TIME_S = 60.0  # for one answer
DEFAULT_MAX_BATCH_SIZE = 4  # where the configuration leaves it to the model's file

# ONNX Runtime calls the others as Triton does, in small letters.
DATATYPES = {"float16": "FP16", "float": "FP32", "double": "FP64", "string": "BYTES"}


def clients_in(path: str | Path) -> list[type[Client]]:
    """Return the client classes in a file, or in a folder that is a package."""
    path = Path(path).resolve()
    return classes_of_file(path / "__init__.py" if path.is_dir() else path)


def answer(
    client: type[Client],
    payload: Payload,
    models: OnnxModels,
    *,
    parameters: Mapping[str, Any] | None = None,
    version: str = "",
) -> Any:
    """Return a client's result for one payload, as a caller gets it.

    Args:
        client: the class.
        payload: what the caller sends.
        models: where the models run.
        parameters: the caller's; checked as the endpoint checks them.
        version: of the model.

    Raises:
        ClientDisabled: the class is declared so that it would not be served.
        InferenceError: what the caller would be told.
        TypeError: the result is not JSON.

    """
    if fault := declaration_fault(client):
        raise ClientDisabled(f"{client.__name__}: {fault}")
    made = client(Environment(models, models.folder))
    if fault := object_fault(made):
        raise ClientDisabled(f"{client.__name__}: {fault}")
    request = Request(
        parameters=made.read_parameters(parameters or {}),
        version=version,
        deadline=time.monotonic() + TIME_S,
    )
    with request.active():
        return json.loads(json.dumps(made.inference(payload)))


class OnnxModels(ModelServer):
    """Runs the ONNX models of a repository in this process.

    Args:
        folder: with a folder per model, as Triton wants it.

    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        self._sessions: dict[Path, Any] = {}

    def infer(  # noqa: PLR0913  as in the seam
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        rows: Rows | None = None,  # noqa: ARG002  whoever asks picks them
        above: Above | None = None,  # noqa: ARG002  likewise
        padding: Padding | None = None,  # noqa: ARG002  there is nobody to share a run with
        version: str = "",
        timeout: float,  # noqa: ARG002  nothing here is waited for
    ) -> dict[str, npt.NDArray[np.generic]]:
        session, classes = self._session(model, version), classes or {}
        most = self._max_batch_size(model, session)
        if most and any(array.ndim and len(array) > most for array in inputs.values()):
            raise TensorsRefused(
                f"inference request batch-size must be <= {most} for {model!r}", hint=at_most(most)
            )
        names = list(outputs or classes) or [one.name for one in session.get_outputs()]
        try:
            given = {name: as_taken(array) for name, array in inputs.items()}
            results = [as_served(result) for result in session.run(names, given)]
        except ValueError as error:  # a name that is not there, or is missing
            raise TensorsRefused(f"the model {model!r}: {error}") from error
        except Exception as error:
            # ONNX Runtime's own exceptions have no documented base.
            refused = type(error).__name__ == "InvalidArgument"
            raise (TensorsRefused if refused else ModelFailed)(f"{model!r}: {error}") from error
        return {
            name: best_classes(result, classes[name]) if name in classes else result
            for name, result in zip(names, results, strict=True)
        }

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:  # noqa: ARG002
        session = self._session(model, version)
        inputs, outputs = (
            tuple(TensorSpec(one.name, datatype(one.type), sizes(one.shape)) for one in side)
            for side in (session.get_inputs(), session.get_outputs())
        )
        return Signature(self._max_batch_size(model, session), inputs, outputs)

    def _max_batch_size(self, model: str, session: Any) -> int:
        """Return it as Triton has it, which completes what lists no inputs or outputs."""
        config = read(text(self.folder / model / "config.pbtxt"))
        if config.all("max_batch_size") or (config.all("input") and config.all("output")):
            return config.readable_number("max_batch_size")
        sides = (*session.get_inputs(), *session.get_outputs())
        return DEFAULT_MAX_BATCH_SIZE * all(sizes(one.shape)[:1] == (-1,) for one in sides)

    def instances(self, model: str, *, timeout: float) -> int:  # noqa: ARG002
        return 1

    def answered(self, model: str, *, timeout: float) -> int:  # noqa: ARG002
        return 0

    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        """Do nothing: a file is always there."""

    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        """Do nothing: nobody waits."""

    def take_failing(self) -> set[str]:
        return set()

    def is_ready(self, *, timeout: float) -> bool:  # noqa: ARG002
        return True

    def models(self, *, timeout: float) -> list[ModelState]:  # noqa: ARG002
        files = sorted(self.folder.glob("*/[1-9]*/model.onnx"))
        return [ModelState(f.parent.parent.name, f.parent.name, "READY") for f in files]

    def load(self, model: str, *, timeout: float) -> None:
        pass

    def reload(self, model: str, *, timeout: float) -> None:
        """Do nothing: a file needs no process."""

    def unload(self, model: str, *, timeout: float) -> None:
        pass

    def _session(self, model: str, version: str) -> Any:
        import onnxruntime  # noqa: PLC0415  a web worker does without

        if not isinstance(version, str):
            raise TensorsRefused("model version must be a string")
        states = [state for state in self.models(timeout=TIME_S) if state.name == model]
        if not states:
            raise UnknownModel(f"there is no file {self.folder}/{model}/1/model.onnx")
        versions = [state.version for state in states if version in ("", state.version)]
        if not versions:
            raise UnknownVersion(f"the model {model!r} has no version {version!r}")
        file = self.folder / model / max(versions, key=int) / "model.onnx"
        if file not in self._sessions:
            self._sessions[file] = onnxruntime.InferenceSession(file)
        return self._sessions[file]


def datatype(kind: str) -> str:
    """Return the V2 protocol's name for what ONNX Runtime calls `tensor(float)`."""
    inner = kind.removeprefix("tensor(").removesuffix(")")
    return DATATYPES.get(inner, inner.upper())


def sizes(shape: Sequence[int | str | None]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def as_taken(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an input as ONNX Runtime takes it: in one piece, not read only, texts no bytes."""
    if array.dtype.kind not in "OS":
        return np.array(array)
    texts = [one.decode() if isinstance(one, bytes) else one for one in array.flat]
    return np.array(texts, np.object_).reshape(array.shape)


def as_served(output: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an output as it comes from Triton: texts as bytes, and not to be written into."""
    if output.dtype == np.object_:
        texts = [one.encode() if isinstance(one, str) else one for one in output.flat]
        output = np.array(texts, np.object_).reshape(output.shape)
    output.flags.writeable = False
    return output


def best_classes(scores: npt.NDArray[Any], most: int) -> npt.NDArray[np.object_]:
    """Return the best of each row, as they come where there are no labels: "score:index"."""
    rows = scores.reshape(len(scores), -1)
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :most]
    texts = [
        [f"{digits(row[i])}:{i}".encode() for i in places]
        for row, places in zip(rows, best, strict=True)
    ]
    return np.array(texts, np.object_)


def text(path: Path) -> str:
    return text_of(path) if path.is_file() else ""
