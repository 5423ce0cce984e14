"""What is heard, and when? For models of windows over a sound: speech, classes, vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Parameter, Payload
from clients.errors import BadParameter, TooLargeAtOnce
from clients.families.base.dispatch_toml import (
    COUNT,
    FLAG,
    TABLE,
    TENSOR,
    Keys,
    Kind,
    is_number,
    key,
    labels_key,
)
from clients.families.base.family import Family
from clients.sound.decoding import EXAMPLE, Samples
from clients.sound.segments import SegmentLimits, find_segments
from clients.tensors.scores import best, likeliest, sigmoid
from clients.tensors.signature import DTYPES
from clients.triton.server import Signature, TensorSpec

SoundPayload = TypedDict("SoundPayload", {"audio": str | list[float]})
HeardSound = TypedDict("HeardSound", {"seconds": float, "windows": NotRequired[list[Any]]})

FLOATS = ("FP32", "FP16")
DURATIONS = ("min_speech_duration_ms", "min_silence_duration_ms", "speech_pad_ms")
MOST_RUNS = 5_000
"""For one sound: a run takes some 3 ms with its way to Triton and back."""


@dataclass(frozen=True, kw_only=True)
class SoundKeys(Keys):
    """The keys of this family."""

    rate: int = key(COUNT, "the samples of a second that the model takes", 16_000)
    window: int | None = key(COUNT, "the samples of a window; else the input's last size", None)
    hop: int | None = key(COUNT, "from one window's begin to the next; else the window", None)
    before: int | None = key(COUNT, "samples of silence before the first window; else none", None)
    scale: float = key(Kind("a number", is_number), "multiplies samples, which are -1 to 1", 1.0)
    windows: int | None = key(
        COUNT, "how many share a run; else `max_batch_size`, or 1 for a model with state", None
    )
    state: Mapping[str, str] | None = key(
        TABLE, "inputs that carry state, each with the output that has the next one", None
    )
    constants: Mapping[str, Any] | None = key(TABLE, "other inputs, with their numbers", None)
    longest: int = key(COUNT, "the longest sound, in seconds", 600)
    vectors: bool = key(FLAG, "whether a window's numbers are a vector, not scores", default=False)
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)
    labels: str = labels_key()
    input: str = key(TENSOR, "the input for the samples, where the others are not named", "")
    output: str = key(TENSOR, "the output, where there are several", "")


@dataclass(frozen=True)
class SoundPlan:
    """How a model takes windows."""

    input: TensorSpec
    sizes: tuple[int, ...]  # of one window in it
    window: int  # in samples
    hop: int
    at_once: int  # windows of a run
    output: str
    others: Mapping[str, npt.NDArray[Any]]  # the constants, and the state at the beginning
    by_row: bool  # whether these have an axis for the windows of a run
    longest: float  # in seconds


class Sound(Family[SoundKeys, SoundPlan]):
    """Answers scores, classes or a vector for each window, or the parts with high scores."""

    keys_type = SoundKeys
    payload_type = SoundPayload
    result_type = HeardSound
    example = {"audio": EXAMPLE}
    parameters = {
        "answer": Parameter(
            "windows",
            meaning="each window, or the parts with speech",
            choices=("windows", "speech"),
        ),
        "top_k": Parameter(3, 1, 1000, "how many classes of a window to answer"),
        "threshold": Parameter(0.5, 0, 1, "the least score of speech"),
        "min_speech_duration_ms": Parameter(250, 0, 60_000, "shorter parts are left out"),
        "min_silence_duration_ms": Parameter(100, 0, 60_000, "shorter silence is part of speech"),
        "speech_pad_ms": Parameter(30, 0, 10_000, "what is added at both ends of a part"),
    }
    media = {"audio": "audio"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.state = dict(self.keys.state or {})

    def fit(self, signature: Signature) -> SoundPlan:
        named = {**self.state, **(self.keys.constants or {})}
        left = [spec for spec in signature.inputs if spec.name not in named and not spec.optional]
        taken = self.tensor([one for one in left if one.datatype in FLOATS] or left, "input")
        if strange := [one for one in left if one != taken]:
            fix = 'write it into `state = {name = "output"}`, or into `constants`'
            raise self.mistake("input", f"leaves {strange[0]} without numbers", fix)
        window, sizes = self.sizes(taken)
        at_once = self.keys.windows or (1 if self.state else self.max_batch_size)
        if at_once > 1 and taken.shape[:1] != (-1,):
            what = f"is {at_once}, but {taken} takes one"
            raise self.mistake("windows", what, "leave it out")
        inputs, outputs = ([one.name for one in s] for s in (signature.inputs, signature.outputs))
        for name, following in self.state.items():
            if name not in inputs or following not in outputs:
                fix = f"the model has {', '.join(inputs)} and answers {', '.join(outputs)}"
                raise self.mistake("state", f'has {name} = "{following}"', fix)
        free = [one for one in signature.outputs if one.name not in self.state.values()]
        hop = self.keys.hop or window
        return SoundPlan(
            taken,
            sizes,
            window,
            hop,
            at_once,
            self.tensor(free, "output").name,
            {spec.name: self.filled(spec) for spec in signature.inputs if spec.name in named},
            signature.max_batch_size > 0,
            min(self.keys.longest, MOST_RUNS * at_once * hop / self.keys.rate),
        )

    def sizes(self, taken: TensorSpec) -> tuple[int, tuple[int, ...]]:
        """Return the samples of a window, and its sizes in the input."""
        rest = taken.shape[1:] or taken.shape
        fixed = math.prod(size for size in rest if size != -1)
        if taken.datatype not in FLOATS or rest.count(-1) > 1 or (rest.count(-1) and fixed > 1):
            raise self.misfit(f"{taken} takes no windows of samples")
        if -1 not in rest and self.keys.window not in (None, fixed):
            what = f"is {self.keys.window}, but {taken} takes {fixed}"
            raise self.mistake("window", what, "leave it out")
        if not (window := self.keys.window or (0 if -1 in rest else fixed)):
            what = f"is missing, and {taken} takes any number of samples"
            raise self.mistake("window", what, "write one, such as 512")
        return window, tuple(window if size == -1 else size for size in rest)

    def filled(self, spec: TensorSpec) -> npt.NDArray[Any]:
        """Return a constant, or the state at the beginning of a sound: zeros."""
        number = (self.keys.constants or {}).get(spec.name, 0)
        if spec.datatype not in DTYPES or spec.datatype == "BYTES" or not is_number(number):
            raise self.mistake("constants", f"has {spec.name} = {number!r}", "write a number")
        shape = [max(1, size) for size in spec.shape]
        return np.full(shape, number, DTYPES[spec.datatype])

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.fitted()
        sounds = self.sounds(plan, payloads)
        views = [self.windows(plan, one) for one in sounds]
        if self.state:  # which a sound begins with
            scores = [self.run(plan, list(view)) for view in views]
        else:
            rows = self.run(plan, [window for view in views for window in view])
            scores = np.split(rows, list(accumulate(map(len, views)))[:-1])
        return [
            self.answer(plan, len(samples), numbers)
            for samples, numbers in zip(sounds, scores, strict=True)
        ]

    def sounds(self, plan: SoundPlan, payloads: Sequence[Payload]) -> list[Samples]:
        """Return the samples of each payload; TooLargeAtOnce where half of them may be short."""
        rate, held = self.keys.rate, 0

        def read(payload: Payload) -> Samples:
            nonlocal held
            samples = self.audio(payload, rate=rate, longest=plan.longest)
            held += len(samples)
            if held > plan.longest * rate and len(payloads) > 1:
                raise TooLargeAtOnce("the sounds of a list are too long to be run together")
            return samples

        return self.each(payloads, read)

    def windows(self, plan: SoundPlan, samples: Samples) -> npt.NDArray[Any]:
        """Return the windows of a sound: [windows, samples]; the last is filled with silence."""
        before = self.keys.before or 0
        after = max(0, before + len(samples) - plan.window)
        count = 1 + math.ceil(after / plan.hop)
        padded = np.zeros((count - 1) * plan.hop + plan.window, DTYPES[plan.input.datatype])
        padded[before : before + len(samples)] = samples * np.float32(self.keys.scale)
        windows = np.lib.stride_tricks.sliding_window_view(padded, plan.window)
        return windows[:: plan.hop]

    def run(self, plan: SoundPlan, windows: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the model's numbers for consecutive windows: [windows, numbers]."""
        others, found = dict(plan.others), []
        for first in range(0, len(windows), plan.at_once):
            part = np.stack(windows[first : first + plan.at_once])
            shape = plan.sizes if len(plan.input.shape) == 1 else (len(part), *plan.sizes)
            rows = len(part) if plan.by_row else 1
            inputs = {name: np.repeat(one, rows, 0) for name, one in others.items()}
            inputs[plan.input.name] = part.reshape(shape)
            answer = self.infer(inputs, outputs=[plan.output, *self.state.values()])
            others |= {name: answer[following] for name, following in self.state.items()}
            if (numbers := answer[plan.output]).size % len(part):
                shape = numbers.shape
                raise self.misfit(f"`{plan.output}` is {list(shape)} for {len(part)} windows")
            found.append(numbers.reshape(len(part), -1))
        return np.concatenate(found)

    def answer(self, plan: SoundPlan, length: int, numbers: npt.NDArray[Any]) -> dict[str, Any]:
        """Return the answer for a sound of so many samples; `numbers` is [windows, numbers]."""
        asked, rate = self.request.parameters, self.keys.rate
        answer: dict[str, Any] = {"seconds": round(length / rate, 3)}
        if not self.keys.vectors:
            self.count_labels(numbers.shape[1], f"`{plan.output}`")
        if asked["answer"] == "windows":
            begins = range(0, plan.hop * len(numbers), plan.hop)
            ends = range(plan.window - (self.keys.before or 0), 2**62, plan.hop)
            answer["windows"] = [
                {**times(begin, min(end, length), rate), **self.said(row)}
                for begin, end, row in zip(begins, ends, numbers, strict=False)
            ]
            return answer
        if numbers.shape[1] != 1:
            what = f'`parameters.answer` is "speech", but a window has {numbers.shape[1]} numbers'
            raise BadParameter(what, hint='send "windows"')
        scores = (sigmoid(numbers) if self.keys.softmax else numbers)[:, 0].tolist()
        durations = (asked[name] * rate / 1000 for name in DURATIONS)  # in samples
        limits = SegmentLimits(asked["threshold"], *durations)
        answer["speech"] = [
            times(begin, end, rate)
            for begin, end in find_segments(scores, plan.hop, length, limits)
        ]
        return answer

    def said(self, row: npt.NDArray[Any]) -> dict[str, Any]:
        """Return what a window's numbers say: a score, the best classes or a vector."""
        if self.keys.vectors:
            return {"vector": [round(number, 7) for number in row.tolist()]}
        ranked = likeliest if self.keys.softmax else best
        found = ranked(row, self.request.parameters["top_k"])
        if len(row) == 1:
            return {"score": round(found[0][1], 6)}
        return {"classes": [self.named(index, score) for index, score in found]}


def times(begin: int, end: int, rate: int) -> dict[str, float]:
    return {"start": round(begin / rate, 3), "end": round(end / rate, 3)}
