"""What is small to send and large to work on is refused before the work."""

from __future__ import annotations

import io
import math
import struct
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clients.base import Environment
from clients.errors import BadPayload, TensorsRefused
from clients.images.pictures import decode_picture, scans
from clients.plugins.registry import Registry
from clients.request import Request
from clients.tensors.client import MOST_NUMBERS, TensorResult, read_npy, read_v2
from clients.tensors.nested import copy_deeply, flatten
from clients.triton.server import Signature, TensorSpec
from dispatcher.codecs.json_request import MAX_LINES, estimate_size, parse_object, read_lines
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadModel
from dispatcher.models.load_unload import ModelLoader
from tests.conftest import PROJECT
from tests.support.fake_triton import FakeTriton
from tests.support.fuzz import Numbers


@contextmanager
def at_once(seconds: float = 5) -> Iterator[None]:
    """See that the work is not done: each of these took from 10 s to hours, or gigabytes."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *before: bytes) -> bytes:
    """Return a PNG whose header promises what its data need not hold."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(30_000_000), 9))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(before) + data + chunk(b"IEND", b"")


def saved(kind: str, size: int = 8, mode: str = "L", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (size, size), 128).save(out, kind, **options)
    return out.getvalue()


def header_of(kind: str, width: int, height: int) -> bytes:
    """Return a small picture whose header was changed to another size."""
    options = {"lossless": True} if kind == "WEBP" else {}
    data = bytearray(saved(kind, 16, "RGB", **options))
    if kind == "BMP":
        struct.pack_into("<ii", data, 18, width, height)
    elif kind == "WEBP":  # VP8L: two sizes of 14 bits
        (bits,) = struct.unpack_from("<I", data, 21)
        struct.pack_into("<I", data, 21, bits >> 28 << 28 | (height - 1) << 14 | (width - 1))
    else:
        place = data.index(b"\xff\xc0") + 5
        struct.pack_into(">HH", data, place, height, width)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        png(10_000, 10_000),
        png(2**31 - 1, 2**31 - 1),
        header_of("BMP", 10_000, 10_000),
        header_of("BMP", 10_000, -10_000),
        header_of("WEBP", 16_383, 16_383),
        header_of("JPEG", 65_500, 65_500),
    ],
    ids=["png", "png of 31 bits", "bmp", "bmp upside down", "webp", "jpeg"],
)
def test_a_picture_is_judged_by_its_header(data: bytes) -> None:
    assert len(data) < 31_000
    with at_once(), pytest.raises(BadPayload, match=r"is a picture of .* pixels"):
        decode_picture(data, "img", 50_000_000)


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_what_is_packed_beside_the_pixels_is_bounded_too(kind: bytes) -> None:
    bomb = chunk(kind, b"name\0\0" + zlib.compress(bytes(100 * 2**20), 1))
    with at_once(), pytest.raises(BadPayload, match="not a picture"):
        decode_picture(png(10, 10, bomb), "img", 50_000_000)


