"""A container of which metrics and log are read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Endpoint
from tests.support.front import front


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("seen"), MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint
