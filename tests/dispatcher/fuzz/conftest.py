"""The application with the real clients, and a log without errors."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.support.application import serve_built_in
from tests.support.asking import ADD, WORDS
from tests.support.fake_triton import FakeTriton
from tests.support.fuzz import (
    Numbers,
    came,
)
from tests.support.stand_ins import bert, resnet, yolov5


@pytest.fixture(scope="module")
def client(built_in: Registry, tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    """The application with the real clients; what is loaded comes from a folder of its own."""
    server = FakeTriton(
        {
            "resnet": resnet,
            "yolov5": yolov5,
            "bert_base": bert,
            "numbers": dict,
            "add": lambda inputs: {"SUM": sum(inputs.values())},  # type: ignore[dict-item]
            "words": lambda inputs: {"OUT": inputs["IN"]},  # type: ignore[dict-item]
        },
        signatures={"add": ADD, "words": WORDS},
        calls=deque(maxlen=1),  # of ten thousand pictures all would be 16 GB
    )
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "roots").mkdir()
    environment = Environment(server, folder, max_pixels=100_000)
    settings = {"MODEL_URL_ROOTS": str(folder / "roots"), "MODEL_SERVER_MAX_BODY_MB": "1"}
    return serve_built_in(built_in, environment, read_settings(settings), Numbers)


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    yield
    print(f"\n{sum(came.values())} inputs: {dict(came)}")  # noqa: T201  `make fuzz` shows it


class Errors(logging.Handler):
    """Raises where something is logged as an error: nothing a caller sends may be one."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            raise AssertionError(record.getMessage()) from record.exc_info[1]  # type: ignore[misc]
        raise AssertionError(record.getMessage())


@pytest.fixture(autouse=True, scope="module")
def no_error_is_logged() -> Iterator[None]:
    handler = Errors(logging.ERROR)
    logging.getLogger("dispatcher").addHandler(handler)
    yield
    logging.getLogger("dispatcher").removeHandler(handler)
