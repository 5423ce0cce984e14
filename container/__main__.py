"""What `./serve` hands over to."""

from __future__ import annotations

import sys

from container.supervisor.signals import end_at_once

if __name__ == "__main__":
    end_at_once()  # before the imports, which take a quarter of a second
    from container.serving import main

    sys.exit(main(sys.argv[1:]))
