"""Check health: exit with 0 where `/ping` is 200, else with 1 and the reason.

For the image's HEALTHCHECK, which has no curl.
"""

from __future__ import annotations

import os
import sys

from container.supervisor.http_probe import ask, over_tcp
from dispatcher.settings import read_settings


def main() -> int:
    settings = read_settings(os.environ)
    answer = ask(over_tcp(settings.port, tls=settings.tls_certificate), "/ping")
    if answer.status != 200:
        sys.stdout.write(answer.body.decode(errors="replace") or "no answer\n")
    return int(answer.status != 200)


if __name__ == "__main__":
    sys.exit(main())
