"""For the tests of authors: ask a class as the endpoint does, without Triton; docs/classes.md."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.base import Client, Environment, Payload
from clients.errors import ClientDisabled, ModelFailed, TensorsRefused, UnknownModel, UnknownVersion
from clients.families.base.dispatch_toml import FILE
from clients.families.base.family import client_class
from clients.model_files.config_text import Message, read_folder
from clients.model_files.crash_causes import DEFAULT_MAX_BATCH_SIZE
from clients.plugins.discovery import classes_of_file, sources
from clients.plugins.registry import Registry, find_client, take
from clients.plugins.validation import declaration_fault, object_fault
from clients.request import Request, SequencePart
from clients.tensors.classes import classify
from clients.tensors.client import examples_of
from clients.tensors.signature import DTYPES, refuse_wrong_tensors
from clients.triton.server import NO_HINTS, Hints, Inference, Signature, Tensors, TensorSpec

TIME_S = 60.0  # for one answer

# A function of a test in the place of another model: its result for a payload and parameters.
Answering = Callable[[Payload, Mapping[str, Any]], Any]

# ONNX Runtime's other names are Triton's, in small letters.
DATATYPES = {"float16": "FP16", "float": "FP32", "double": "FP64", "string": "BYTES"}


def clients_in(path: str | Path) -> list[type[Client]]:
    """Return the client classes in a file, or in a folder that is a package.

    Of a `dispatch.toml` it is the class that serves its model.
    """
    path = Path(path).resolve()
    if path.name == FILE:
        return [client_class(path)]
    return classes_of_file(path / "__init__.py" if path.is_dir() else path)


def answer(
    client: type[Client],
    payload: Payload | None,
    models: OnnxModels,
    *,
    parameters: Mapping[str, Any] | None = None,
    version: str = "",
    others: Mapping[str, type[Client] | Answering] | None = None,
) -> Any:
    """Return a client's result for one payload, as a caller gets it.

    Without a payload the first example of the class is sent. `parameters` are checked as the
    endpoint checks them. `others` are the models that the class asks by `ask`, by name: the class
    of one, or a function that returns its result for a payload and parameters. Models in the folder
    of `models` that have a `dispatch.toml`, a class in its `code/clients`, or neither, need not be
    named.

    Raises:
        ClientDisabled: the class has a mistake, and would not be served.
        InferenceError: the caller would get this error.
        TypeError: the result is not JSON.

    """
    if fault := declaration_fault(client):
        raise ClientDisabled(f"{client.__name__}: {fault}")
    environment = Environment(models, models.folder)
    made = client(environment)
    if fault := object_fault(made):
        raise ClientDisabled(f"{client.__name__}: {fault}")
    environment.others.find = neighbours(environment, others or {})
    if payload is None:
        payload = examples_of(made)[0]
    request = Request(
        parameters=made.read_parameters(parameters or {}),
        version=version,
        deadline=time.monotonic() + TIME_S,
        payloads=[payload],
    )
    with request.active():
        return json.loads(json.dumps(made.run_inference(payload)))


def neighbours(
    environment: Environment, others: Mapping[str, type[Client] | Answering]
) -> Callable[[str, float], Client]:
    """Return what finds the client of a model that a class asks; `Others.find` says how."""
    clients: dict[str, Client] = {}
    for name, other in others.items():
        kind = other if isinstance(other, type) else stand_in(name, other)
        if fault := declaration_fault(kind):
            raise ClientDisabled(f"{kind.__name__}: {fault}")
        clients[name] = kind(environment)

    @cache  # made when it is needed: it reads labels and so on
    def registry() -> Registry:
        made, folder = Registry(), environment.model_repository
        found = list(sources(folder, [folder / "code" / "clients"]))
        take(made, environment, found, {one.where for one in found})
        return made

    def find(asked: str, until: float) -> Client:
        return clients.get(asked) or find_client(registry(), environment, asked, until)

    return find


def stand_in(name: str, result: Answering) -> type[Client]:
    """Return a class whose result for a payload and parameters a test's function returns."""

    class StandIn(Client):
        modelname = name
        example = {}
        max_batch_size = 1

        @classmethod
        def read_parameters(
            cls,
            given: Mapping[str, Any],
            texts: Mapping[str, str] | None = None,  # noqa: ARG003  a test sends none
        ) -> dict[str, Any]:
            return dict(given)

        def inference(self, payload: Payload) -> Any:
            return json.loads(json.dumps(result(payload, self.request.parameters)))

    return StandIn


