"""Texts and files as callers send them: character sets, untyped files."""

from __future__ import annotations

import codecs
import re
from collections.abc import Container, Mapping

from clients.request import Media
from clients.tensors.quoting import brief
from dispatcher.errors import BadBody, UnsupportedType

UTF_16_MARKS = (
    codecs.BOM_UTF16_LE,  # also the beginning of the mark of UTF-32
    codecs.BOM_UTF16_BE,
    codecs.BOM_UTF32_BE,
)
BYTE_ORDER_MARKS = (codecs.BOM_UTF8, *UTF_16_MARKS)
# A JPEG, PNG, WebP, BMP or GIF. A text may begin with "BM", but has no zeros where a BMP has its
# second header's size.
IMAGE_SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP|BM.{13}\0\0\0|GIF8[79]a", re.DOTALL
)

# Character sets with their names in lower case; the first name appears in error messages. UTF-16 is
# not supported: without a byte order mark .NET and RFC 2781 disagree about the order. (Python's own
# table of names grows with each unknown name that is looked up.)
UTF_8 = "utf-8-sig"  # a byte order mark is not part of the text
CHARSETS: Mapping[str, tuple[str, ...]] = {
    UTF_8: ("utf-8", "utf8", "utf-8-sig", "us-ascii", "ascii", "ansi-x3.4-1968", ""),
    "iso-8859-1": ("iso-8859-1", "iso8859-1", "latin-1", "latin1"),
    "windows-1252": ("windows-1252", "cp1252"),
}
CODECS = {name: codec for codec, names in CHARSETS.items() for name in names}
CHARSET = re.compile(r';\s*charset=(?:([^\s;,"]*)|"([^"]*)")\s*(?=;|$)', re.IGNORECASE)
PICTURE = re.compile(r"image/[^\s,]+|application/x-image")  # the second is SageMaker's own

# The kinds that a media type names.
NAMED = {"picture": PICTURE, "audio": re.compile(r"audio/[^\s,]+|(application|video)/ogg")}
# A WAV, FLAC, OGG or MP3, which has tags before its first frame or not.
SOUND_SIGNATURE = re.compile(
    rb"RIFF.{4}WAVE|RF64.{4}WAVE|fLaC|OggS|ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", re.DOTALL
)
SIGNATURES = {"picture": IMAGE_SIGNATURE, "audio": SOUND_SIGNATURE}

UNSPECIFIED_MEDIA = "file"  # a picture, a sound, a text or any other: the caller did not say which


def detect_media(file: Media, taken: Container[str]) -> Media:
    """Find out what a file is for a model: what its caller says, else by how it begins.

    Raises BadBody: the model takes texts only, and the file is not one.
    Raises UnsupportedType: the model takes no files of the type that the caller says.
    """
    content = file.file or file.content
    if file.kind == UNSPECIFIED_MEDIA and not file.refusal and isinstance(content, bytes):
        return guess_media(content, taken)
    if file.refusal and "file" not in taken:
        raise file.refusal
    return file if file.kind in taken or "file" not in taken else Media("file", content)


def guess_media(content: bytes, taken: Container[str]) -> Media:
    """Find out what a file is whose caller does not say it; raises as `detect_media`."""
    for kind, signature in SIGNATURES.items():
        if kind in taken and signature.match(content):
            return Media(kind, content)
    if "file" in taken:
        return Media("file", content)
    is_picture = IMAGE_SIGNATURE.match(content)
    if "text" in taken and not is_picture:
        try:
            return Media("text", decode_text(content))
        except BadBody:
            if "picture" not in taken:
                raise
    # It may be of a type that is not known here: an author's client may read other files.
    other = "picture" if is_picture else UNSPECIFIED_MEDIA
    return Media(next((kind for kind in SIGNATURES if kind in taken), other), content)


def text_media(content: bytes, content_type: str = "") -> Media:
    """Return a text; where it cannot be decoded, a file that only a model of files takes."""
    try:
        return Media("text", decode_text(content, content_type), content)
    except (BadBody, UnsupportedType) as error:
        return Media(UNSPECIFIED_MEDIA, content, refusal=error)


def decode_text(content: bytes, content_type: str = "") -> str:
    """Decode a text, without its byte order mark; no content type means UTF-8."""
    said = ["".join(one).lower() for one in CHARSET.findall(content_type)]
    if content_type.lower().count("charset") != len(said[:1]):
        raise UnsupportedType(
            f"the charset of a text cannot be read: its type is {brief(content_type)}",
            hint="say it once, as in text/plain; charset=utf-8",
        )
    charset = "".join(said)
    codec = CODECS.get(charset.replace("_", "-"))
    if codec is None:
        taken = ", ".join(names[0] for names in CHARSETS.values())
        raise UnsupportedType(
            f"a text with charset {brief(charset)} is not supported",
            hint=f"send it in UTF-8; supported are {taken}",
        )
    if content.startswith(codecs.BOM_UTF8):
        codec = UTF_8  # written by an editor that knew; the sender of the file may not
    # Zeros are valid in every charset here, but no text has them, save a terminating one from C.
    if content.startswith(UTF_16_MARKS) or b"\0" in content.rstrip(b"\0"):
        raise utf_16_error("text")
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        raise BadBody(
            f"the text is not {charset.upper() or 'UTF-8'}: {error}",
            hint="send it in UTF-8, or say what it is: text/plain; charset=iso-8859-1",
        ) from error


def utf_16_error(what: str) -> BadBody:
    return BadBody(
        f"the {what} begins as UTF-16 or UTF-32 does, or has zeros between its characters",
        hint="send it in UTF-8",
    )
