"""A class that asks another model, whose class runs a model on a Triton."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import ASKING, ROWS, doubled, served


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton({"double": doubled}, {"double": ROWS})


@pytest.fixture
def client(tmp_path: Path, triton: FakeTriton) -> FlaskClient:
    return served(tmp_path, ASKING, triton)
