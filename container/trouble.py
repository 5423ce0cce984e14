"""The error that ends a command, with a sentence for its user."""

from __future__ import annotations


class Trouble(Exception):
    """A command, or a start, cannot be carried out; the text says why, and what to do."""
