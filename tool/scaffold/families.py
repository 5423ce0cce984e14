"""Which family serves a model, by what its file shows, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tool.scaffold import pictures, texts
from tool.scaffold.options import TENSORS
from tool.scaffold.plan import AskAuthor, Misfit, Plan, several
from tool.scaffold.source import Source
from tool.trouble import Trouble


def tensors(source: Source) -> Iterator[Plan]:
    """Yield how any model is served."""
    yield Plan(TENSORS, f"no family suits {several(source.inputs)} and {several(source.outputs)}")


FAMILIES: Mapping[str, Callable[[Source], Iterator[Plan]]] = {
    "classification": pictures.classification,
    "detection": pictures.detection,
    "picture-file": pictures.picture_file,
    "fill-mask": texts.fill_mask,
    "embedding": texts.embedding,
    "text-classification": texts.text_classification,
    TENSORS: tensors,
}


def plans(source: Source, family: str) -> list[Plan]:
    """Return how a family would serve a model, the likeliest way first.

    Args:
        source: the model.
        family: its name; empty for the one that the file shows.

    Raises:
        Trouble: the family cannot serve it; the text says which can.

    """
    if not family:
        return list(FAMILIES[guessed(source)](source))
    try:
        return list(FAMILIES[family](source))
    except Misfit as error:
        other = guessed(source)
        raise Trouble(
            f"{source.file} does not fit {family}: {error}; it fits {other}: write "
            f"`--family {other}`"
        ) from error


def guessed(source: Source) -> str:
    """Return the family that a model's tensors show; plain tensors where they show none."""
    if texts.takes_tokens(source):
        order = [texts.likeliest(source)]
    elif any(spec.datatype == "UINT8" and spec.is_file for spec in source.inputs):
        order = ["picture-file"]
    else:
        order = ["detection", "classification"]
    for name in filter(None, order):
        try:
            found = next(FAMILIES[name](source), None)
        except AskAuthor:
            return name
        except (Misfit, Trouble):  # it cannot be run with what the family would send
            continue
        # One number for a picture is no class, unless its author says so.
        if found and (name != "classification" or len(found.labels) > 1):
            return name
    return TENSORS
