"""Pictures, sounds, texts and payloads of a folder, as the client of a model takes them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clients.base import Client, Payload
from clients.errors import InferenceError
from clients.model_files.files import is_litter, text_of
from clients.request import Media, Request
from container.trouble import Trouble

PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"})
SOUNDS = frozenset({".wav", ".flac", ".ogg", ".mp3"})
EXPECTED = (
    "expected pictures (.jpg, .png, .webp, .bmp, .gif), sounds (.wav, .flac, .ogg, .mp3), .txt "
    "files with a text in each line, or .json files with a payload or a list of them"
)

TIME_S = 600.0  # for one sample: only the author waits for it


@dataclass(frozen=True)
class Sample:
    """A picture, a sound, a text or a payload that a caller could send."""

    name: str  # its file, and its place in it where that holds several
    read: Callable[[], Media | Payload]  # a file only then: not all may fit into memory


def samples_in(folder: Path) -> list[Sample]:
    """Return the samples of a folder and of those in it, by name.

    Raises Trouble: there are none, or a file cannot be read.
    """
    if not folder.is_dir():
        raise Trouble(f"--samples is {str(folder)!r}, which is no folder; {EXPECTED}")
    found: list[Sample] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(map(is_litter, (name, *name.parents[:-1]))):
            found += of_file(path, str(name))
    if not found:
        raise Trouble(f"there are no samples in {str(folder)!r}; {EXPECTED}")
    return found


def of_file(path: Path, name: str) -> Iterator[Sample]:
    """Yield the samples of a file; none where it is of another kind.

    Raises Trouble: it cannot be read.
    """
    kind = path.suffix.lower()
    try:
        if kind in PICTURES | SOUNDS:
            media = "picture" if kind in PICTURES else "audio"
            yield Sample(name, lambda: Media(media, path.read_bytes()))
        elif kind == ".txt":
            for number, line in enumerate(text_of(path).split("\n"), start=1):
                if line.strip():
                    yield Sample(f"{name}:{number}", partial(Media, "text", line))
        elif kind == ".json":
            content = json.loads(text_of(path))
            payloads = content if isinstance(content, list) else [content]
            if not payloads or not all(isinstance(one, dict) for one in payloads):
                raise ValueError('it holds no payload such as {"text": "…"}')  # noqa: TRY301
            for number, payload in enumerate(payloads):
                place = f"{name}[{number}]" if isinstance(content, list) else name
                yield Sample(place, partial(dict, payload))
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from error


def unreadable(name: str, error: Exception) -> Trouble:
    reason = getattr(error, "strerror", None) or error
    return Trouble(
        f"the sample {name} cannot be read: {reason}; mend it, or take it out of the folder"
    )


def ask(client: Client, sample: Sample, parameters: Mapping[str, Any], version: str) -> Any:
    """Return a client's result for a sample, as JSON has it.

    Raises Trouble: the client refuses the sample, or fails with it.
    """
    request = Request(
        parameters=client.read_parameters(parameters),
        version=version,
        deadline=time.monotonic() + TIME_S,
    )
    try:
        what = sample.read()
    except OSError as error:
        raise unreadable(sample.name, error) from error
    try:
        with request.active():
            payload = client.payload_of(what) if isinstance(what, Media) else what
            return json.loads(json.dumps(client.run_inference(payload)))
    except InferenceError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise Trouble(
            f"the client refuses the sample {sample.name}: {error.message}{hint}; mend the sample, "
            "or take it out of the folder"
        ) from error
    except Exception as error:  # what an author's class raises is anything
        raise Trouble(
            f"{type(client).__name__} fails with the sample {sample.name}: "
            f"{type(error).__name__}: {error}"
        ) from error
