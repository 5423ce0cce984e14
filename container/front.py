"""Start the web workers alone, on a TCP port: no Triton, no NGINX, no supervisor.

For AWS Lambda, where the platform is all of that: `python -m container.front`, with TRITON_URL.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from container.checks import check_files
from container.programs.gunicorn import gunicorn_program
from container.repository.shared_memory_plan import SharedMemoryPlan
from dispatcher.settings import SettingError, read_settings

MISUSED = 2  # as in `serve`


def main() -> None:
    try:
        settings = read_settings(os.environ)
        if not settings.triton_url:
            raise SettingError("TRITON_URL is not set; expected: an address")  # noqa: TRY301
        check_files(settings)
    except SettingError as error:
        sys.stderr.write(f"front: {error}\n")
        sys.exit(MISUSED)
    run_dir = Path(tempfile.mkdtemp(prefix="triton-dispatcher-"))
    program = gunicorn_program(settings, run_dir, SharedMemoryPlan())
    command = [*program.command()]
    os.execve(command[0], command, program.environment)  # noqa: S606  there is no shell to start


if __name__ == "__main__":
    main()
