"""Run Docker's command, and say in plain words why it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, cast

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
                try:
                    write(cast(IO[bytes], Input(process, process.stdin)))
                    process.stdin.flush()
                except BrokenPipeError as error:
                    if isinstance(error.__context__, KeyboardInterrupt):
                        raise KeyboardInterrupt from None
                    # Otherwise Docker says itself why it reads no more.
                close_input(process)
            printed, errors = process.communicate()
        except BaseException:
            process.kill()
            close_input(process)
            raise
    if process.returncode:
        lines = [line for line in (errors or b"").decode(errors="replace").splitlines() if line]
        why = f": {lines[-1]}" if lines else "; it says why above"
        raise Trouble(f"`docker {arguments[0]}` failed{why}")
    return (printed or b"").decode()


class Input:
    """Docker's standard input; Docker is ended where Ctrl-C interrupts a write.

    What writes, such as `tarfile`, would write its last block before it passes Ctrl-C on, and wait
    for a Docker that does not read.
    """

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        self.process, self.stream = process, stream

    def write(self, content: Any) -> int:
        try:
            return self.stream.write(content)
        except KeyboardInterrupt:
            self.process.kill()
            raise


def close_input(process: subprocess.Popen[bytes]) -> None:
    """Close Docker's standard input, whether or not it reads what is left."""
    if process.stdin:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdin = None
