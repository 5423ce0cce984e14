"""Measure this server beside rivals and the in-process limit: `make bench`.

The same as `python -m bench.compare --rivals litserve triton`, and takes the same options.
With `--gpu`, `--mix` or `--capacity`: all three models at once, see `--gpu -h`.
"""

from __future__ import annotations

import sys

from bench import compare, whole
from bench.servers.rival_servers import RIVALS

if __name__ == "__main__":
    argv = sys.argv[1:]
    if {"--gpu", "--mix", "--capacity"}.intersection(argv):
        sys.exit(whole.main(argv))
    sys.exit(compare.main(["--rivals", *RIVALS, *argv]))
