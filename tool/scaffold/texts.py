"""The families for texts: what of their settings a model's files show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from clients.families.base.text_input import DTYPES, PARTS
from clients.text.tokenizer import Tokenizer
from clients.triton.server import TensorSpec
from container.trouble import Trouble
from tool.scaffold.plan import CHECK, SCORES, FamilyPlan, Misfit, is_named, quote, several
from tool.scaffold.source import ModelSource

TRIED = 16  # tokens
LENGTHS = (512, 256, 128, 64, 32, 16)
WORDS = 5000  # as many scores for a token are for words
ONE_SCORE = (
    f"{CHECK}a cross-encoder scores a pair of texts; of one text write another example",
    'example = { text = "How many live in Berlin?", text_pair = "Berlin has many people." }',
)
BY_NAME = ("question-answering", "zero-shot-classification")  # of an output, or of a label
VECTORS = ("pool", "embed", "vector", "hidden")  # in the name of an output


def takes_tokens(source: ModelSource) -> bool:
    """Whether all inputs are a tokenizer's."""
    return bool(source.inputs) and all(one.name in PARTS for one in source.inputs)


def answers(source: ModelSource) -> list[tuple[TensorSpec, tuple[int, ...]]]:
    """Return the outputs, and the sizes of each for a text of `TRIED` tokens."""
    for spec in source.inputs:
        if spec.name not in PARTS or spec.datatype not in DTYPES or len(spec.shape) not in (1, 2):
            raise Misfit(
                f"{spec} is none of {', '.join(PARTS)}, of INT64 or INT32 and a number for "
                "each token"
            )
        if len(spec.shape) == 2 and spec.shape[0] not in (1, -1):
            raise Misfit(f"{spec} takes {spec.shape[0]} texts, never one")
    if not source.inputs:
        raise Misfit("it has no inputs")
    first = source.inputs[0].shape
    came = source.run(tokens_of(source, TRIED if first[-1] == -1 else first[-1]))
    batch = len(first) - 1
    return [(one, came[one.name].shape[batch:]) for one in source.outputs]


def tokens_of(source: ModelSource, count: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs for a text of so many tokens."""
    return {one.name: (1,) * (len(one.shape) - 1) + (count,) for one in source.inputs}


def name_output(source: ModelSource, plan: FamilyPlan, output: TensorSpec) -> FamilyPlan:
    """Return a plan that names its output, where there are several."""
    return plan.and_lines(f"output = {quote(output.name)}") if len(source.outputs) > 1 else plan


def fill_mask(source: ModelSource) -> Iterator[FamilyPlan]:
    for output, sizes in answers(source):
        if len(sizes) != 2:
            continue
        why = f"it takes tokens, and {output} has {sizes[1]} scores for each"
        plan = FamilyPlan("fill-mask", why, tokens=True, proven=sizes[1] >= WORDS)
        yield name_output(source, plan, output)


def embedding(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would make vectors: that of a text first, if it makes it itself."""
    found = answers(source)
    whole = [one for one, sizes in found if len(sizes) == 1]
    whole.sort(key=lambda one: "sentence" not in one.name)
    each = [(one, sizes) for one, sizes in found if len(sizes) == 2]
    # A pooler's output was made for another task than that of comparing texts.
    usable = [one for one in whole if "pooler" not in one.name] or ([] if each else whole)
    for output in usable:
        why = f"it takes tokens, and {output} is a vector for a text"
        plan = FamilyPlan("embedding", why, ('pooling = "none"',), tokens=True)
        sure = is_named(output, VECTORS)  # scores look the same
        yield name_output(source, replace(plan, proven=sure), output)
    for output, sizes in each:
        why = f"it takes tokens, and {output} is a vector of {sizes[1]} for each"
        lines = (
            f'{CHECK}"mean" is usual; some models were trained with "first"',
            'pooling = "mean"',
        )
        sure = is_named(output, VECTORS)
        yield name_output(
            source, FamilyPlan("embedding", why, lines, tokens=True, proven=sure), output
        )


def classes(family: str, axes: int, source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would classify: texts, by outputs of one axis, or tokens, of two."""
    found = [(one, sizes) for one, sizes in answers(source) if len(sizes) == axes]
    for output, (*_, count) in found:
        of = "each" if axes == 2 else "a text"
        why = f"it takes tokens, and {output} has {count} scores for {of}"
        plan = name_output(source, FamilyPlan(family, why, tokens=True), output)
        names = source.labels if len(source.labels) == count else ()
        # The scores of tokens may be for characters, or for the next word.
        sure = axes == 1 and is_named(output, SCORES)
        if count == axes == 1:
            plan = plan.and_lines(*ONE_SCORE)
        else:
            plan = plan.with_labels(names, count if axes == 2 else 0)
        yield replace(plan, proven=sure or bool(names))


text_classification = partial(classes, "text-classification", 1)
token_classification = partial(classes, "token-classification", 2)


def zero_shot_classification(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would classify texts by any labels."""
    if not any(name.lower().startswith("entail") for name in source.labels):
        raise Misfit("no label is entailment; labels.txt or config.json has the model's own")
    for plan in classes("zero-shot-classification", 1, source):
        yield plan.and_lines(f"{CHECK}to classify pairs of texts write text-classification")


def question_answering(source: ModelSource) -> Iterator[FamilyPlan]:
    each = [one for one, sizes in answers(source) if len(sizes) == 1]
    ends = [one for end in ("start", "end") for one in each if end in one.name]
    if len(ends) == 2:
        why = f"it takes tokens, and {several(tuple(ends))} have a score for each"
        lines = (f"start = {quote(ends[0].name)}", f"end = {quote(ends[1].name)}")
        yield FamilyPlan("question-answering", why, lines, tokens=True, proven=True)


def likeliest(source: ModelSource) -> list[str]:
    """Return the families that a model that takes tokens may be of; none where none serves it."""
    try:
        each = [sizes[1] for _, sizes in answers(source) if len(sizes) == 2]
    except Misfit:
        return []
    if not each:
        return [*BY_NAME, "text-classification", "embedding"]
    return ["fill-mask"] if max(each) >= WORDS else ["token-classification", "embedding"]


def longest(source: ModelSource, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the lines for the longest text, where the tokenizer states none."""
    fixed = source.inputs[0].shape[-1]
    if tokenizer.longest and (fixed == -1 or tokenizer.longest >= fixed):
        return
    if fixed > 0:
        yield f"max_tokens = {fixed}"
        return
    for length in LENGTHS:
        try:
            source.run(tokens_of(source, length))
        except Trouble:
            continue
        yield f"{CHECK}the tokenizer states no limit; the model was run with so many tokens"
        yield f"max_tokens = {length}"
        return
