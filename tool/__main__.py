"""`dispatcher`: the program for authors of models, and for callers in a shell.

Each command is a module, imported when it is called: help is there at once.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from container.trouble import Trouble
from dispatcher.version import describe_version

COMMANDS = {  # the module of each in this package, and what it does
    "new-client": ("commands.new_client", "write the smallest client class, its model and test"),
    "new-model": ("scaffold.new_model", "write a model's folder and test, by what its file shows"),
    "check": ("checks.check", "look for mistakes in a model repository, and say how to mend them"),
    "dev": ("dev.command", "serve a folder, load what its author changes, and say what fails"),
    "pack": ("pack.command", "pack a model repository as a model.tar.gz"),
    "models": ("commands.models", "show what would be served, by which client, from which file"),
    "serve": ("commands.serve", "serve the models and classes of a folder, with Triton and NGINX"),
    "engines": ("engines.command", "say which engine runs each model, how fast and how exactly"),
    "emulate": ("commands.emulator", "run a container as Amazon SageMaker does, and answer boto3"),
    "conformance": ("commands.emulator", "check a container against what Amazon SageMaker asks"),
    "invoke": ("commands.invoke", "ask a model of a running endpoint"),
    "rollout": ("commands.rollout", "show and change what a running endpoint tries beside a model"),
    "quantize": ("engines.quantize", "write an int8 version of a model, and compare its answers"),
    "replay": ("replay.command", "ask a server what was captured, and compare its answers"),
    "new-key": ("commands.new_key", "make an API key, and its line for API_KEYS_FILE"),
    "weights": ("", "fetch and convert the weights of the built-in models"),  # another package's
}
OWN = {"backends", "clients", "container", "dispatcher", "tool", "weights"}
PRIVILEGE_NOT_HELD = 1314  # an error of Windows, for links
NO_LINKS = "; turn on Developer Mode in the settings of Windows, so that files can be linked"
OF_UNIX = {"fcntl", "resource"}
INTERRUPTED = 130
WRONG = 2  # the exit code of a command that was called wrongly, or could not be carried out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may be none of UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return call(given)
    except BrokenPipeError:  # `dispatcher models | head` reads no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Trouble, OSError) as error:  # such as a folder that must not be read
        hint = NO_LINKS if getattr(error, "winerror", 0) == PRIVILEGE_NOT_HELD else ""
        sys.stderr.write(f"dispatcher {given[0]}: {error}{hint}\n")
        return WRONG
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OWN:  # a fault of this project's
            raise
        sys.stderr.write(f"dispatcher {given[0]}: {missing(error.name)}\n")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED


def missing(module: str) -> str:
    """Return what to do where a module is not there that a command needs."""
    if module in OF_UNIX:
        return "this command needs Linux or macOS; on Windows, install and run it in WSL"
    package = module.partition(".")[0]
    # The extra is for all but `onnx`, which few commands need.
    wanted = package if package == "onnx" else "'triton-dispatcher[tool]'"
    return (
        f"this Python lacks {package}, which this command needs; `pip install {wanted}` brings it"
    )


def call(given: Sequence[str]) -> int:
    """Run the command that the arguments name; return its exit code."""
    if given[:1] == ["weights"]:
        return int(import_module("weights.cli").main(given[1:]))
    if given[:1] in (["emulate"], ["conformance"]):
        return int(import_module("tool.commands.emulator").main(given))
    parser = argparse.ArgumentParser(
        prog="dispatcher", description="Many models behind one endpoint: add, check and ask them."
    )
    parser.add_argument("--version", action="version", version=describe_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    wanted = next((one for one in given if not one.startswith("-")), "")
    for name, (module_name, meaning) in COMMANDS.items():
        full = f"{meaning[0].upper()}{meaning[1:]}."
        command = commands.add_parser(name, help=meaning, description=full)
        if name == wanted:
            module = import_module(f"tool.{module_name}")
            module.arguments(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(given)
    return int(options.run(options))


if __name__ == "__main__":
    code = main()
    if any(one is not threading.main_thread() and not one.daemon for one in threading.enumerate()):
        # An author's class has begun threads, which may never end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
