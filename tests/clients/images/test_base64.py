"""Base64 as callers send it."""

from __future__ import annotations

import pytest

from clients.errors import BadPayload
from clients.images.pictures import decode_base64


@pytest.mark.parametrize(
    "text",
    [
        *("???", "abcde", "Zm9v YmFy", "zürich", "Zm9vYmFy====", "Zm8===", "Zm8=Zm8="),
        "data:image/png;base64,Zg===",
    ],
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(BadPayload, match="`img` is not base64, or cut off"):
        decode_base64(text, "img")


def test_a_data_url_without_a_comma_is_told_so() -> None:
    with pytest.raises(BadPayload, match="`img` is a data URL without a comma"):
        decode_base64("data:image/png;base64", "img")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Zm9vYmFy", "data:image/png;base64,Zm9vYmFy", "Zm9v\r\nYmFy\n"], b"foobar"),
        # Without its padding.
        (["Zm9vYg==", "Zm9vYg", "Zm9vYg=", "data:;base64,Zm9vYg", "Zm9\nvYg"], b"foob"),
        # RFC 4648, table 2: 62 and 63 are also `-` and `_`; 111110 111111, twice.
        (["-_-_", "+/+/", "-_+/", "data:;base64,-_-_", "-_\n-_"], b"\xfb\xff\xbf"),
    ],
)
def test_base64_as_people_send_it(texts: list[str], expected: bytes) -> None:
    assert [decode_base64(text, "img") for text in texts] == [expected] * len(texts)