def progressive(extra: int, after: bytes = b"") -> bytes:
    """Return a progressive JPEG whose last scan comes some times more."""
    data = saved("JPEG", 64, progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * extra + data[-2:] + after


def mpo_segment() -> bytes:
    """Return the segment that says where more pictures are (CIPA DC-007), by Pillow."""
    out = io.BytesIO()
    two = [Image.new("L", (8, 8), shade) for shade in (0, 255)]
    two[0].save(out, "MPO", save_all=True, append_images=two[1:])
    start = out.getvalue().index(b"\xff\xe2")
    length = 2 + int.from_bytes(out.getvalue()[start + 2 : start + 4], "big")
    return out.getvalue()[start : start + length]


@pytest.mark.parametrize(("segment", "kind"), [(b"", "JPEG"), (mpo_segment(), "MPO")])
def test_a_jpeg_of_a_hundred_thousand_scans_is_refused(segment: bytes, kind: str) -> None:
    """Pillow and libjpeg take each of them over the whole picture; so with others behind it."""
    few, many = (data[:2] + segment + data[2:] for data in (progressive(20), progressive(100_000)))
    assert Image.open(io.BytesIO(few)).format == kind
    assert decode_picture(few, "img", 10_000).shape == (64, 64, 3)
    with at_once(), pytest.raises(BadPayload, match="more than 100 scans"):
        decode_picture(many, "img", 50_000)


@pytest.mark.parametrize("before", [b"", b"\xff"], ids=["plain", "with fill bytes"])
def test_the_scans_of_a_large_jpeg_are_fewer(before: bytes) -> None:
    """95 scans of 49 megapixels took 15 s. Any marker may have fill bytes (T.81, B.1.1.2)."""
    data = progressive(6)
    assert decode_picture(data, "img", 64 * 64).shape == (64, 64, 3)
    last = data[data.rindex(b"\xff\xda") : -2]
    more = data[:-2] + (before + last) * 30 + data[-2:]
    with pytest.raises(BadPayload, match="more than 12 scans"):
        decode_picture(more, "img", 64 * 64)
    assert decode_picture(more, "img", 4 * 64 * 64).shape == (64, 64, 3)


BEGINS = {"JPEG": 2, "PNG": 8 + 25}  # the parts


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("JPEG", b"\xff\xfe\0\2"),  # comments
        ("JPEG", b"\xff\xe1\0\x08Exif\0\0"),
        ("PNG", chunk(b"tEXt", b"a\0b")),
        ("PNG", chunk(b"prVt", b"")),
        ("GIF", b"!\xfe\1x\0"),
    ],
)
def test_a_picture_has_few_parts_beside_its_pixels(kind: str, part: bytes) -> None:
    """25 MiB of them took a core ten seconds."""
    data = saved(kind)
    begin = BEGINS.get(kind) or 13 + 3 * (2 << (data[10] & 7))  # GIF89a, 18 and 19
    with_exif = b"\xff\xe1\0\x08Exif\0\0" if kind == "JPEG" else b""  # else Pillow is not asked
    few = data[:begin] + with_exif + part * 1000 + data[begin:]
    assert decode_picture(few, "img", 64).shape == (8, 8, 3)
    many = data[:begin] + with_exif + part * 100_000 + data[begin:]
    with pytest.raises(BadPayload, match="too many parts"):
        decode_picture(many, "img", 64)


def test_a_png_has_one_colour_profile() -> None:
    """Each of them may unpack to a megabyte: 25 MiB took 27 s."""
    profile = chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(2**19), 9))
    assert decode_picture(png(10, 10, profile), "img", 100).shape == (10, 10, 3)
    with pytest.raises(BadPayload, match="colour profile"):
        decode_picture(png(10, 10, profile * 100), "img", 100)


@pytest.mark.parametrize(("width", "height", "taken"), [(16, 4, True), (7000, 7000, False)])
def test_a_bmp_of_run_lengths_is_small(width: int, height: int, taken: bool) -> None:
    """Pillow decodes it in Python: 49 megapixels, of 400 kB, took 6 s."""
    body = (bytes([width % 256, 0x11]) + b"\0\0") * height + b"\0\1"
    colours = bytes(64)
    data = b"BM" + struct.pack("<IHHI", 118 + len(body), 0, 0, 118)
    data += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 4, 2, len(body), 0, 0, 16, 0)
    data += colours + body
    if taken:
        assert decode_picture(data, "img", 10**8).shape == (height, width, 3)
    else:
        with pytest.raises(BadPayload, match="7000×7000"):
            decode_picture(data, "img", 10**8)


def test_what_stands_behind_a_jpeg_is_no_scan() -> None:
    """Some telephones append a film, in which the two bytes are found by chance."""
    data = progressive(0, after=b"\xff\xda\x00\x04" * 1000)
    assert scans(data) < 20
    assert decode_picture(data, "img", 10_000).shape == (64, 64, 3)


