"""`python -m weights`."""

import signal
import sys

from weights.cli import main


def _end(*_signal: object) -> None:
    """End as on Ctrl-C, so that nothing is left half-written."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was left half-written\n")
        sys.exit(130)
