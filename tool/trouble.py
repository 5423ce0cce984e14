"""What stops a command, in a sentence for who typed it."""

from __future__ import annotations


class Trouble(Exception):
    """A command cannot be carried out; the text says why, and what to do."""
