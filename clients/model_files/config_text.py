"""Reads `config.pbtxt`, a message in protobuf's text format, without protobuf.

`serve` and the model processes read a few fields: importing protobuf and gRPC for that would take
each of them some 20 MB. Here fields also have their place in the text. This reader does not judge
whether a configuration is right; `clients/triton/configuration.py` does, with protobuf's own.
https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.files import text_of

_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*+|[,;])*+                           # separators
    (?P<token>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'     # a text
    |[-+.\w/]+                                            # a name or a number
    |[{}<>\[\]:])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}
TRUE = {"true", "t", "1"}
_OCTAL = re.compile(r"-?0[0-7]+")
_WHOLE = re.compile(r"-?(0[xX][0-9a-fA-F]+|[1-9][0-9]*|0)")


class NotProtobufText(ValueError):
    """The text is not in protobuf's text format."""


@dataclass(frozen=True)
class Field:
    """A field of a message: its name, its value, and its place in the text.

    A value is a text, without quotes, or a message. `[1, 2]` is two fields at the same place.
    """

    name: str
    value: str | Message
    start: int
    end: int


@dataclass(frozen=True)
class Message:
    """The fields of a message, in the order of the text."""

    fields: tuple[Field, ...] = ()

    def all(self, name: str) -> list[Field]:
        return [field for field in self.fields if field.name == name]

    def messages(self, name: str) -> list[Message]:
        """Return the values of that name that are messages."""
        return [field.value for field in self.all(name) if isinstance(field.value, Message)]

    def texts(self, name: str) -> list[str]:
        """Return the values of that name that are not messages."""
        return [field.value for field in self.all(name) if isinstance(field.value, str)]

    def switches(self, group: str, name: str) -> list[Field]:
        """Return the fields of that name that are on, in the messages named `group`."""
        fields = [one for found in self.messages(group) for one in found.all(name)]
        return [one for one in fields if str(one.value).lower() in TRUE]

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a field that is set at most once."""
        return next(iter(self.texts(name)), default)

    def number(self, name: str) -> int:
        """Return the value of a field that holds a whole number; 0 where there is none."""
        return parse_integer(self.text(name) or "0")

    def readable_number(self, name: str) -> int:
        """Return the same; 0 for a text that is no number, which Triton refuses."""
        try:
            return self.number(name)
        except NotProtobufText:
            return 0


def line_of(text: str, *fields: Field) -> int:
    """Return the line of the first of some fields, counted from 1."""
    return text.count("\n", 0, fields[0].start) + 1 if fields else 0


def parse_integer(text: str) -> int:
    """Read a whole number, as in C: `0x1F` has base 16, and `017` base 8."""
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if not _WHOLE.fullmatch(text):
        raise NotProtobufText(f"{text!r} is no whole number")
    return int(text, 0)


def read(text: str) -> Message:
    """Read a message; raise NotProtobufText where the text is not in the format."""
    reader = _Reader(text)
    message = reader.message("")
    if reader.current:
        raise NotProtobufText(f"{reader.current!r} is left over at {reader.start}")
    return message


def read_if_right(text: str) -> Message:
    """Read a message; an empty one where it is not in the format: Triton says what is wrong."""
    try:
        return read(text)
    except NotProtobufText:
        return Message()


def read_folder(folder: Path) -> Message:
    """Read the configuration in a model's folder, as its author wrote it.

    It is empty where there is none, or none that can be read: Triton says what is wrong with it.
    """
    try:
        return read(text_of(folder / "config.pbtxt"))
    except (OSError, ValueError):
        return Message()


class _Reader:
    """The tokens of a text: the next one, and its place."""

    def __init__(self, text: str) -> None:
        self._tokens = self._each(text)
        self.current, self.start, self.end, self.last = "", 0, 0, 0
        self.next()

    @staticmethod
    def _each(text: str) -> Iterator[tuple[str, int, int]]:
        position = 0
        while match := _TOKEN.match(text, position):
            yield match["token"], match.start("token"), match.end()
            position = match.end()
        if re.sub(r"\#[^\n]*|[\s,;]", "", text[position:]):
            raise NotProtobufText(f"{text[position : position + 20]!r} cannot be read")

    def next(self) -> str:
        """Return the current token, and go on to the next."""
        token, self.last = self.current, self.end
        self.current, self.start, self.end = next(self._tokens, ("", self.end, self.end))
        return token

    def message(self, closing: str) -> Message:
        fields: list[Field] = []
        while self.current != closing:
            start, name = self.start, self.next()
            if not re.fullmatch(r"\w+", name):
                raise NotProtobufText(f"{name!r} is no name, at {start}")
            if self.current == ":":
                self.next()
            values = self.values()
            fields += [Field(name, value, start, self.last) for value in values]
        return Message(tuple(fields))

    def values(self) -> list[str | Message]:
        if self.current != "[":
            return [self.value()]
        self.next()
        values = []
        while self.current != "]":
            values.append(self.value())
        self.next()
        return values

    def value(self) -> str | Message:
        token = self.next()
        if closing := _CLOSING.get(token):
            message = self.message(closing)
            self.next()
            return message
        if token in ("", "]", "}", ">", ":", "["):
            raise NotProtobufText(f"{token!r} is no value, at {self.last}")
        parts = [token]
        # Texts that follow each other are joined.
        while parts[-1][0] in "\"'" and self.current[:1] in ('"', "'"):
            parts.append(self.next())
        return "".join(unquote(part) if part[0] in "\"'" else part for part in parts)


def unquote(token: str) -> str:
    """Return the text between quotes; escapes are those of C, for bytes of UTF-8."""
    text = token[1:-1]
    if "\\" not in text:
        return text
    try:
        return text.encode().decode("unicode_escape").encode("latin-1").decode()
    except UnicodeError as error:
        raise NotProtobufText(f"{token} cannot be read") from error
