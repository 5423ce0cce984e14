"""Prepare an image's models: `python -m weights.only [NAMES]`.

NAMES are separated by commas; none means all. Weights are made for these, and what the manifest
lists besides is removed from the repository. Models of one's own stay as they are.
"""

from __future__ import annotations

import shutil
import sys

from weights.cli import REPOSITORY, main
from weights.sources import load


def only(names: str) -> int:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    done = main(wanted)
    for name in load():
        if done == 0 and wanted and name not in wanted:
            shutil.rmtree(REPOSITORY / name, ignore_errors=True)
    return done


if __name__ == "__main__":
    sys.exit(only(",".join(sys.argv[1:])))
