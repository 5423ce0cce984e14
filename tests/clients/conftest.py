from __future__ import annotations

import pytest

from clients.text import tokenizer


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read tokenizers here; a process for each, which other tests see, takes a second."""
    monkeypatch.setattr(tokenizer, "read", tokenizer.fields_of)