class OnnxModels(Inference):
    """Runs the ONNX models of a folder, laid out as Triton wants it, in this process."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        self._sessions: dict[Path, Any] = {}

    def infer(
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        hints: Hints = NO_HINTS,
        version: str = "",
        sequence: SequencePart | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float,
    ) -> dict[str, npt.NDArray[np.generic]]:
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

        session, classes = self._session(model, version), classes or {}
        signature = self.signature(model, version, timeout=0.0)
        batched = signature.max_batch_size > 0
        ranks = {one.name: len(one.shape) for one in session.get_inputs()}
        names = list(outputs or classes) or [one.name for one in session.get_outputs()]
        given = {name: as_taken(array) for name, array in inputs.items()}
        refuse_wrong_tensors(given, signature)
        given |= initial_states(read_folder(self.folder / model), batched=batched)
        for name, array in given.items():  # see `as_triton_has`
            if array.shape[ranks.get(name, array.ndim) :] == (1,):
                given[name] = array.reshape(array.shape[:-1])
        try:
            results = [as_served(result, batched=batched) for result in session.run(names, given)]
        except ValueError as error:  # an unknown output
            raise TensorsRefused(f"the model {model!r}: {error}") from error
        except InvalidArgument as error:
            raise TensorsRefused(f"{model!r}: {error}") from error
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ModelFailed(f"{model!r}: {error}") from error
        return {
            name: classify(result, classes[name], (), batched=batched)
            if name in classes
            else result
            for name, result in zip(names, results, strict=True)
        }

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        """Return it as Triton completes what the configuration leaves out."""
        session = self._session(model, version)
        config = read_folder(self.folder / model)
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if config.all("max_batch_size") or (config.all("input") and config.all("output")):
            most = config.readable_number("max_batch_size")
        else:
            any_size = all(sizes(one.shape)[:1] == (-1,) for one in (*inputs, *outputs))
            most = DEFAULT_MAX_BATCH_SIZE if any_size else 0

        states = initial_states(config, batched=most > 0)

        def specs(kind: str, nodes: Sequence[Any], *, optional: bool = False) -> list[TensorSpec]:
            listed = {one.text("name"): one.texts("dims") for one in config.messages(kind)}
            batch = (-1,) if most else ()
            return [
                TensorSpec(
                    one.name,
                    datatype(one.type),
                    (*batch, *map(int, listed[one.name]))
                    if one.name in listed and not one.shape  # a scalar, or of unknown rank
                    else as_triton_has(sizes(one.shape), batched=most > 0),
                    optional=optional,
                )
                for one in nodes
                if one.name not in states
            ]

        defaults = specs("input", session.get_overridable_initializers(), optional=True)
        return Signature(
            most, (*specs("input", inputs), *defaults), tuple(specs("output", outputs))
        )

    def _session(self, model: str, version: str) -> Any:
        import onnxruntime

        if not isinstance(version, str):
            raise TensorsRefused("model version must be a string")
        files = {file.parent.name: file for file in (self.folder / model).glob("[1-9]*/model.onnx")}
        if not files:
            raise UnknownModel(f"there is no file {self.folder}/{model}/1/model.onnx")
        if version and version not in files:
            raise UnknownVersion(f"the model {model!r} has no version {version!r}")
        file = files[version or max(files, key=int)]
        if file not in self._sessions:
            self._sessions[file] = onnxruntime.InferenceSession(file)
        return self._sessions[file]


def initial_states(config: Message, *, batched: bool) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs that a model gets from its sequence, at its beginning: zeros."""
    states = [
        one
        for batching in config.messages("sequence_batching")
        for one in batching.messages("state")
    ]
    dims = [(one.messages("initial_state") or [one])[0].texts("dims") for one in states]
    return {
        one.text("input_name"): np.zeros(
            ([1] if batched else []) + [max(1, int(size)) for size in sizes],
            DTYPES[one.text("data_type").removeprefix("TYPE_")],
        )
        for one, sizes in zip(states, dims, strict=True)
    }


def datatype(kind: str) -> str:
    """Return the V2 name for a type of ONNX Runtime, such as `tensor(float)`."""
    inner = kind.removeprefix("tensor(").removesuffix(")")
    return DATATYPES.get(inner, inner.upper())


def sizes(shape: Sequence[int | str | None]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def as_triton_has(shape: Sequence[int], *, batched: bool) -> tuple[int, ...]:
    """Return a tensor's shape in Triton: besides the batch it has one dimension at least."""
    return tuple(shape) if len(shape) > batched else (*shape, 1)


def as_taken(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an input for ONNX Runtime: contiguous, writable, `str` for texts."""
    if array.dtype.kind not in "OS":
        return np.array(array)
    texts = [one.decode() if isinstance(one, bytes) else one for one in array.flat]
    return np.array(texts, np.object_).reshape(array.shape)


def as_served(output: npt.NDArray[Any], *, batched: bool) -> npt.NDArray[Any]:
    """Return an output as Triton gives it: read-only, with `bytes` for texts."""
    if output.dtype == np.object_:
        texts = [one.encode() if isinstance(one, str) else one for one in output.flat]
        output = np.array(texts, np.object_).reshape(output.shape)
    output = output.reshape(as_triton_has(output.shape, batched=batched))
    output.flags.writeable = False
    return output
