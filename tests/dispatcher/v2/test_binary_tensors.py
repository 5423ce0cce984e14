"""Bodies of a JSON header and binary tensors: what is refused before Triton sees it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from clients.errors import InferenceError
from dispatcher.codecs.binary_tensors import read_header, read_header_length, unique_fields
from dispatcher.errors import BadBody, BadHeader

INPUT = {"name": "A", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}


@pytest.mark.parametrize(("stated", "length"), [("0", 0), ("7", 7), ("10", 10), (None, None)])
def test_the_length_of_the_header_is_read(stated: str | None, length: int | None) -> None:
    assert read_header_length(stated, b"0123456789", "Length") == length


@pytest.mark.parametrize(
    "stated", ["", "x", "-1", "+1", "1.0", "0x1", "1 ", "1_0", "²", "١", "11", "9" * 4000]
)
def test_any_other_length_is_refused(stated: str) -> None:
    with pytest.raises(BadHeader) as caught:
        read_header_length(stated, b"0123456789", "Length")
    assert caught.value.message.startswith("Length is ")
    assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"inputs": [INPUT], "outputs": [{"name": "B", "parameters": {"binary_data": True}}]},
        {"inputs": [{**INPUT, "data": ["shared_memory_region"]}], "parameters": {"own": "text"}},
        {"inputs": "Triton says what is wrong"},
        {"inputs": [None, [], {"parameters": 3}], "outputs": {"name": "B"}},
    ],
)
def test_what_triton_reads_by_itself_is_left_to_it(header: Any) -> None:
    read_header(json.dumps(header).encode(), math.inf)


@pytest.mark.parametrize("part", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["region", "byte_size", "offset"])
def test_shared_memory_is_refused_however_it_is_written(part: str, name: str) -> None:
    tensor = {"name": "A", "parameters": {f"shared_memory_{name}": 1}}
    plain = json.dumps({part: [INPUT, tensor]})
    escaped = plain.replace("shared_memory", r"\u0073hared\u005fmemory")
    assert json.loads(plain) == json.loads(escaped)
    for header in (plain, escaped, plain.encode("utf-16").decode("latin-1")):
        with pytest.raises(BadBody) as caught:
            read_header(header.encode("latin-1"), math.inf)
        assert caught.value.message.startswith(f"`{part}[1].parameters` has 'shared_memory_{name}'")


@pytest.mark.parametrize(
    "header",
    [
        '{"inputs": [{"parameters": {"shared_memory_region": "x"}, "parameters": {}}]}',
        '{"inputs": [{"parameters": {"shared_memory_region": "x"}}], "inputs": []}',
        '{"inputs": [], "parameters": {"a": 1, "a": 1}}',
    ],
)
def test_a_field_that_is_there_twice_is_refused(header: str) -> None:
    """RFC 8259, 4: which one counts differs from reader to reader."""
    with pytest.raises(BadBody, match="twice"):
        read_header(header.encode(), math.inf)


def test_each_field_of_an_object_is_looked_at_once() -> None:
    """Of 100,000 fields the last one was found by 10^10 comparisons: minutes, beyond any limit."""
    looked_at = 0

    class Field(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [f"{number}" for number in range(1000)]
    with pytest.raises(BadBody, match="'999' twice"):
        unique_fields([(Field(name), 0) for name in [*names, "999"]])
    assert looked_at < 10 * len(names)


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"inputs": [}', b"[" * 200_000, b'{"a":' * 200_000],
    ids=["nothing", "open", "list", "number", "no text", "broken", "deep lists", "deep objects"],
)
def test_what_is_no_json_object_is_refused(header: bytes) -> None:
    with pytest.raises(InferenceError) as caught:
        read_header(header, math.inf)
    assert isinstance(caught.value, BadBody)
    assert caught.value.hint
