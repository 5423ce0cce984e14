"""Measure this server beside a bare route, rivals and the in-process limit: `make bench`.

The same as `python -m bench.compare --bare --rivals litserve triton`, and takes the same options.
"""

from __future__ import annotations

import sys

from bench.compare import main
from bench.servers.rival_servers import RIVALS

if __name__ == "__main__":
    sys.exit(main(["--bare", "--rivals", *RIVALS, *sys.argv[1:]]))