def deep(levels: int) -> list[Any]:
    inner: list[Any] = []
    outer = inner
    for _ in range(levels):
        inner.append([])
        inner = inner[0]
    inner.append(0.5)
    return outer


def test_deep_lists_are_walked_once() -> None:
    data = [*[0.5] * 1_000_000, deep(900)]
    with at_once():
        assert flatten(data) == [0.5] * 1_000_001
    with at_once():
        copied = copy_deeply(data)
    data[-1].clear()
    assert flatten(copied) == [0.5] * 1_000_001


TEXTS = {"parameters": {"binary_data_size": 24_000_000}, "datatype": "BYTES"}


@pytest.mark.parametrize(
    ("tensor", "datatype", "words"),
    [
        ({"datatype": "FP32", "shape": [2**31 - 1] * 100_000, "data": [1]}, "FP32", None),
        ({"datatype": "FP32", "shape": [0] + [2**31 - 1] * 6, "data": []}, "FP32", None),
        ({"datatype": "BYTES", "shape": [1], "data": ["\ud800"]}, "BYTES", None),
        ({"datatype": "INT64", "shape": [1], "data": [10**4000]}, "INT64", None),
        ({"datatype": "FP64", "shape": [1], "data": [10**4000]}, "FP64", None),
        ({**TEXTS, "shape": [6_000_000]}, "FP32", r"wants FP32 \[-1\]; you sent BYTES \[6000000\]"),
        ({**TEXTS, "shape": [6_000_000]}, "BYTES", "has 6,000,000 texts"),
        ({**TEXTS, "shape": [2, 3_000_000]}, "BYTES", r"wants BYTES \[-1\]"),
        ({**TEXTS, "shape": [3]}, "BYTES", "has more texts than the 3 of its shape"),
    ],
    ids=[
        *("a long shape", "a large nothing", "half a surrogate pair", "a large int", "as a float"),
        *("texts for numbers", "millions of empty texts", "in two dimensions", "more than said"),
    ],
)
def test_a_tensor_that_is_none(tensor: Any, datatype: str, words: str | None) -> None:
    of_a = Signature(0, (TensorSpec("a", datatype, (-1,)),), ())
    payload: dict[str, Any] = {"inputs": [{"name": "a", **tensor}]}
    if words:
        payload["binary"] = bytes(24 * 10**6)
    with at_once(), pytest.raises((BadPayload, TensorsRefused), match=words):
        read_v2(payload, of_a)


def test_inputs_that_the_model_does_not_have_are_not_read() -> None:
    of_a = Signature(0, (TensorSpec("a", "FP32", (-1,)),), ())
    tensor = {"datatype": "FP32", "shape": [0], "data": []}
    with at_once(), pytest.raises(TensorsRefused, match="there is no input `0`"):
        read_v2({"inputs": [{"name": str(n), **tensor} for n in range(100_000)]}, of_a)


@pytest.mark.parametrize("shape", [(-1, -2), (2**40,), (2**62, 2**62), (1,) * 40])
def test_a_numpy_file_that_promises_too_much(shape: tuple[int, ...]) -> None:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
        out, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    with at_once(), pytest.raises(BadPayload):
        read_npy(out.getvalue() + bytes(8))


def test_an_answer_that_json_would_need_gigabytes_for_is_refused() -> None:
    many = np.broadcast_to(np.float32(0), (MOST_NUMBERS + 1,))
    with at_once(), pytest.raises(BadPayload, match="5,000,001 numbers"):
        TensorResult("any", "", {"OUT": many}).body()


