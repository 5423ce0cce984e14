from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any

import jsonschema
import numpy as np
import pytest

from clients.annotations import json_schema
from clients.families.base.family import Family
from clients.text import tokenizer


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read tokenizers here; a process for each, which other tests see, takes a second."""
    monkeypatch.setattr(tokenizer, "read", tokenizer.fields_of)


def auto_tokenizer() -> Any:
    """Return transformers' class that reads folders; its import takes a second."""
    return import_module("transformers").AutoTokenizer


@cache
def reader(kind: Any) -> Any:
    return jsonschema.Draft202012Validator(json_schema(kind))


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """See that what families are asked and answer is what they declare for OpenAPI."""
    answered = Family.inference

    def inference(self: Family[Any, Any], payload: Any) -> Any:
        result = answered(self, payload)
        reader(self.result_type).validate(json.loads(json.dumps(result)))
        if not any(isinstance(one, bytes | np.ndarray) for one in dict(payload).values()):
            reader(self.payload_type).validate(payload)
        return result

    monkeypatch.setattr(Family, "inference", inference)
