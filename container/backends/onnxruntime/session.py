"""A session of ONNX Runtime for one model instance: its tensors, and runs on plain arrays."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from container.backends import allocator
from container.backends.activity import Board
from container.backends.batching import conform, decoded
from container.backends.cpu_share import usable_cpus
from container.backends.model_config import (
    DYNAMIC,
    ModelConfigError,
    Signature,
    TensorSpec,
)
from container.backends.onnxruntime.by_rows import (
    NUMBERS,
    SHAPE,
    by_rows,
    may_have,
    numbers_of,
    of_all_or_rows,
    outputs_by_rows,
)
from container.backends.onnxruntime.execution_providers import CPU
from container.backends.onnxruntime.optimized import WAYS, OptimizedFile, files_of, usable
from container.backends.onnxruntime.unknown_ranks import unknown_ranks
from container.backends.onnxruntime.widths import Widths, between

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from container.backends.batching import Rows, Tensors
    from container.backends.onnxruntime.execution_providers import Provider
    from container.backends.onnxruntime.session_settings import SessionSettings

DEFAULT_FILE = "model.onnx"

MOST_OWN = 0.25
"""Of the size of its weights: what a session may have of its own for a second one to be opened."""

MOST_SESSIONS = 4
"""So many times as much all further ones may have."""

DONE = "ORT_DISABLE_ALL"  # of an optimized graph

LITTLE = 16 * 2**20  # bytes that a session may have of its own in any case

LARGEST = 2**31
"""Bytes of a model that is written anew only so that runs of one instance have a session each, and
a lone one another: a tenth more throughput, for which nobody waits a minute at the start."""

LEAST_OTHERS = 2
"""Runs that share the cores where one is not alone: itself, and another that is expected."""

ALL: Mapping[str, Rows] = {}

ERRORS_ONLY = 3  # a level of ONNX Runtime's log

_DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
"""ONNX Runtime's names of the element types that Triton's Python backend can carry."""

ZIPMAP = (
    "convert the model again with skl2onnx.to_onnx(model, X, options={'zipmap': False}), or with "
    "zipmap=False in onnxmltools: the probabilities are a tensor then"
)
CAST = (
    "export the model with inputs and outputs of float32 or float16; behind the one, and before "
    "the other, a Cast node leaves all in between as it is"
)

_FIXES = (
    ("INVALID_PROTOBUF", "fetch or export it again: it is damaged, or no file of ONNX"),
    ("No graph was found", "fetch or export it again: it is empty, or no file of ONNX"),
    (
        "External data path",
        "put the file with its weights beside it, under the name that it had at the export",
    ),
    ("opset version", "export it with an older opset, such as opset_version=17 in torch.onnx"),
    ("IR version", "save it in an older format: model.ir_version = 8, then onnx.save"),
    (
        "is not a registered function/op",
        (
            "export it with operators of ONNX alone; or put the library of this one into "
            "config.pbtxt, model_operations { op_library_filename: … }"
        ),
    ),
    (
        "NOT_IMPLEMENTED",
        "export the model in float32: this operator is not there for the type that it is given",
    ),
)
"""What helps, by what ONNX Runtime says; it has one class of errors for most of them."""

_LOCALE = re.compile(r"Failed to construct locale with name:([\w.@-]+)")


def model_file(folder: Path, configured: str) -> Path:
    """Return the model's file in its version folder; a folder of that name holds `model.onnx`.

    Raises:
        ModelConfigError: there is no such file.

    """
    file = folder / (configured or DEFAULT_FILE)
    if file.is_dir():
        file /= DEFAULT_FILE
    if not file.is_file():
        raise ModelConfigError(f"the model's file was expected at '{file}', but there is none.")
    return file


class ModelFile:
    """A model's file as it is written: its tensors, and runs of its graph, not optimized.

    Raises:
        ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.

    """

    def __init__(self, file: Path) -> None:
        onnxruntime = _import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = usable_cpus()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = _opened(file, options, [(CPU, {})])
        self.path = file
        self.runtime = f"onnxruntime {onnxruntime.__version__}"
        self.signature = _signature(self._session, file)

    def run(self, inputs: Tensors, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the named outputs; raise what ONNX Runtime raises."""
        return dict(zip(outputs, self._session.run(list(outputs), dict(inputs)), strict=True))


