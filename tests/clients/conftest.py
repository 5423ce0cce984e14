from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from clients.text import tokenizer


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read tokenizers here; a process for each, which other tests see, takes a second."""
    monkeypatch.setattr(tokenizer, "read", tokenizer.fields_of)


def auto_tokenizer() -> Any:
    """Return transformers' class that reads folders; its import takes a second."""
    return import_module("transformers").AutoTokenizer
