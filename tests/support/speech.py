"""What a detector of speech takes for speech: vowels, with pauses between them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import soundfile

RATE = 16_000
# The three lowest formants of vowels in Hz, and their widths; Peterson and Barney, 1952.
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
WIDTHS = (80, 120, 160)


def speak(seconds: float, seed: int = 0) -> Any:
    """Return samples of 16 bits: a voice of about 120 Hz."""
    random, count = np.random.default_rng(seed), int(seconds * RATE)
    times = np.arange(count) / RATE
    pitch = 120 * (1 + 0.1 * np.sin(4.4 * times) + 0.03 * np.sin(18.8 * times))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice, at = random.normal(0, 0.002, count), 0
    while at < count:
        part = slice(at, min(count, at + int(RATE * random.uniform(0.15, 0.35))))
        formants = VOWELS[random.integers(len(VOWELS))]
        for harmonic in range(1, 30):
            hertz = harmonic * pitch[part]
            peaks = [
                1 / (1 + ((hertz - f) / w) ** 2) for f, w in zip(formants, WIDTHS, strict=True)
            ]
            voice[part] += sum(peaks) / harmonic**0.3 * np.sin(harmonic * phase[part])
        pause = random.uniform(0.2, 1.2) if random.random() < 0.25 else 0
        at = part.stop + int(RATE * pause)
    return np.round(16_000 * voice / np.abs(voice).max()).astype(np.int16)


def as_file(samples: Any, form: str = "FLAC") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, RATE, format=form)
    return out.getvalue()
