"""Run Docker's command, and say in plain words why it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from tool.trouble import Trouble


def docker(
    *arguments: str, write: Callable[[IO[bytes]], object] | None = None, quiet: bool = True
) -> str:
    """Run a command of Docker; return what it prints.

    Args:
        arguments: of the command.
        write: writes its standard input.
        quiet: keep what it prints from the terminal, where a long command shows how far it is.

    Raises:
        Trouble: it fails, with its own words.

    """
    try:
        process = subprocess.Popen(
            ["docker", *arguments],
            stdin=subprocess.PIPE if write else subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.PIPE if quiet else None,
        )
    except FileNotFoundError as error:
        raise Trouble("there is no `docker` here; install it, or use an archive") from error
    with process:
        try:
            if write and process.stdin:
                with suppress(BrokenPipeError):  # it says itself why it reads no more
                    write(process.stdin)
                    process.stdin.flush()
                with suppress(BrokenPipeError):
                    process.stdin.close()
                process.stdin = None
            printed, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        lines = [line for line in (errors or b"").decode(errors="replace").splitlines() if line]
        why = f": {lines[-1]}" if lines else "; it says why above"
        raise Trouble(f"`docker {arguments[0]}` failed{why}")
    return (printed or b"").decode()