def read_signature(file: Path) -> Signature:
    """Return the tensors of a model file.

    Raises:
        ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.

    """
    return ModelFile(file).signature


def available_providers() -> list[str]:
    """Return the execution providers of the installed ONNX Runtime."""
    return list(_import_onnxruntime().get_available_providers())


class OnnxSession:
    """An open model; `at_once` threads may run it at a time, where it is not 0.

    Where there are several instances, or several runs at a time in one, it holds sessions over the
    same weights for as many runs as there may be: see `Widths`. Where each would need some weights
    of its own there are two, for a run that is alone and for all others, or one.

    Args:
        file: the model's file.
        settings: of its sessions; for other than CPUs they have no runs at a time.
        providers: execution providers in order of preference.
        dims: of the configured outputs: a scalar has none in the file, but the configuration and
            its readers expect some.
        shared: a folder for what the instances of one container share, if any.

    Raises:
        ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.

    """

    def __init__(
        self,
        file: Path,
        settings: SessionSettings,
        providers: Sequence[Provider],
        dims: Mapping[str, Sequence[int]],
        shared: Path | None = None,
    ) -> None:
        self.sessions: list[Any] = []
        self._optimized: OptimizedFile | None = None
        self.on_cpu = [name for name, _ in providers] == [CPU]
        self._board = _board(shared) if shared and self.on_cpu else None
        self._cpus = settings.lone_threads
        try:
            if shared and self._board and _wants_several(settings, file):
                self._optimized = _optimized(file, settings, providers, shared)
            self._widths = self._open(file, settings, providers)
        except BaseException:
            self.close()
            raise
        self._run_options = run_options(settings)
        self.by_rows = outputs_by_rows(self.sessions[0])
        """The outputs of which rows can be computed alone."""
        self.signature = _signature(self.sessions[0], file)
        self._scalars = {
            spec.name: tuple(1 for _ in dims[spec.name])
            for spec in self.signature.outputs
            if not spec.shape and spec.name in dims
        }
        self._inputs = {
            spec.name: spec for spec in (*self.signature.inputs, *self.signature.optional)
        }

    def _open(self, file: Path, settings: SessionSettings, providers: Sequence[Provider]) -> Widths:
        def opened(settings: SessionSettings, threads: int) -> Any:
            options = session_options(replace(settings, intra_op_threads=threads))
            self.sessions.append(_opened(file, options, providers))
            return self.sessions[-1]

        cpus = settings.lone_threads
        if self._optimized is None:
            return Widths(cpus, opened(settings, settings.intra_op_threads), {})
        file = self._optimized.graph
        _share_arena(settings)
        settings = replace(settings, graph_level=DONE)
        allocator.give_back()
        before = allocator.private_bytes()
        narrow = opened(settings, 1)
        allocator.give_back()
        own = allocator.private_bytes() - before
        most = max(LITTLE, MOST_OWN * self._optimized.size)
        further = between(cpus, settings.at_once)
        all_further = own * (1 + sum(further.values()))
        if settings.parallel or own > most or all_further > MOST_SESSIONS * most:
            further = {}
        # Several runs of one session share its threads.
        threads = settings.run_threads if own <= most else settings.intra_op_threads
        if threads > 1 and not further:
            self.sessions.clear()
            narrow = opened(settings, threads)
        wide: dict[int, list[Any]] = {}
        if own <= most:
            wide[cpus] = [opened(settings.alone(), cpus)]
        for width, number in further.items():
            wide[width] = [opened(settings, width) for _ in range(number)]
        return Widths(cpus, narrow, wide)

    def prepare(self, inputs: Tensors) -> Tensors:
        """Return a request's tensors in the shapes of the file, strings as str.

        Raises:
            RequestError: a shape is not one that the file accepts, or a string is not UTF-8.

        """
        return {
            name: decoded(name, array) if array.dtype == np.object_ else array
            for name, array in conform(inputs, self._inputs).items()
        }

    def running(self) -> AbstractContextManager[None]:
        """Return what surrounds the runs for some requests, and the copies before and after."""
        return self._board.running() if self._board else nullcontext()

    def is_crowded(self) -> bool:
        """Whether other instances have a run for each core."""
        return self._board is not None and self._board.others() >= self._cpus

    def run(
        self, inputs: Tensors, outputs: Sequence[str], rows: Mapping[str, Rows] = ALL
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs, with as many cores as there are for so many runs.

        ONNX Runtime's inference builds compute the whole graph all the same; the outputs that
        nobody asks for are not copied.

        Args:
            inputs: by name.
            outputs: the names of those that are wanted.
            rows: which alone are wanted of some of `by_rows`.

        Raises:
            ValueError: one of these has other dimensions.
            Exception: what ONNX Runtime raises.

        """
        return self._run(1, inputs, outputs, rows)

    def run_beside_others(
        self, inputs: Tensors, outputs: Sequence[str], rows: Mapping[str, Rows] = ALL
    ) -> dict[str, NDArray[Any]]:
        """Return the same, with no more cores than where there is another run."""
        return self._run(LEAST_OTHERS, inputs, outputs, rows)

    def _run(
        self,
        least: int,
        inputs: Tensors,
        outputs: Sequence[str],
        rows: Mapping[str, Rows],
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs of one of so many runs at least."""
        runs = self._board.runs() if self._board else LEAST_OTHERS
        by_rows = [name for name in self.by_rows if name in outputs]
        names = [*outputs, *(SHAPE + name for name in by_rows)]
        fed = {**inputs, **numbers_of(self.by_rows, rows)} if self.by_rows else dict(inputs)
        with self._widths.lent(max(least, runs)) as session:
            answer = dict(zip(names, session.run(names, fed, self._run_options), strict=True))
        for name in by_rows:
            answer[name] = of_all_or_rows(answer[name], answer.pop(SHAPE + name), rows.get(name))
        for name in self._scalars.keys() & answer.keys():
            if not answer[name].ndim:  # else its rank was unknown, and is that of Triton's answer
                answer[name] = answer[name].reshape(self._scalars[name])
        return answer

    def close(self) -> None:
        """Free the sessions, and what they alone shared."""
        self.sessions.clear()
        if self._optimized:
            self._optimized.close()


def session_options(settings: SessionSettings) -> Any:
    """Return the `onnxruntime.SessionOptions` of the settings."""
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    modes = onnxruntime.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if settings.parallel else modes.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, settings.graph_level
    )
    if settings.mem_arena is not None:
        options.enable_cpu_mem_arena = settings.mem_arena
    if settings.mem_pattern is not None:
        options.enable_mem_pattern = settings.mem_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.op_libraries:
        options.register_custom_ops_library(library)
    return options


