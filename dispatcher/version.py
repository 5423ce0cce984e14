"""The project's version, and the commit that an image was built from."""

from __future__ import annotations

import os

VERSION = "0.1.0"  # pyproject.toml and the Makefile read it here

REVISION_VARIABLE = "TRITON_DISPATCHER_REVISION"  # set in the image
UNKNOWN = "unknown"


def revision() -> str:
    """Return the commit that the image was built from; `unknown` outside of one."""
    return os.environ.get(REVISION_VARIABLE) or UNKNOWN


def describe_version() -> str:
    """Return the version and the revision in words, for `--version`."""
    return f"triton-dispatcher {VERSION} (revision {revision()})"
