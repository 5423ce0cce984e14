"""What the tests of answers send."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients import errors
from clients.base import Client


class OwnError(errors.BadPayload):
    pass


class Raises(Client):
    modelname = "raises"
    example = {"error": "ValueError"}

    def inference(self, payload: Any) -> Any:
        kind = {"ValueError": ValueError, "OwnError": OwnError, "array": None}[payload["error"]]
        if kind is None:
            return np.zeros(3)
        raise kind("the secret text of the exception")


def ask(client: FlaskClient, **body: Any) -> TestResponse:
    return client.post("/invocations", data=json.dumps(body))
