"""Sounds: what files and numbers become, and what is refused before it costs anything."""

from __future__ import annotations

import base64
import io
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from clients.base import Client, Environment
from clients.errors import BadPayload, DeadlineExceeded
from clients.request import Request
from clients.sound.decoding import EXAMPLE
from tests.support.fake_triton import FakeTriton

RATE = 16_000


class Listens(Client):
    modelname = "listens"
    example = {"audio": EXAMPLE}

    def inference(self, payload: Any) -> Any:
        return self.audio(payload, rate=RATE, longest=2)


def heard(value: Any) -> Any:
    with Request().active():
        return Listens(Environment(FakeTriton(), Path())).inference({"audio": value})


def tone(rate: int, seconds: float = 1.0, hertz: float = 440) -> Any:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def file(samples: Any, rate: int, form: str, subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, subtype=subtype)
    return out.getvalue()


def test_a_sound_is_decoded_no_longer_than_there_is_time() -> None:
    client = Listens(Environment(FakeTriton(), Path()))
    with Request(deadline=time.monotonic()).active(), pytest.raises(DeadlineExceeded):
        client.inference({"audio": EXAMPLE})


@pytest.mark.parametrize(
    ("form", "subtype", "rate", "off"),
    [
        ("WAV", "PCM_16", 16_000, 2e-5),
        ("WAV", "PCM_24", 48_000, 1e-6),
        ("WAV", "FLOAT", 44_100, 1e-6),
        ("WAV", "ULAW", 8_000, 0.02),
        ("FLAC", "PCM_16", 22_050, 4e-5),
        ("OGG", "VORBIS", 44_100, 0.02),
        ("OGG", "OPUS", 48_000, 0.02),
    ],
)
def test_every_format_and_rate_gives_the_same_tone(
    form: str, subtype: str, rate: int, off: float
) -> None:
    """Compared with the tone itself, away from its ends, where filters ring."""
    both = np.stack([2 * tone(rate), 0 * tone(rate)], 1)  # the mean of the channels is the tone
    data = file(both, rate, form, subtype)
    samples = heard(data)
    assert samples.dtype == np.float32
    assert len(samples) == RATE
    assert np.abs(samples - tone(RATE))[800:-800].max() < off
    assert np.array_equal(heard(base64.b64encode(data).decode()), samples)


def test_an_mp3_is_read_with_its_delay() -> None:
    samples = heard(file(tone(44_100), 44_100, "MP3"))
    spectrum = np.abs(np.fft.rfft(samples[2000:14_000]))
    assert spectrum.argmax() * RATE / 12_000 == pytest.approx(440, abs=2)


def test_a_tone_above_the_highest_is_filtered_out() -> None:
    """At 16,000 samples a second 12 kHz would be heard as 4 kHz."""
    samples = heard(file(tone(48_000, hertz=12_000), 48_000, "FLAC"))
    assert np.abs(samples[800:-800]).max() < 1e-4


def test_numbers_are_samples_at_the_model_s_own_rate() -> None:
    assert heard([0.5, -0.25, 0]).tolist() == [0.5, -0.25, 0]
    array = np.array([0.5, -1], np.float32)
    assert heard(array).tolist() == [0.5, -1]


@cache
def an_hour() -> bytes:
    """A FLAC of an hour's silence in 180 kB."""
    return file(np.zeros(3600 * RATE, np.int16), RATE, "FLAC")


def an_hour_without_its_length() -> bytes:
    data = bytearray(an_hour())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


def broken_mp3() -> bytes:
    """Its decoder gives up after a part, without a word."""
    random = np.random.default_rng(0)
    data = np.frombuffer(file(random.normal(0, 0.1, 2 * RATE), RATE, "MP3"), np.uint8).copy()
    data[500::50] = random.integers(0, 256, len(data[500::50]))
    return data.tobytes()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (an_hour, ["3600.0 seconds", "at most 2"]),
        (an_hour_without_its_length, ["more than 2 seconds", "in parts"]),
        ([0.0] * (2 * RATE + 1), ["2.0 seconds", "at most 2"]),
        (file(tone(500), 500, "WAV"), ["500 samples a second", "1000 to 192000"]),
        (file(np.zeros((9, 9)), RATE, "WAV"), ["9 channels", "at most 8"]),
        (file(tone(RATE), RATE, "AIFF"), ["AIFF", "WAV, FLAC, OGG or MP3"]),
        (file(tone(RATE), RATE, "FLAC")[:9000], ["damaged FLAC"]),
        (broken_mp3, ["damaged MP3", "of its 2.0"]),
        (file(np.full(9, np.nan), RATE, "WAV", "FLOAT"), ["no numbers"]),
        (file(np.zeros(0), RATE, "WAV"), ["no samples"]),
        (b"RIFF\0\0\0\0WAVEfmt ", ["is no sound: 16 bytes", "WAV, FLAC, OGG or MP3"]),
        (b"%PDF-1.7", ["is no sound", "%PDF"]),
        ("a!", ["not base64"]),
        ([[0.1], [0.2]], ["shape [2, 1]", "one channel"]),
        ([0, 32_767], ["up to 32767", "divide those of 16 bits by 32768"]),
        ([], ["`audio` is []"]),
    ],
)
def test_what_is_no_sound_is_refused_with_a_hint(value: Any, words: list[str]) -> None:
    value = value() if callable(value) else value
    began = time.process_time()
    with pytest.raises(BadPayload) as caught:
        heard(value)
    for word in words:
        assert word in str(caught.value)
    assert time.process_time() - began < 5  # an hour is not decoded
