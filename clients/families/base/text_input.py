"""The base of the families for texts: token ids in batches, as a model takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Payload
from clients.errors import BadPayload, ClientDisabled, InferenceError, TensorsRefused
from clients.families.base.dispatch_toml import COUNT, FLAG, INSIDE, TENSOR, Keys, key
from clients.families.base.family import Family
from clients.text.tokenizer import TokenizerNotReadable, load_tokenizer
from clients.triton.server import (
    NO_HINTS,
    TOLERANCES,
    Hints,
    Padding,
    Signature,
    Tensors,
    TensorSpec,
)

TextPayload = TypedDict("TextPayload", {"text": str})

# A text with more characters per token than this has too many tokens in any language. It is refused
# before time is spent on counting them.
LONGEST_TOKEN = 50
LONG_TEXT = 10_000
"""Characters from which a text takes long to be tokenized: other threads go on meanwhile."""

# The attribute of a tokenizer's encoding for each name of an input.
MASK, TYPES = "attention_mask", "token_type_ids"
PARTS = {"input_ids": "ids", MASK: "attention_mask", TYPES: "type_ids"}

TRIED_TOKENS = (16, 2, 1)
FILLED_TOKENS = 3
"""With how many tokens a model's mask is tested, and how many padding tokens follow. Among few
tokens an effect of the padding is visible that many would hide, as in a maximum."""

ROUNDED = {**TOLERANCES, "float32": 4e-3}
"""A GPU may compute in float16, or in TF32, which has as many digits: in these BERT-base differs by
8e-4. With another scale a quantized model differs by 1e-2."""

DTYPES = {"INT64": np.int64, "INT32": np.int32}


@dataclass(frozen=True, kw_only=True)
class TextKeys(Keys):
    """The keys of all families for texts."""

    tokenizer: str = key(INSIDE, "the folder with the tokenizer", "tokenizer")
    max_tokens: int | None = key(
        COUNT, "the longest text, in tokens; else what the tokenizer says", None
    )
    output: str = key(TENSOR, "the output, where there are several", "")
    padding: bool = key(
        FLAG,
        "whether texts of unequal lengths may share a run, if that changes no answer",
        default=True,
    )


K = TypeVar("K", bound=TextKeys)


@dataclass(frozen=True)
class TextPlan:
    """How a model takes texts."""

    inputs: Sequence[TensorSpec]  # its inputs, each one of `PARTS`
    single: bool  # whether they take one text, without an axis for several
    length: int  # the number of tokens to which every text is padded; 0 for any number
    longest: int  # the most tokens of a text
    outputs: Sequence[str]  # those that are wanted
    padding: Padding | None  # how texts may be made longer or shorter


class TextFamily(Family[K, TextPlan]):
    """Serves a model that takes the tokens of texts."""

    modelname = ""
    answered_with: ClassVar[tuple[int, str]]
    """The axes of the output for a text, and what it has."""

    payload_type: Any = TextPayload
    example = {"text": "The world has many people."}
    media = {"text": "text"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._heeds_mask: tuple[TextPlan, bool] | None = None
        folder = self.folder / self.keys.tokenizer
        try:
            self.tokenizer = load_tokenizer(folder)
        except OSError as error:
            reason, fix = error.strerror or str(error), "put tokenizer.json there"
            raise self.not_loaded(f"which cannot be read ({reason})", fix) from error
        except TokenizerNotReadable as error:
            raise self.not_loaded(error.what, error.fix) from error
        if not self.keys.max_tokens and not self.tokenizer.longest:
            raise self.mistake(
                "max_tokens", "is missing, and the tokenizer has no limit", "write one, such as 512"
            )

    def not_loaded(self, what: str, fix: str) -> ClientDisabled:
        return self.mistake("tokenizer", f'is "{self.keys.tokenizer}", {what}', fix)

    def fit(self, signature: Signature) -> TextPlan:
        known = [spec for spec in signature.inputs if spec.name in PARTS]
        strange = [s for s in signature.inputs if s not in known and not s.optional]
        if strange or not known or not all(spec.datatype in DTYPES for spec in known):
            wrong = str((strange or known or [TensorSpec("no input", "", ())])[0])
            raise self.misfit(f"{wrong} is none of {', '.join(PARTS)} of INT64 or INT32")
        sizes = known[0].shape[-1:]
        if sizes == () or len(known[0].shape) > 2:
            raise self.misfit(f"{known[0]} takes no token ids")
        for spec in known:
            self.check_sizes(spec, known[0])
        outputs = self.wanted(signature.outputs)
        single = len(known[0].shape) == 1
        for output in outputs:
            self.check_output(output, output.shape if single else output.shape[1:])
        longest = self.keys.max_tokens or self.tokenizer.longest
        length = max(sizes[0], 0)
        if self.keys.max_tokens and 0 < length < self.keys.max_tokens:
            raise self.mistake(
                "max_tokens",
                f"is {longest}, but {known[0]} takes {length}",
                f"write {length}, or leave it out",
            )
        longest = min(longest, length or longest)
        if length and self.tokenizer.padding is None and MASK not in [one.name for one in known]:
            raise self.not_loaded(
                f"which has no padding token, but {known[0]} takes {length} tokens",
                'name it in its tokenizer_config.json, such as "pad_token": "<pad>"',
            )
        alike = single or length or not signature.shares_runs
        padding = None if alike else self.padding(known, outputs)
        return TextPlan(known, single, length, longest, [one.name for one in outputs], padding)

    def wanted(self, outputs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        """Return the outputs that the family reads; several have the same shape."""
        return [self.tensor(outputs, "output")]

    def is_per_token(self, output: TensorSpec) -> bool:
        """Whether an output, with an axis for the texts, has numbers for each token."""
        return len(output.shape) == 3 and output.shape[1] == -1

    def padding(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> Padding | None:
        """Return how texts may be made longer or shorter; `None` if they may not."""
        if not self.keys.padding or MASK not in [spec.name for spec in inputs]:
            return None
        if self.tokenizer.from_left:  # a run is padded on the right
            return None
        return Padding(
            {spec.name: self.filler(spec) for spec in inputs},
            [spec.name for spec in outputs if self.is_per_token(spec)],
        )

    def check_sizes(self, spec: TensorSpec, first: TensorSpec) -> None:
        """Raise ClientDisabled if an input is unlike the first, or takes no single text."""
        if len(spec.shape) != len(first.shape) or spec.shape[-1] not in (-1, first.shape[-1]):
            raise self.misfit(f"{spec} is of another shape than {first}")
        if spec.shape[:-1] not in ((), (-1,), (1,)):
            raise self.misfit(f"{spec} takes {spec.shape[0]} texts, never one")

    def check_tensors(self, inputs: Tensors) -> None:
        """Refuse tensors longer than any text, for which Triton would take much memory."""
        longest = self.keys.max_tokens or self.tokenizer.longest
        sizes = {name: sum(inputs[name].shape[-1:]) for name in PARTS if name in inputs}
        for name, size in sizes.items():
            if size > longest:
                raise TensorsRefused(
                    f"input `{name}` has texts of {size} tokens",
                    hint=f"the model takes at most {longest} (`max_tokens` in dispatch.toml)",
                )
        if len(set(sizes.values())) > 1:
            tokens = ", ".join(f"`{name}` has {size}" for name, size in sizes.items())
            raise TensorsRefused(
                f"the inputs differ in their number of tokens: {tokens}",
                hint="each of them has a number for each token",
            )

    def filler(self, spec: TensorSpec) -> int:
        """Return the padding value of an input."""
        fillers = {"input_ids": self.tokenizer.padding, TYPES: self.tokenizer.type_padding}
        return fillers.get(spec.name) or 0

    def check_output(self, spec: TensorSpec, sizes: tuple[int, ...]) -> None:
        """Raise ClientDisabled if the family cannot read the output, of these sizes for a text."""
        axes, has = self.answered_with
        if len(sizes) != axes:
            raise self.misfit(f"{spec} has no {has}")
        self.count_labels(sizes[-1], str(spec))

    def encoded(
        self, text: str, longest: int, second: str | None = None, what: str = "`text`"
    ) -> Any:
        """Return the tokenizer's encoding of a text, or of two; `what` names them to the caller."""
        hint = f"the model takes at most {longest} tokens: shorten it"
        characters = len(text) + len(second or "")
        if characters > longest * LONGEST_TOKEN:
            raise BadPayload(f"{what} has {characters} characters", hint=hint)
        backend = self.tokenizer.backend
        if characters > LONG_TEXT:
            (encoding,) = backend.encode_batch([text if second is None else (text, second)])
        else:
            encoding = backend.encode(text, second)
        if not encoding.ids:
            raise BadPayload(f"{what} has no tokens", hint="send a text with words in it")
        if len(encoding.ids) > longest:
            raise BadPayload(f"{what} has {len(encoding.ids)} tokens", hint=hint)
        return encoding

    def texts(self, payloads: Sequence[Payload]) -> list[Any]:
        """Return the encoding of each payload's text, or pair of texts."""
        longest = self.fitted().longest

        def read(payload: Payload) -> Any:
            text = self.text(payload)
            for name in self.pair_fields[1:]:
                if name in payload:
                    second = self.text(payload, name)
                    return self.encoded(text, longest, second, f"`text` with `{name}`")
            return self.encoded(text, longest)

        return self.each(payloads, read)

    def outputs(
        self, encodings: Sequence[Any], places: Sequence[Sequence[int]] | None = None
    ) -> list[npt.NDArray[np.float32]]:
        """Return the model's output for each text: [...], or [tokens, ...].

        Several outputs are one, with a last axis for them. A payload may be any number of texts.
        """
        plan, most = self.fitted(), self.max_batch_size
        found: dict[int, npt.NDArray[np.float32]] = {}
        for whole in self.groups(plan, encodings):
            for start in range(0, len(whole), most):
                group = whole[start : start + most]
                some = None if places is None else [places[index] for index in group]
                run = self.run(plan, [encodings[index] for index in group], some)
                found |= dict(zip(group, run, strict=True))
        self.request.tokens.extend(len(one.ids) for one in encodings)
        return [found[index] for index in range(len(encodings))]

    def run(
        self, plan: TextPlan, encodings: Sequence[Any], places: Sequence[Sequence[int]] | None
    ) -> Sequence[npt.NDArray[np.float32]]:
        """Return the model's output for each text of one run, as `outputs` does."""
        inputs = self.inputs(plan, encodings)
        rows = {}
        if places is not None:
            tokens = inputs[plan.inputs[0].name].shape[-1]
            rows[plan.outputs[0]] = [
                text * tokens + self.begin(encodings[text], tokens) + place
                for text, some in enumerate(places)
                for place in some
            ]
        padding = plan.padding if self.heeds_mask(plan, encodings[0]) else None
        answer = self.answered(plan, inputs, Hints(rows=rows, padding=padding))
        if places is not None:
            return np.split(answer, np.cumsum([len(some) for some in places])[:-1])
        return [answer] if plan.single else list(answer)

    def answered(
        self, plan: TextPlan, inputs: Tensors, hints: Hints = NO_HINTS
    ) -> npt.NDArray[np.float32]:
        """Return the model's output; several, of one shape, have a last axis for them."""
        came = self.infer(inputs, outputs=plan.outputs, hints=hints)
        several = [came[name] for name in plan.outputs]
        return several[0] if len(several) == 1 else np.stack(several, axis=-1)

    def begin(self, encoding: Any, tokens: int) -> int:
        """Return the place of a text's first token when it is padded to `tokens`."""
        return max(0, tokens - len(encoding.ids)) if self.tokenizer.from_left else 0

    def groups(self, plan: TextPlan, encodings: Sequence[Any]) -> list[list[int]]:
        """Return the texts of each run: all, or by length if padding changes answers.

        Texts that are always padded to one length share a run.
        """
        lengths = [0 if plan.length else len(encoding.ids) for encoding in encodings]
        if len(set(lengths)) == 1 or self.heeds_mask(plan, encodings[0]):
            return [list(range(len(encodings)))]
        return [
            [index for index, length in enumerate(lengths) if length == one]
            for one in dict.fromkeys(lengths)
        ]

    def heeds_mask(self, plan: TextPlan, encoding: Any) -> bool:
        """Whether padding behind a text does not change the model's answer.

        It should not if the model takes an `attention_mask`; but the model may ignore it, or
        quantize its activations while it runs. It is tested once, with the first text.
        """
        if plan.padding is None:
            return False
        tried = self._heeds_mask
        if tried is None or tried[0] is not plan:
            try:
                tried = self._heeds_mask = plan, self.try_mask(plan, plan.padding, encoding)
            except InferenceError:  # the text's own run reports the error
                return False
        return tried[1]

    def try_mask(self, plan: TextPlan, padding: Padding, encoding: Any) -> bool:
        """Whether beginnings of a text have the same answers with and without padding.

        Raises InferenceError: as `infer` does.
        """
        whole = self.inputs(plan, [encoding])
        most = min(len(encoding.ids), plan.longest - FILLED_TOKENS)
        counts = {min(count, most) for count in TRIED_TOKENS}
        return most > 0 and all(
            self.is_alike(plan, padding, {name: array[:, :count] for name, array in whole.items()})
            for count in sorted(counts)
        )

    def is_alike(self, plan: TextPlan, padding: Padding, own: Tensors) -> bool:
        """Whether a text has the same answer with and without padding."""
        filled = {
            name: np.pad(array, ((0, 0), (0, FILLED_TOKENS)), constant_values=padding.inputs[name])
            for name, array in own.items()
        }
        alone, beside = (self.answered(plan, inputs) for inputs in (own, filled))
        if padding.outputs:
            beside = beside[:, : alone.shape[1]]
        tolerance = ROUNDED.get(alone.dtype.name, 0.0) * np.abs(alone).max(initial=0)
        return alone.shape == beside.shape and bool(np.allclose(alone, beside, 0, tolerance))

    def inputs(self, plan: TextPlan, encodings: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
        inputs = {}
        for spec in plan.inputs:
            rows = [getattr(encoding, PARTS[spec.name]) for encoding in encodings]
            from_left = self.tokenizer.from_left
            array = pad_rows(rows, self.filler(spec), plan.length, from_left=from_left)
            array = array.astype(DTYPES[spec.datatype], copy=False)
            inputs[spec.name] = array[0] if plan.single else array
        return inputs


def pad_rows(
    rows: Sequence[Sequence[int]], padding: int, length: int = 0, *, from_left: bool = False
) -> npt.NDArray[np.int64]:
    """Return rows of unequal lengths as one array: int64 [texts, length]."""
    array = np.full((len(rows), length or max(map(len, rows))), padding, np.int64)
    for place, row in enumerate(rows):
        array[place, array.shape[1] - len(row) if from_left else 0 :][: len(row)] = row
    return array


def cut_words(text: str, start: int, end: int) -> tuple[str, int, int]:
    """Return a part of a text and its place, without blanks around, which some tokenizers count."""
    words = text[start:end].lstrip()
    start, words = end - len(words), words.rstrip()
    return words, start, start + len(words)
