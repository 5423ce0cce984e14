"""A prober whose time stands still."""

from __future__ import annotations

import pytest

from tests.support.probing import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()