def run_options(settings: SessionSettings) -> Any:
    """Return the `onnxruntime.RunOptions` of the settings."""
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.RunOptions()
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options


def _import_onnxruntime() -> Any:
    # Only where a file is opened: Triton starts one more process for each model, which completes
    # its configuration and often has nothing to open.
    try:
        import onnxruntime  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ModelConfigError(
            f"an ONNX model was given, but onnxruntime cannot be imported ({error}): it is "
            "expected in the environment of the container (pip install onnxruntime)."
        ) from error
    return onnxruntime


def _opened(file: Path, options: Any, providers: Sequence[Provider]) -> Any:
    onnxruntime = _import_onnxruntime()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=list(providers))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        what = f"ONNX Runtime cannot open '{file}': {reason}"
        raise ModelConfigError(what, _fix(reason)) from error


def _fix(reason: str) -> str:
    """Return what helps where a file cannot be opened; nothing where that is not known."""
    if locale := _LOCALE.search(reason):
        name = locale[1]
        language = name.partition(".")[0]
        return (
            f"give this machine the locale of its StringNormalizer, as root: apt-get install "
            f"locales && localedef --no-archive -i {language} -f UTF-8 {name}"
        )
    return next((fix for said, fix in _FIXES if said in reason), "")


def _wants_several(settings: SessionSettings, file: Path) -> bool:
    """Whether sessions over the same weights would be of use."""
    if settings.intra_op_threads < settings.lone_threads:
        return True  # several instances have them
    large = sum(one.stat().st_size for one in files_of(file)) > LARGEST
    return settings.run_threads < settings.lone_threads and not large


