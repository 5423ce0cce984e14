"""A model's file, and what its exporter has noted in it."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from backends import model_config
from backends.completion import OF_TABLES
from backends.model_config import ModelConfigError, has_operator
from backends.onnxruntime import session as onnxruntime
from clients.model_files.files import text_of
from clients.triton.server import TensorSpec
from container.model_check.file import LFS
from container.trouble import Trouble

EXPECTED = "expected a file of ONNX, or a folder with model.onnx"
EXPORTS = {
    ".pt": "export it: `yolo export model=best.pt format=onnx` for Ultralytics' models, else "
    "torch.onnx.export(model, inputs, 'model.onnx', dynamic_axes=…)",
    ".pth": "export it: torch.onnx.export(model, inputs, 'model.onnx', dynamic_axes=…)",
    ".xml": "give the ONNX file that it was made from",
    ".h5": "convert it with tf2onnx",
    ".pb": "convert it with tf2onnx",
    ".tflite": "convert it with tf2onnx",
}
MOST_BESIDE = 1000
CLASSES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


@dataclass(frozen=True)
class ModelSource:
    """A model's file and its tensors."""

    file: Path  # of ONNX
    opened: onnxruntime.OnnxFile  # the same, opened by ONNX Runtime
    given: tuple[str, ...] = ()  # the labels that the author names
    mended: bytes = b""  # the content of the file that is served, where this is another

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(as_spec, self.opened.signature.inputs))

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(as_spec, self.opened.signature.outputs))

    @property
    def batched(self) -> bool:
        """Whether every tensor has a first axis of any size, which may be a batch."""
        return all(spec.shape[:1] == (-1,) for spec in (*self.inputs, *self.outputs))

    def noted(self, name: str) -> Any:
        """Return what the exporter has noted as a literal of Python, as Ultralytics does.

        `None` where there is none.
        """
        try:
            return ast.literal_eval(self.opened.metadata.get(name, ""))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes: of --labels, or of the file."""
        if self.given:
            return self.given
        names = self.noted("names") or self.configured
        if isinstance(names, list):
            names = dict(enumerate(names))  # the other form of it
        if isinstance(names, dict) and names:
            by_id = {str(key): str(value) for key, value in names.items()}
            if by_id.keys() == {str(number) for number in range(len(by_id))}:
                lines = (by_id[str(number)] for number in range(len(by_id)))
                return tuple(" ".join(line.split()) or "?" for line in lines)
        return ()

    @property
    def configured(self) -> Mapping[str, str]:
        """The names of the classes in the config.json that transformers has saved, by number."""
        for folder in (self.file.parent, self.file.parent.parent):  # of onnx/model.onnx, too
            with suppress(OSError, ValueError, AttributeError):
                text = (folder / "config.json").read_text("utf-8")
                names: Mapping[str, str] = json.loads(text).get("id2label", {})
                # Names that transformers has made up are none.
                return {} if names == {key: f"LABEL_{key}" for key in names} else names
        return {}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes that an operator of a classifier names; none without the package `onnx`."""
        with suppress(ImportError):
            for node in import_module("onnx").load(self.file, load_external_data=False).graph.node:
                for one in node.attribute:
                    if one.name in CLASSES:
                        return tuple(map(name_class, (*one.strings, *one.ints)))
        return ()

    def run(self, sizes: Mapping[str, Sequence[int]]) -> Mapping[str, npt.NDArray[Any]]:
        """Return the outputs for made-up inputs of these shapes.

        Floats are between 0 and 1, as pixels are, and bytes any; other whole numbers are 1, as
        words and masks may be.
        """
        numbers = np.random.default_rng(0)
        made: dict[str, npt.NDArray[Any]] = {}
        for spec in self.opened.signature.inputs:
            shape, kind = tuple(sizes[spec.name]), spec.dtype
            if kind == "string":
                made[spec.name] = np.full(shape, "a", np.object_)
            elif kind.startswith("float"):
                made[spec.name] = numbers.random(shape).astype(kind)
            elif kind == "uint8":
                made[spec.name] = numbers.integers(0, 256, shape, np.uint8)
            else:
                made[spec.name] = np.ones(shape, kind)
        try:
            return self.opened.run(made, [spec.name for spec in self.outputs])
        except Exception as error:  # whatever the runtime raises
            reason = " ".join(str(error).split())
            tried = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
            raise Trouble(f"{self.file} cannot be run with {tried}: {reason:.300}") from error

    def copy_to(self, folder: Path) -> None:
        """Put the file into a folder, as model.onnx, with the weights that it has beside it.

        They are copies: what is written into one of two hard links is in the other, too.
        """
        folder.mkdir(parents=True)
        if self.mended:
            (folder / "model.onnx").write_bytes(self.mended)
        else:
            shutil.copyfile(self.file, folder / "model.onnx")
        for path in self.weights():
            shutil.copyfile(path, folder / path.name)

    def weights(self) -> Iterator[Path]:
        """Yield the files beside the model that it names: its external weights."""
        beside = [path for path in self.file.parent.iterdir() if path != self.file]
        if len(beside) > MOST_BESIDE or self.file.stat().st_size > 2**31:
            beside = [path for path in beside if path.name.startswith(self.file.stem)]
        content = b"" if not beside else self.file.read_bytes()
        for path in beside:
            if path.suffix != ".onnx" and path.is_file() and path.name.encode() in content:
                yield path


