"""A request takes the way that docs/architecture.md describes: traced in the real container."""

from __future__ import annotations

import re

import pytest

from tests.support.trip import BACKENDS, PAGE, Trip, files, traced, written

pytestmark = pytest.mark.slow

MOST_FILES = 30  # in the web worker


@pytest.fixture(scope="module")
def trip(models: None, tmp_path_factory: pytest.TempPathFactory) -> Trip:
    return traced(tmp_path_factory.mktemp("trip"))


def test_the_page_lists_the_files_that_a_request_runs_through(trip: Trip) -> None:
    """Where it does not: `python -m tests.support.trip` writes the list."""
    named = re.findall(r"^\d+\. \[`(.*?)`\]", written(PAGE.read_text()), re.MULTILINE)
    assert set(named) == {*files(trip.web), *files(trip.model)}


def test_a_request_runs_through_few_files(trip: Trip) -> None:
    assert len(files(trip.web)) <= MOST_FILES


def test_each_border_is_crossed_in_one_direction(trip: Trip) -> None:
    """The dispatcher calls a client, and no client calls back; Triton's backend calls neither."""
    assert trip.crossings() == [("dispatcher", "clients")]
    assert trip.model
    assert all(call.file.startswith(BACKENDS) for call in trip.model)
