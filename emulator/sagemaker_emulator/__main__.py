"""`sagemaker-emulator`: Amazon SageMaker's side of a container, on a laptop."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from sagemaker_emulator.commands import conformance, emulate
from sagemaker_emulator.trouble import Trouble

NAME = "sagemaker-emulator"
INTERRUPTED, WRONG = 130, 2  # exit codes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(prog=NAME, description=f"{__doc__}".partition(": ")[2])
    parser.add_argument("--version", action="version", version=version(NAME))
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for module in (emulate, conformance):
        help_text = f"{module.__doc__}".partition(": ")[2]
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=help_text, description=help_text)
        module.arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    try:
        with interrupted_by_signals():
            return int(options.run(options))
    except BrokenPipeError:  # `… | head` reads no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Trouble, OSError) as error:
        sys.stderr.write(f"{NAME} {options.command}: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does, with all that it started."""
    numbers = [signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)]
    before = {one: signal.getsignal(one) for one in numbers}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


if __name__ == "__main__":
    sys.exit(main())
