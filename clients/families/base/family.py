"""The base of the families: one class serves all models of a kind.

A `dispatch.toml` in a model's folder names the family that serves it. From its keys a class is
made, which is registered and probed as an author's own class.
"""

from __future__ import annotations

import base64
import importlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NotRequired, TypedDict, TypeVar

from clients import families
from clients.annotations import Declared
from clients.base import Client, Environment, Payload
from clients.errors import BadParameter, BadPayload, ClientDisabled
from clients.families.base.dispatch_toml import (
    INSIDE,
    Keys,
    find_original,
    mistake,
    nearest,
    read_keys,
    read_table,
)
from clients.model_files.config_text import read_folder
from clients.model_files.files import text_of
from clients.model_files.model_folders import CONFIG
from clients.tensors.quoting import brief
from clients.triton.server import Signature, TensorSpec

K = TypeVar("K", bound=Keys)
P = TypeVar("P")

ScoredClass = TypedDict("ScoredClass", {"label": NotRequired[str], "index": int, "score": float})

LABELS = "labels.txt"
MOST_EXAMPLE = 100_000  # bytes of a picture
PUT_LINES = "put a file of that name beside config.pbtxt, UTF-8, with a name in each line"


class Family(Client, Generic[K, P]):
    """Serves a model as its `dispatch.toml` says.

    `keys` are those of the file. `fit` compares them with the model's tensors, which only Triton
    knows; its result is kept until they change.
    """

    modelname = ""  # made for a model, not found in a file
    keys_type: type[K]
    """The keys of this family; each declaration documents itself."""

    keys: K
    toml: Path
    labels: Sequence[str] = ()
    declares = Declared()  # `inference` takes a payload as it came
    needs_labels = False  # where a class has no other name

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if self.keys.example is not None:
            self.example = self.keys.example
        if self.keys.examples:
            self.examples = [self.example_of(one) for one in self.keys.examples]
        if hasattr(self.keys, "labels"):
            self.labels = self.read_labels()
        self._fitted: tuple[Signature, P] | None = None

    @abstractmethod
    def fit(self, signature: Signature) -> P:
        """Return what `inference` has to know of the model's tensors.

        Raises ClientDisabled: they do not suit the family, or a key.
        """

    def fitted(self) -> P:
        """Return the result of `fit` for the model as it is now."""
        signature = self.signature()
        fitted = self._fitted  # other threads may replace it
        if fitted is None or fitted[0] != signature:
            if signature.decoupled:
                raise self.misfit("the model is decoupled: it gives any number of answers")
            self._fitted = fitted = signature, self.fit(signature)
        return fitted[1]

    @property
    def max_batch_size(self) -> int:
        """The most payloads of a list in one run; 1 if rows may change each other."""
        return super().max_batch_size if self.signature().shares_runs else 1

    def inference(self, payload: Payload) -> Any:
        return self.inference_batch([payload])[0]

    @abstractmethod
    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]: ...

    @property
    def fields(self) -> Collection[str]:
        """The fields that a payload may have; none where it is a body of tensors."""
        return getattr(self.payload_type, "__annotations__", ())

    def _field(self, payload: Any, name: str, expected: str) -> Any:
        """Return a field of a payload; refuse payloads with unknown fields."""
        value = super()._field(payload, name, expected)
        self.refuse_unknown(payload)
        return value

    def refuse_unknown(self, payload: Payload) -> None:
        """Raise BadPayload for a payload with unknown fields."""
        if self.fields and (unknown := [other for other in payload if other not in self.fields]):
            hint = f"the payload may have {', '.join(self.fields)}"
            if self.parameters:
                hint += "; `parameters`, beside `payload` as all other fields, may have "
                hint += ", ".join(self.parameters)
            raise BadPayload(f"the payload has an unknown field {brief(unknown[0])}", hint=hint)

    def example_of(self, given: Payload | str) -> Payload:
        """Return the payload that an entry of the key `examples` means."""
        if self.keys.example is not None:
            raise self.mistake("examples", "is there beside `example`", "write one of the two")
        if not isinstance(given, str):
            return given
        if "text" in self.media:
            return {self.media["text"]: given}
        if not (field := next(iter(self.media.values()), "")):
            raise self.mistake("examples", f"has {brief(given)}", "write tables, as in `example`")
        try:
            if not INSIDE.fits(given):
                raise ValueError(given)  # noqa: TRY301  as a name that can be no path
            content = (self.folder / given).read_bytes()
        except (OSError, ValueError) as error:
            fix = "put a file of that name beside config.pbtxt"
            raise self.mistake(
                "examples", f"has {brief(given)}, which cannot be read", fix
            ) from error
        if len(content) > MOST_EXAMPLE:
            what = f"has {brief(given)}, a file of {len(content):,} bytes"
            fix = f"take one of at most {MOST_EXAMPLE:,}: GET /models and /openapi.json show it"
            raise self.mistake("examples", what, fix)
        return {field: base64.b64encode(content).decode()}

    def mistake(self, name: str, what: str, fix: str) -> ClientDisabled:
        return mistake(self.toml, name, what, fix)

    def misfit(self, what: str) -> ClientDisabled:
        """Return the error for a model that this family cannot serve."""
        return self.mistake(
            "family",
            f'is "{self.keys.family}", but {what}',
            "leave it out, with its own keys, to serve plain tensors",
        )

    def tensor(self, specs: Sequence[TensorSpec], name: str) -> TensorSpec:
        """Return the tensor that the key `name` names, or the only one."""
        wanted = getattr(self.keys, name)
        for spec in specs:
            if spec.name == wanted or (not wanted and len(specs) == 1):
                if spec.datatype == "BYTES":
                    raise self.misfit(f"{spec} has no numbers")
                return spec
        what = f'is "{wanted}"' if wanted else "is missing"
        there = ", ".join(f'"{spec.name}"' for spec in specs) or "none"
        raise self.mistake(name, what, f"the model has {there}: write one of them")

    def read_labels(self) -> list[str]:
        """Return the class names: of the key `labels`, of config.pbtxt, or of labels.txt.

        None where the family can do without, and no file is named or there.
        """
        if not (file := getattr(self.keys, "labels", "")):
            output = getattr(self.keys, "output", "")
            found = label_files(self.folder, output)
            if len(found) > 1:
                there = ", ".join(f'"{name}"' for name in found)
                what = f"is missing, but the outputs in {CONFIG} have several files"
                raise self.mistake("labels", what, f"write one of {there}")
            file = next(iter(found), LABELS)
            if not INSIDE.fits(file):
                what = f'is "{file}", the `label_filename` of {CONFIG}'
                raise self.mistake("labels", what, f"write {INSIDE.expected}")
            if not (self.needs_labels or found) and not (self.folder / file).exists():
                return []
        return self.lines("labels", file)

    def named(
        self,
        index: int,
        score: float,
        digits: int = 6,
        *,
        field: str = "score",
        labels: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return a class and its score for an answer in JSON.

        `field` is what the score is named, and `labels` are others than its own.
        """
        names = labels or self.labels
        label = {"label": names[index]} if names else {}
        return {**label, "index": index, field: round(score, digits)}

    def by_label(self, numbers: Sequence[float]) -> Mapping[str, float] | Sequence[float]:
        """Return the numbers of all classes for an answer in JSON: in a list without labels."""
        return dict(zip(self.labels, numbers, strict=True)) if self.labels else numbers

    def lines(self, name: str, file: str) -> list[str]:
        """Return the lines of a file, which the key `name` names."""
        path: Path = self.folder / file
        try:
            # Not `splitlines`: a name may hold characters that it takes for line ends.
            return text_of(path).rstrip("\n").split("\n")
        except (OSError, ValueError) as error:
            what = f"is {path.name}, which cannot be read ({type(error).__name__})"
            raise self.mistake(name, what, PUT_LINES) from error

    def count_labels(self, classes: int, where: str) -> None:
        """Raise ClientDisabled unless there is one label for each class, or none; -1 is any."""
        labels = self.labels
        if labels and len(labels) != classes > 0:
            fix = f"give it {classes} lines, one for each class"
            if classes - len(labels) == 1:
                fix += ', in the model\'s order: one that lacks is often "background", the first'
            raise self.mistake(
                "labels",
                f"names a file of {len(labels)} lines, but {where} has {classes} classes",
                fix,
            )


def label_files(folder: Path, output: str) -> list[str]:
    """Return the files of labels in a configuration: of one output, or of all for no name."""
    files = [
        # Triton reads "/a" as a path in the folder too.
        one.text("label_filename").lstrip("/")
        for one in read_folder(folder).messages("output")
        if not output or one.text("name") == output
    ]
    return list(dict.fromkeys(filter(None, files)))


def names() -> list[str]:
    """Return the names of the families: one for each file."""
    files = (path for folder in families.__path__ for path in Path(folder).glob("*.py"))
    return sorted(path.stem.replace("_", "-") for path in files if path.stem != "__init__")


def family(name: str, path: Path) -> type[Family[Any, Any]]:
    """Return a family; its file, which may need large libraries, is imported only now."""
    if name not in names():
        raise mistake(path, "family", f'is "{name}"', nearest(name, names()))
    module = importlib.import_module(f"{families.__name__}.{name.replace('-', '_')}")
    return next(
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Family) and one.__module__ == module.__name__
    )


def client_class(path: Path) -> type[Client]:
    """Return the class that serves a model as the `dispatch.toml` at `path` says."""
    table = read_table(path)
    base = family(str(table.get("family", Keys.family)), path)
    for name in table:
        if name in base.parameters:
            raise mistake(
                path, name, "is set by callers", "to set its default put it below [parameters]"
            )
    keys = read_keys(base.keys_type, table, path)
    return type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            "modelname": path.parent.name,
            "aliases": () if find_original(path) else keys.aliases,
            "keys": keys,
            "toml": path,
            "parameters": defaults(base, keys, path),
        },
    )


def defaults(base: type[Client], keys: Keys, path: Path) -> Mapping[str, Any]:
    """Return a family's parameters, with the defaults of a file."""
    parameters = dict(base.parameters)
    for name, value in (keys.parameters or {}).items():
        where = f"parameters.{name}"
        if name not in parameters:
            raise mistake(
                path,
                where,
                f"is no parameter of the family {keys.family}",
                nearest(name, parameters) if parameters else "it has none: leave them out",
            )
        try:
            parameters[name] = replace(
                parameters[name], default=parameters[name].read(where, value)
            )
        except BadParameter as error:
            fix = f"write {error.hint.removeprefix('expected ')}"
            raise mistake(path, where, f"is {value!r}", fix) from error
    return parameters
