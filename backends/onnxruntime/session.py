"""A session of ONNX Runtime for one model instance, on plain arrays."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from backends.batching.item import ByRows
from backends.machine import allocator
from backends.machine.cpu_share import usable_cpus
from backends.model_config import (
    DYNAMIC,
    FileSignature,
    FileTensor,
    ModelConfigError,
    has_operator,
)
from backends.onnx_files.rows import ALL, of_all_or_rows, take_rows, with_numbers
from backends.onnxruntime.execution_providers import CPU, CUDA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import RunRows, Tensors
    from backends.onnxruntime.execution_providers import Provider
    from backends.onnxruntime.session_settings import SessionSettings

DEFAULT_FILE = "model.onnx"

SCALED_BY_THREAD = (b"DynamicQuantizeLSTM",)
"""The operators that quantize the rows of each thread with a scale of their own: two rows differed
by 3 % of an output's range between one thread and two."""

FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
"""For a model that is no file; its weights in files of their own are named from there."""

ERROR, FATAL = 3, 4  # ONNX Runtime's numbers of these levels of its log

DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    **{f"tensor(uint{bits})": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(int{bits})": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
"""ONNX Runtime's names of the element types that Triton's Python backend can carry."""

ZIPMAP = (
    "convert the model again with skl2onnx.to_onnx(model, X, options={'zipmap': False}), or with "
    "zipmap=False in onnxmltools; of any file, such as CatBoost's, `dispatcher new-model` cuts it "
    "off: the probabilities are a tensor then"
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
    (
        "Failed to construct locale",
        "make it, as root: apt-get install locales; localedef -i de_DE -f UTF-8 de_DE.utf8",
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


def model_file(folder: Path, configured: str) -> Path:
    """Return the model's file; a folder of that name holds `model.onnx`.

    Raises ModelConfigError: there is no such file.
    """
    file = folder / (configured or DEFAULT_FILE)
    if file.is_dir():
        file /= DEFAULT_FILE
    if not file.is_file():
        raise ModelConfigError(f"the model's file was expected at '{file}', but there is none.")
    return file


class OnnxFile:
    """A model's file: its tensors, and runs of its graph, not optimized.

    `metadata` is what its exporter has noted in it, as text.

    Raises ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.
    """

    def __init__(self, file: Path) -> None:
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = usable_cpus()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = FATAL  # who tries it with made-up inputs gets its errors
        self._session = open_model(file, options, [(CPU, {})])
        self.path = file
        self.runtime = f"onnxruntime {onnxruntime.__version__}"
        self.signature = read_signature(_infer_shapes(self._session, file), file)
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map

    def run(self, inputs: Tensors, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the named outputs; raise what ONNX Runtime raises."""
        return dict(zip(outputs, self._session.run(list(outputs), dict(inputs)), strict=True))


class OnnxSession:
    """An open model, which any number of threads may run at a time.

    These share the session's threads, and two runs of a YOLOv5s that share two threads are 0.9
    times as fast as two with one each: see `backends.schedule`.

    Raises ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.
    """

    def __init__(self, file: Path, settings: SessionSettings) -> None:
        self._session, self._of_rows = open_by_rows(file, settings)
        self.by_rows = ByRows(self._of_rows, self.run) if self._of_rows else None
        self._shrinking = import_onnxruntime().RunOptions()
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._sizes = allocator.Sizes()

    def run(
        self, inputs: Tensors, outputs: Sequence[str], rows: Mapping[str, RunRows] = ALL
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs.

        ONNX Runtime's inference builds compute the whole graph all the same; outputs that
        were not requested are not copied.

        Raises ValueError: an output with rows has other dimensions. Raises Exception: what ONNX
        Runtime raises.
        """
        shrinking = self._sizes.shrinks(inputs)
        options = self._shrinking if shrinking else None
        fed, names = with_numbers(self._of_rows, inputs, outputs, rows)
        came = self._session.run(names, fed, options)
        if shrinking:
            allocator.give_back()
        return of_all_or_rows(dict(zip(names, came, strict=True)), rows)

    def close(self) -> None:
        self._session = None


def open_by_rows(file: Path, settings: SessionSettings) -> tuple[Any, tuple[str, ...]]:
    """Return a session for a file, and the outputs of which it computes single rows.

    Raises ModelConfigError: ONNX Runtime cannot open it.
    """
    made, names = take_rows(file, inlined=False)
    if names:
        options = session_options(settings)
        options.add_session_config_entry(FOLDER_OF_WEIGHTS, str(file.parent.absolute()))
        with suppress(ModelConfigError):  # it can do without
            opened = open_model(file, options, [(CPU, {})], made)
            vars(opened).pop("_model_bytes", None)  # kept for other providers: twice the weights
            return opened, names
    return open_model(file, session_options(settings), [(CPU, {})]), ()


def session_options(settings: SessionSettings) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERROR  # centerface's load has 118 warnings
    options.intra_op_num_threads = settings.intra_op_threads
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, settings.graph_level
    )
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.op_libraries:
        options.register_custom_ops_library(library)
    return options


def import_onnxruntime() -> Any:
    # Only where a file is opened: Triton starts one more process for each model, which completes
    # its configuration and often has nothing to open.
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelConfigError(
            f"an ONNX model was given, but onnxruntime cannot be imported ({error}): it is "
            "expected in the environment of the container (pip install onnxruntime)."
        ) from error
    return onnxruntime


def open_model(file: Path, options: Any, providers: Sequence[Provider], made: bytes = b"") -> Any:
    """Return a session for a file, or for what was made of it.

    Raises ModelConfigError: ONNX Runtime cannot open it.
    """
    onnxruntime = import_onnxruntime()
    if any(name == CUDA for name, _ in providers):
        onnxruntime.preload_dlls()  # CUDA's libraries of pip: the linker does not find them
    try:
        return onnxruntime.InferenceSession(made or str(file), options, providers=list(providers))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        fix = next((fix for said, fix in _FIXES if said in reason), "")
        raise ModelConfigError(f"ONNX Runtime cannot open '{file}': {reason}", fix) from error


def _infer_shapes(session: Any, file: Path) -> Any:
    """Return a session that knows the sizes which an optimized graph shows, as the served one does.

    Where a size of an output has a name that no input has, such as `LSTMhn_dim_1`, the optimizer
    may know the number.
    """
    known = {size for one in session.get_inputs() for size in one.shape}
    sizes = (size for one in session.get_outputs() for size in one.shape)
    if all(isinstance(size, int) or (size and size in known) for size in sizes):
        return session
    options = import_onnxruntime().SessionOptions()
    options.log_severity_level = FATAL
    return open_model(file, options, [(CPU, {})])


def has_rank(file: Path, name: str) -> bool:
    """Whether a file says how many dimensions a tensor has that has none for ONNX Runtime.

    Without a shape these bytes of onnx.proto follow the name: the field and the length, 4, of
    ValueInfoProto.type, those, 2, of TypeProto.tensor_type, and the field of the element type.
    """
    text = name.encode()
    last = len(text) >> 7 or len(text)  # of the bytes that write the length
    return not has_operator(file, [bytes([last]) + text + b"\x12\x04\x0a\x02\x08"])


def read_signature(session: Any, file: Path) -> FileSignature:
    """Return the tensors as the model's own file has them."""
    sides: dict[str, list[FileTensor]] = {"input": [], "output": []}
    for kind, nodes in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for node in nodes:
            if node.type not in DATA_TYPES:
                its = f"{node.type} in the file"
                fix = f"export the model with tensors alone: {', '.join(DATA_TYPES)}"
                if node.type.startswith("seq(map("):
                    its, fix = "sequence of maps (ZipMap)", ZIPMAP
                elif node.type.startswith("tensor("):
                    fix = CAST
                what = f"{kind} '{node.name}' is a {its}, which Triton cannot carry."
                raise ModelConfigError(what, fix)
            # A named dimension, or one without name or size, is dynamic.
            shape = tuple(size if isinstance(size, int) else DYNAMIC for size in node.shape)
            is_known = bool(shape) or has_rank(file, node.name)
            sides[kind].append(FileTensor(node.name, DATA_TYPES[node.type], shape, is_known))
    return FileSignature(tuple(sides["input"]), tuple(sides["output"]))