def labels_in(path: Path) -> tuple[str, ...]:
    try:
        return tuple(text_of(path).rstrip("\n").split("\n"))
    except (OSError, ValueError) as error:
        what = f"--labels is {str(path)!r}: {getattr(error, 'strerror', error)}"
        raise Trouble(f"{what}; expected a file with a name in each line") from error


def as_spec(spec: model_config.FileTensor) -> TensorSpec:
    """Return a file's tensor in the words of the V2 protocol."""
    kind = spec.data_type.removeprefix("TYPE_")
    return TensorSpec(spec.name, "BYTES" if kind == "STRING" else kind, spec.shape)


def open_model(given: Path) -> ModelSource:
    """Open a file of ONNX, or that of an exported folder."""
    file = file_of(given)
    with file.open("rb") as start:
        if start.read(len(LFS)) == LFS:
            raise Trouble(f"{file} is a pointer of Git LFS, not the model; run `git lfs pull`")
    content = b""
    try:
        try:
            model = onnxruntime.OnnxFile(file)
            is_right = not says_one_row(model)
        except ModelConfigError as error:
            if error.fix != onnxruntime.ZIPMAP:
                raise
            is_right = False
        if not is_right:
            content = mend_table(file)
            with TemporaryDirectory(prefix="dispatcher-") as folder:
                (Path(folder) / "model.onnx").write_bytes(content)
                model = onnxruntime.OnnxFile(Path(folder) / "model.onnx")
            model.path = file  # the other is gone by now
    except ModelConfigError as error:
        fix = f"; {error.fix}" if error.fix else ""
        raise Trouble(f"{error.what.removesuffix('.')}{fix}") from error
    return ModelSource(file, model, mended=content)


def says_one_row(model: onnxruntime.OnnxFile) -> bool:
    """Whether a file of a table takes any number of rows, and says that it answers one.

    onnxmltools 1.16 writes so of LightGBM's labels.
    """
    taken = {spec.shape[:1] for spec in model.signature.inputs}
    answered = {spec.shape[:1] for spec in model.signature.outputs}
    is_wrong = taken == {(-1,)} and answered == {(-1,), (1,)}
    return is_wrong and has_operator(model.path, OF_TABLES)


def mend_table(file: Path) -> bytes:
    """Return a model of tables that answers any number of rows, and tensors for maps (ZipMap)."""
    onnx: Any = import_module("onnx")
    model = onnx.load(file, load_external_data=False)
    outputs = {output.name: output for output in model.graph.output}
    for node in [one for one in model.graph.node if one.op_type == "ZipMap"]:
        names = [name for one in node.attribute for name in (*one.strings, *one.ints)]
        model.graph.node.remove(node)
        tensor = onnx.helper.make_tensor_value_info(
            node.input[0], onnx.TensorProto.FLOAT, [None, len(names)]
        )
        outputs[node.output[0]].CopyFrom(tensor)
        shown = ", ".join(map(name_class, names))
        sys.stdout.write(
            f"cut the ZipMap off: `{node.input[0]}` has a column for each class: {shown}\n"
        )
    for output in outputs.values():
        if (sizes := output.type.tensor_type.shape.dim) and sizes[0].dim_value == 1:
            sizes[0].ClearField("dim_value")
    content: bytes = model.SerializeToString()
    return content


def name_class(name: bytes | int) -> str:
    return " ".join(name.decode().split()) or "?" if isinstance(name, bytes) else str(name)


def file_of(given: Path) -> Path:
    if given.is_dir():
        for place in (given, given / "onnx", given / "1"):
            if (place / "model.onnx").is_file():
                return place / "model.onnx"
            if len(found := sorted(place.glob("*.onnx"))) == 1:
                return found[0]
        raise Trouble(f"{given} has no model.onnx; {EXPECTED}")
    if not given.is_file():
        raise Trouble(f"there is no {str(given)!r}; {EXPECTED}")
    if given.suffix in EXPORTS:
        raise Trouble(f"{given} is no file of ONNX; {EXPORTS[given.suffix]}")
    return given
