"""NumPy files in and out."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.triton.server import Signature
from tests.support.asking import ADD, ask, tensor
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error


def npy(array: Any, *, pickled: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=pickled)
    return out.getvalue()


def test_a_numpy_file_in_and_out(client: FlaskClient) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    response = client.post(
        "/infer/add",
        data=npy(a),
        content_type="application/x-npy",
        headers={"Accept": "application/x-npy"},
    )
    # One array, but the model has two inputs: which of them is meant?
    assert_error(response, 400, "tensors_refused", "`A` FP32 [-1, 3]", "`B` FP32 [-1, 3]")


def test_a_numpy_file_for_the_one_input(client: FlaskClient, server: FakeTriton) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    for array in (
        np.arange(6, dtype="<f4").reshape(2, 3),
        np.asfortranarray(np.ones((2, 3), "f4")),
    ):
        response = client.post(
            "/infer/add",
            data=npy(array),
            content_type="application/x-npy",
            headers={"Accept": "application/x-npy"},
        )
        assert response.content_type == "application/x-npy"
        back = np.load(io.BytesIO(response.data), allow_pickle=False)
        assert back.dtype == np.float32
        assert back.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad_payload"),
        (b"\x93NUMPY", "bad_payload"),
        (b"hello", "bad_payload"),
        (npy(np.array([{"a": 1}], object), pickled=True), "bad_payload"),
        (npy(np.ones((2, 3), np.complex64)), "bad_payload"),
        (npy(np.ones((2, 3), np.float32))[:-1], "bad_payload"),
        (
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "
            b"'shape': (1000000000000, 3), }".ljust(128),
            "bad_payload",
        ),
        (
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "
            b"'shape': (True, 2), }".ljust(128)
            + bytes(8),
            "bad_payload",
        ),
        (b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "bad_payload"),
        (npy(np.ones((2, 4), np.float32)), "tensors_refused"),
        (npy(np.ones((2, 3), np.float64)), "tensors_refused"),
        (npy(np.ones((9, 3), np.float32)), "tensors_refused"),
    ],
)
def test_a_bad_numpy_file(client: FlaskClient, server: FakeTriton, data: bytes, code: str) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    response = client.post("/infer/add", data=data, content_type="application/x-npy")
    assert_error(response, 400, code)
    assert server.calls == []


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2", ">i8", ">u2", "f8", "f2", "i4", "?"])
def test_an_array_of_another_type_is_taken_when_the_hints_are_followed(
    client: FlaskClient, server: FakeTriton, dtype: str
) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    array = np.ones((2, 3), dtype)
    for _ in range(3):
        response = client.post(
            "/infer/add",
            data=npy(array),
            content_type="application/x-npy",
            headers={"Accept": "application/x-npy"},
        )
        if response.status_code == 200:
            break
        assert response.status_code == 400
        hint = (response.json or {})["error"]["hint"]
        asked = re.search(r"array\.astype\(['\"](<?[a-z]+[0-9]+)['\"]\)", hint)
        assert asked, hint
        array = array.astype(asked[1])
    assert response.status_code == 200
    assert np.array_equal(np.load(io.BytesIO(response.data)), np.ones((2, 3)))


def test_an_output_that_is_none_is_named(client: FlaskClient) -> None:
    response = ask(client, "/infer/add", inputs=[tensor()], outputs=[{"name": "Nope"}])
    assert_error(response, 400, "bad_payload", "`outputs[0]`: there is no output 'Nope'", "SUM")


@pytest.mark.parametrize("payload", [{"npy": "abc"}, {"npy": 5}, {"inputs": [], "npy": "zzz"}])
def test_a_numpy_file_is_no_json(client: FlaskClient, payload: Any) -> None:
    response = ask(client, modelname="add", payload=payload)
    assert_error(response, 400, "bad_payload", "`inputs`")
