"""Sounds: a file or numbers in, samples out. Shared by all clients that take sounds."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.errors import BadPayload

Samples = npt.NDArray[np.float32]

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")  # libsndfile's names, of some dozen
RATES = (1_000, 192_000)  # samples a second
MOST_CHANNELS = 8
BLOCK = 2**16  # frames that are decoded at a time: a file may have more of them than memory has
UNKNOWN = 2**62  # frames of a FLAC that was written to a pipe, and does not say how many it has
WHOLE = 0.9  # of the frames that a header has: that of an MP3 may be a guess
LOUDEST = 8.0  # of numbers in a list: those of integers are in the thousands

FILES = "a WAV, FLAC, OGG or MP3 file"


def make_tone(rate: int = 8_000, seconds: float = 0.25) -> str:
    """Return a payload for examples: a tone of 440 Hz as a WAV file of 2 kB, in base64."""
    waves = np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((1, 1, rate, 0, "NONE", ""))
        file.writeframes((128 + 64 * waves).astype(np.uint8).tobytes())
    return base64.b64encode(written.getvalue()).decode()


EXAMPLE = make_tone()


def decode_sound(
    data: bytes, name: str, rate: int, longest: float, look: Callable[[], object]
) -> Samples:
    """Return the samples of a file: float32 [samples], mono, -1 to 1, `rate` a second.

    Channels are averaged. No more is decoded than `longest` seconds. `name` is for errors; `look`
    raises where the time is used up: a file of 1 MB may take ten seconds.

    Raises BadPayload: it is no such file, is damaged, empty or too long.
    """
    # Only where a sound comes: most containers serve none.
    soundfile: Any = import_module("soundfile")
    soxr: Any = import_module("soxr")
    try:
        opened = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.LibsndfileError as error:
        what = f"is no sound: {len(data)} bytes that begin with {data[:8]!r}"
        raise no_sound(name, what) from error
    with opened as sound:
        check_header(sound, name, longest)
        own = sound.samplerate
        resampled = None if own == rate else soxr.ResampleStream(own, rate, 1)
        pieces, frames = [], 0
        weights = np.full(sound.channels, 1 / sound.channels, np.float32)
        try:
            while len(block := sound.read(BLOCK, "float32", always_2d=True)):
                look()
                frames += len(block)
                if frames > longest * sound.samplerate:
                    raise too_long(name, f"more than {longest:g}", longest)
                mono = block @ weights  # the mean, which NumPy's own takes 20 times as long for
                pieces.append(resampled.resample_chunk(mono) if resampled else mono)
        except soundfile.LibsndfileError as error:
            raise no_sound(name, f"is a damaged {sound.format} file: {error}") from error
        if frames < WHOLE * sound.frames < UNKNOWN:
            what = f"ends after {frames / sound.samplerate:.1f} s of its {seconds_of(sound):.1f}"
            raise no_sound(name, f"is a damaged {sound.format} file: it {what}")
    if resampled:
        pieces.append(resampled.resample_chunk(np.empty(0, np.float32), last=True))
    samples = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
    return check_samples(samples, name)


def check_header(sound: Any, name: str, longest: float) -> None:
    """Raise BadPayload for a file that may not be decoded, by what its header says."""
    if sound.format not in FORMATS:
        raise no_sound(name, f"is a sound in the format {sound.format}")
    if not RATES[0] <= sound.samplerate <= RATES[1] or sound.channels > MOST_CHANNELS:
        raise BadPayload(
            f"`{name}` has {sound.samplerate} samples a second in {sound.channels} channels",
            hint=f"expected {RATES[0]} to {RATES[1]}, in at most {MOST_CHANNELS} channels",
        )
    if longest < seconds_of(sound) and sound.frames < UNKNOWN:
        raise too_long(name, f"{seconds_of(sound):.1f}", longest)


def seconds_of(sound: Any) -> float:
    return float(sound.frames / sound.samplerate)


def read_samples(samples: Samples, name: str, rate: int, longest: float) -> Samples:
    """Return samples that came as numbers, `rate` a second.

    Raises BadPayload: there are several channels, none or too many samples, or integers.
    """
    if samples.ndim != 1:
        what = f"`{name}` has numbers in the shape {list(samples.shape)}"
        raise BadPayload(what, hint="expected a list of numbers: the samples of one channel")
    if len(samples) > longest * rate:
        raise too_long(name, f"{len(samples) / rate:.1f}", longest)
    if len(samples) and np.abs(samples).max() > LOUDEST:
        raise BadPayload(
            f"`{name}` has samples up to {np.abs(samples).max():g}",
            hint="expected samples from -1 to 1: divide those of 16 bits by 32768",
        )
    return check_samples(samples.astype(np.float32, copy=False), name)


def check_samples(samples: Samples, name: str) -> Samples:
    if not len(samples) or not np.isfinite(samples).all():
        what = "has samples that are no numbers" if len(samples) else "has no samples"
        raise no_sound(name, what)
    return samples


def no_sound(name: str, what: str) -> BadPayload:
    return BadPayload(f"`{name}` {what}", hint=f"expected {FILES}")


def too_long(name: str, seconds: str, longest: float) -> BadPayload:
    return BadPayload(
        f"`{name}` is a sound of {seconds} seconds",
        hint=f"expected at most {longest:g}: send it in parts",
    )