def _board(shared: Path) -> Board | None:
    try:
        return Board(shared / "activity")
    except OSError as error:
        sys.stderr.write(f"model instances do not see each other: {error}\n")
        return None


def _optimized(
    file: Path, settings: SessionSettings, providers: Sequence[Provider], shared: Path
) -> OptimizedFile | None:
    """Return the optimized model; None where it cannot be made, for which the log has the reason.

    What is wrong with the model itself is told when the file is opened as it is.
    """
    onnxruntime = _import_onnxruntime()

    def save(path: Path) -> None:
        # The first is in vain where there is a bias for each word of a vocabulary.
        for way in WAYS[1:] if settings.gathers else WAYS:
            options = session_options(settings)
            options.optimized_model_filepath = str(path)
            options.log_severity_level = ERRORS_ONLY  # it warns that the file is for this machine
            for key, value in way.items():
                options.add_session_config_entry(key, value)
            onnxruntime.InferenceSession(str(file), options, providers=list(providers))
            if usable(path):
                break
        options = session_options(replace(settings, graph_level=DONE))
        if may_have(_opened(path, options, providers).get_outputs()):
            _take_rows(path, lambda changed: _opened(changed, options, providers))

    try:
        key = (onnxruntime.__version__, settings)
        return OptimizedFile(shared / "optimized", file, key, save)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        sys.stderr.write(f"'{file}' is not optimized for all instances together: {reason}\n")
        return None


def _take_rows(graph: Path, opened: Callable[[Path], Any]) -> None:
    """Change a saved graph for `by_rows`, where that can be opened."""
    changed = graph.with_suffix(".by_rows")
    try:
        if new := by_rows(graph.read_bytes()):
            changed.write_bytes(new)
            opened(changed)
            changed.replace(graph)
    except Exception as error:  # it can do without
        sys.stderr.write(f"'{graph}' is not run by rows: {error}\n")
        changed.unlink(missing_ok=True)


def _share_arena(settings: SessionSettings) -> None:
    """Let the sessions of this process have their memory from one arena."""
    if settings.mem_arena is False:
        return
    onnxruntime = _import_onnxruntime()
    kinds = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", *kinds), None)
    settings.session_entries.setdefault("session.use_env_allocators", "1")


def _signature(session: Any, file: Path) -> Signature:
    """Return the tensors as the model's own file has them."""
    free = outputs_by_rows(session)
    unshaped = unknown_ranks(file)
    return Signature(
        inputs=tuple(
            spec
            for spec in _specs("input", session.get_inputs(), unshaped)
            if not spec.name.startswith(NUMBERS)
        ),
        outputs=tuple(
            replace(spec, shape=(DYNAMIC, DYNAMIC, spec.shape[-1])) if spec.name in free else spec
            for spec in _specs("output", session.get_outputs(), unshaped)
            if not spec.name.startswith(SHAPE)
        ),
        optional=_specs("input", session.get_overridable_initializers(), unshaped),
    )


def _specs(
    kind: str, nodes: Iterable[Any], unshaped: Collection[str] = ()
) -> tuple[TensorSpec, ...]:
    specs = []
    for node in nodes:
        data_type = _DATA_TYPES.get(node.type)
        if data_type is None:
            raise _not_carried(kind, node)
        # A named dimension, or one without name or size, is dynamic.
        shape = tuple(size if isinstance(size, int) else DYNAMIC for size in node.shape)
        specs.append(TensorSpec(node.name, data_type, shape, node.name in unshaped))
    return tuple(specs)


def _not_carried(kind: str, node: Any) -> ModelConfigError:
    """Return the error for a tensor of a type that Triton's Python backend does not carry."""
    what = f"{kind} '{node.name}' is a {node.type} in the file, which Triton cannot carry."
    if node.type.startswith("seq(map("):
        what = f"{kind} '{node.name}' is a sequence of maps (ZipMap), which Triton cannot carry."
        return ModelConfigError(what, ZIPMAP)
    if node.type.startswith("tensor("):
        return ModelConfigError(what, CAST)
    return ModelConfigError(what, f"export the model with tensors alone: {', '.join(_DATA_TYPES)}")
