"""Which family serves a model, by what its file shows, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from clients.triton.server import TensorSpec
from container.trouble import Trouble
from tool.scaffold import masks, pictures, tables, texts
from tool.scaffold.options import KINDS, PICTURE, SOUND, TABLE, TENSORS
from tool.scaffold.plan import CHECK, AskAuthor, FamilyPlan, Misfit, quote, several
from tool.scaffold.source import ModelSource


def tensors(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how any model is served."""
    why = f"no family is sure to suit {several(source.inputs)} and {several(source.outputs)}"
    fixed = (
        f"{CHECK}{one} takes {one.shape[0]} at a time, no more and no fewer; if it should "
        "take any number, export it with a dynamic first axis"
        for one in source.inputs
        if len(one.shape) == 4 and one.shape[0] > 1
    )
    yield FamilyPlan(TENSORS, why).and_lines(*fixed)


def sound(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how a model of windows over a sound is served; only its author knows that it is one.

    What goes from window to window has an input and an output of its shape and first letter.
    """
    state = {
        one.name: other.name
        for one in source.inputs
        for other in source.outputs
        if other.name != one.name and other.name[0] == one.name[0] and is_next(other, one)
    }
    free = [one for one in source.inputs if one.name not in state]
    taken = [one for one in free if one.datatype in pictures.FLOATS and 1 <= len(one.shape) <= 3]
    outputs = [one for one in source.outputs if one.name not in state.values()]
    if len(taken) != 1 or not outputs:
        raise Misfit(f"{several(source.inputs)} has no windows of samples")
    lines = [f"{CHECK}the file does not show how many samples a second has, and a window"]
    lines += ["rate = 16000"]
    lines += ["window = 512"] * (-1 in (taken[0].shape[1:] or taken[0].shape))
    pairs = ", ".join(f"{quote(name)} = {quote(other)}" for name, other in state.items())
    lines += [f"state = {{ {pairs} }}"] * bool(state)
    if state and taken[0].shape[:1] == (-1,):
        lines.append("# windows = 512  # of a run, where the first axis is time")
    numbers = ", ".join(f"{quote(one.name)} = 16000" for one in free if one != taken[0])
    lines += [f"{CHECK}other inputs", f"constants = {{ {numbers} }}"] * bool(numbers)
    lines += [f"input = {quote(taken[0].name)}", f"output = {quote(outputs[0].name)}"]
    yield FamilyPlan(SOUND, f"{taken[0]} takes samples of a sound", tuple(lines))


def is_next(output: TensorSpec, given: TensorSpec) -> bool:
    """Whether an output may be the next state of an input."""
    same = (output.datatype, len(output.shape)) == (given.datatype, len(given.shape))
    pairs = zip(output.shape, given.shape, strict=False)
    return same and all(-1 in (one, other) or one == other for one, other in pairs)


# How each would serve a model, and what the outputs of one lack that it does not suit.
FAMILIES: Mapping[str, tuple[Callable[[ModelSource], Iterator[FamilyPlan]], str]] = {
    "classification": (pictures.classification, "score per class"),
    "detection": (pictures.detection, "table of boxes with a score for each class"),
    "ctc": (pictures.ctc, "scores for each step of a line"),
    "ocr": (masks.ocr, "likelihood for each pixel"),
    "picture-embedding": (masks.picture_embedding, "vector of a picture"),
    "picture-to-picture": (masks.picture_to_picture, "picture of three channels, or one"),
    "segmentation": (masks.segmentation, "numbers for each pixel"),
    "fill-mask": (texts.fill_mask, "score per token and word"),
    "embedding": (texts.embedding, "vector per token or text"),
    "text-classification": (texts.text_classification, "score per class"),
    "token-classification": (texts.token_classification, "score per token and class"),
    "question-answering": (texts.question_answering, "scores of an answer's start and end"),
    "zero-shot-classification": (texts.zero_shot_classification, "score per class"),
    SOUND: (sound, "number for each window"),
    TABLE: (tables.table, "row for each row"),
    TENSORS: (tensors, "tensor"),
}
OTHERS = (*(name for name, kind in KINDS.items() if kind == PICTURE), TABLE)


def plans_of(source: ModelSource, family: str) -> list[FamilyPlan]:
    """Return how a family would serve a model; raise Misfit where it would not."""
    make, lacking = FAMILIES[family]
    if not (found := list(make(source))):
        raise Misfit(f"{several(source.outputs)} has no {lacking}")
    return found


def plans(source: ModelSource, family: str) -> list[FamilyPlan]:
    """Return how a model would be served, the likeliest first; without a family as files prove."""
    if not family:
        return find_plans(source)
    try:
        return plans_of(source, family)
    except Misfit as error:
        other = find_plans(source)[0].family
        raise Trouble(
            f"{source.file} does not fit {family}: {error}; it fits {other}: write "
            f"`--family {other}`"
        ) from error


def find_plans(source: ModelSource) -> list[FamilyPlan]:
    """Return the plans that the files prove, and that for tensors, which names the others.

    With an author's labels, of which tensors have none, one of the others is taken before tensors.
    """
    found, possible = [], []
    for name in texts.likeliest(source) if texts.takes_tokens(source) else OTHERS:
        try:
            its = plans_of(source, name)
        except AskAuthor as error:
            possible.append((name, str(error)))
            continue
        except (Misfit, Trouble):  # it cannot be run with what the family would send
            continue
        found = [plan for plan in its if plan.proven]
        if found:
            break
        possible += [(name, plan.why) for plan in its[:1]]
        if source.given:
            found = its
            break
    (plain,) = tensors(source)
    others = "".join(f"; `--family {name}` suits if {why}" for name, why in possible)
    return [*found, replace(plain, why=plain.why + others)]
