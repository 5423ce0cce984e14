"""`python -m backends.engines`: `dispatcher engines`, where the tool is not."""

from __future__ import annotations

import argparse
import sys

from backends.engines.command import arguments, run
from container.trouble import Trouble

parser = argparse.ArgumentParser(prog="engines")
arguments(parser)
try:
    sys.exit(run(parser.parse_args()))
except Trouble as error:
    sys.exit(f"engines: {error}")