@pytest.mark.parametrize(
    "value",
    [
        *(["x" * 1_000_000, *["y"] * 100_000], deep(40), deep(900)),
        *([True], [None], [[1], 2], [{}], [], [[], []]),
        *([1, math.nan], [1, -math.inf], [3.4028236e38], [-1e39], [2**128], [1, 10**400]),
    ],
    ids=[
        *("texts of 400 GB", "40 deep", "900 deep"),
        *("bool", "null", "uneven", "objects", "empty", "empty lists"),
        *("not a number", "infinite", "too great", "too small", "too great a whole", "400 digits"),
    ],
)
def test_no_list_of_numbers(value: Any) -> None:
    client = Numbers(Environment(FakeTriton(), PROJECT / "model_repository"))
    with at_once(), pytest.raises(BadPayload):
        client.numbers({"n": value}, "n")


def test_numbers_of_single_precision() -> None:
    """Its greatest is 3.4028235e38 as programs write it, which is a little more in double."""
    client = Numbers(Environment(FakeTriton(), PROJECT / "model_repository"))
    numbers = [3.4028235e38, -3.4028235e38, 0.1, 2**70, -(2**63), 1e-300]
    assert client.numbers({"n": numbers}, "n").tolist() == [
        struct.unpack("f", struct.pack("f", number))[0] for number in numbers
    ]


@pytest.mark.parametrize(
    ("text", "top_k"),
    [("[MASK] " + "word " * 2_000_000, 5), ("[MASK]" * 500, 1000), ("[MASK]" * 4_000_000, 1)],
    ids=["10 MB", "1.5 GB of answers", "24 MB of masks"],
)
def test_a_text_that_is_too_much_work(built_in: Registry, text: str, top_k: int) -> None:
    bert: Any = built_in.clients["bert_base"]
    with Request(parameters={"top_k": top_k}).active(), at_once(), pytest.raises(BadPayload):
        bert.masked({"text": text}, 512)


SIZE = 400_000


def test_more_lines_than_are_read() -> None:
    body = io.BytesIO(b"\n" * (MAX_LINES - 1) + b"1\n" * 10)
    read = list(read_lines(body, Metadata()))
    assert len(read) == 2
    assert "more than 100,000 lines" in str(read[1])


@pytest.mark.parametrize(
    "one",
    [
        *("[]", "{}", "[1]", '{"":1}', "[[[]]]", "0.1", "1000", '"a"', '"aa"', '"é€"'),
        *(f'"{"a" * SIZE}"', f'"{"a" * SIZE}😀"', f'"{"a" * SIZE}\\ud83d\\ude00"'),
    ],
    ids=lambda one: one[:9] + one[-9:],
)
def test_json_is_counted_as_what_it_takes(one: str) -> None:
    body = f'{{"z": [{",".join([one] * max(1, SIZE // len(one)))}]}}'.encode()
    tracemalloc.start()
    parse_object(body)
    _, took = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took <= estimate_size(body) <= 8 * took


NO_FOLDERS = ("relative", f"/{'a' * 5000}", "/\0", "/\ud800", "file://", "", "/etc/passwd", "//")
OUTSIDE = ("/", "/../..", "{root}/..", "{root}/out", "{root}/in/../../..")
NO_NAMES = ("", ".", "..", "../x", "a/b", "a\0", "a" * 256, "\ud800", "a\n", "-a")


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        *[("name", url, None) for url in (*NO_FOLDERS, "/proc/self/mem")],
        *[("name", url, "leads out") for url in OUTSIDE],
        *[(name, "{root}", "model_name") for name in NO_NAMES],
    ],
)
def test_a_folder_or_a_name_of_a_model_that_is_none(
    tmp_path: Path, name: str, url: str, said: str | None
) -> None:
    """What lies outside of the roots is not looked at: all of the disk takes a while."""
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "out").symlink_to("/")
    hosting = ModelLoader(tmp_path, (root,), lambda text, _: text, FakeTriton(), 1)
    with at_once(), pytest.raises(BadModel, match=said):
        hosting.load(name, url.format(root=root))
