"""Mistakes that people make in a model folder, each made in a copy of one that is right."""

from tests.support.mistakes.configuration import CONFIGURATION
from tests.support.mistakes.engines import ENGINES

MISTAKES = [*CONFIGURATION, *ENGINES]
