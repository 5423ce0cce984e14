"""The server that an author's folder is tried on: `./serve`, its log, and what it is asked."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from container.supervisor.log import MARK
from container.trouble import Trouble

BIND_TO_PORT, SAFE_PORTS = "SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_SAFE_PORT_RANGE"
NEEDED_PORTS = 8
PING_S = 2.0
UNLOADS, PAUSE_S = 5, 0.5
OK, UNKNOWN = 200, 404
LOAD_S = 400.0  # more than a load has, which is 300 s
STOP_S = 30.0
KEY = "DISPATCHER_API_KEY"
OWN = ("/ping", "/reload", "/load_model/", "/models/")  # of which this program says more itself
PROGRAMS = ("gunicorn", "triton")  # which run code of authors
FRAME = re.compile(r' +File "([^"]+)", line \d+')  # of a traceback
STARTED = re.compile("ready after|NOT ready")  # what `serve` says then
SHOWN = {"warning", "error", "critical"}
DEFAULTS = {
    "MODEL_DIR_USE": "instead",
    "MODEL_SERVER_WORKERS": "1",
    "MODEL_SERVER_ACCESS_LOG": "errors",
    "PROBE_INTERVAL": "1",
}
"""Settings for an author's day, where the environment has none."""


class Frames:
    """Leaves out of tracebacks what is in the folders of others, not the author's."""

    def __init__(self, others: Sequence[str], own: str) -> None:
        self.others = others
        self.own = own  # the author's folder, which may lie in one of the others
        self.hidden = False

    def without_others(self, lines: Sequence[str]) -> list[str]:
        """Return lines without the frames of others; a frame may go on in the next call."""
        kept = []
        for line in lines:
            if frame := FRAME.match(line):
                others = frame[1].startswith(("<frozen ", *self.others))
                self.hidden = others and not frame[1].startswith(self.own)
            elif not line.startswith("    "):
                self.hidden = False
            if not self.hidden:
                kept.append(line)
        return kept


class Server:
    """`./serve` with one folder of models; `say` writes a line for the author."""

    def __init__(self, project: Path, folder: Path, port: int, say: Callable[[str], None]) -> None:
        self.say = say
        self.frames = Frames([f"{project}/", f"{sys.prefix}/"], f"{folder}/")
        self.has_started = False  # all programs run, and Triton has tried to load every model
        settings = {name: value for name, value in DEFAULTS.items() if name not in os.environ}
        settings |= {BIND_TO_PORT: str(port), "LOG_FORMAT": "json", "MODEL_DIR": str(folder)}
        settings |= dict.fromkeys(("TLS_CERTIFICATE", "TLS_KEY", "TLS_CLIENT_CA"), "")
        with suppress(OSError):  # the server looks for new classes in folders that were there
            (folder / "code" / "clients").mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.program = project / "serve"
        self.process: subprocess.Popen[str] | None = None
        self.port, self.address = port, f"http://127.0.0.1:{port}"

    def start(self) -> None:
        """Start it; return before it is ready."""
        try:
            self.process = subprocess.Popen(
                [self.program, "serve"],
                env={**os.environ, SAFE_PORTS: free_range(), **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C is for this program, which stops it in order
            )
        except OSError as error:
            raise Trouble(f"{self.program} cannot be started: {error.strerror}") from error
        threading.Thread(target=self.read, args=(self.process,), daemon=True).start()

    def read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.show(line.rstrip())

    def stop(self) -> None:
        if self.process is None:
            return
        try:
            self.process.terminate()
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def exit_code(self) -> int | None:
        """The code with which it has ended; `None` while it runs."""
        return None if self.process is None else self.process.poll()

    def show(self, line: str) -> None:
        """Show a line of its log, if it is about something wrong."""
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and is_said(entry):
            self.has_started = True
        if not isinstance(entry, dict):
            self.say(line)
        elif "status" in entry:
            self.show_request(entry)
        else:
            self.show_message(str(entry.get("program")), entry)

    def show_message(self, program: str, entry: Mapping[str, object]) -> None:
        """Show what is wrong, and what the author's own code prints."""
        text = str(entry.get("message"))
        printed = program in PROGRAMS and "logger" not in entry and not MARK.match(text.encode())
        wrong = entry.get("level") in SHOWN
        if program == "triton" and printed != self.has_started:
            return  # its tables at the start; later on the answer to a load has what it says of it
        lines = self.frames.without_others(text.split("\n")) if printed or wrong else []
        for line in lines if not is_said(entry) else []:
            self.say(f"{program}: {line}")

    def show_request(self, entry: Mapping[str, object]) -> None:
        route = str(entry.get("route") or entry.get("path"))
        if route.startswith(OWN):
            return
        parts = [entry.get("method"), route, entry.get("model"), entry["status"]]
        what = ": ".join(str(entry[key]) for key in ("code", "message") if entry.get(key))
        self.say(" ".join(str(part) for part in (*parts, what) if part))

    def reason(self) -> str:
        """Return why it is not ready; empty where it is."""
        status, body = self.ask("GET", "/ping", PING_S)
        return "" if status == OK else read_error(status, body)

    def is_loaded(self, model: str) -> bool:
        return self.ask("GET", f"/models/{model}", PING_S)[0] == OK

    def load(self, model: str) -> str:
        """Load a model of the folder, again or for the first time; return why that failed."""
        status, body = self.ask("POST", f"/load_model/{model}", LOAD_S)
        return "" if status == OK else read_error(status, body)

    def unload(self, model: str) -> str:
        """Unload a model whose folder is gone; return why that failed."""
        for _ in range(UNLOADS):
            status, body = self.ask("DELETE", f"/models/{model}", LOAD_S)
            if status in (OK, UNKNOWN):
                return ""
            time.sleep(PAUSE_S)  # Triton lists a folder that it no longer finds for a moment
        return read_error(status, body)

    def reload(self) -> str:
        """Load classes and `dispatch.toml` that have changed; return why some were refused."""
        status, body = self.ask("POST", "/reload", LOAD_S)
        if status != OK:
            return read_error(status, body)
        broken: Mapping[str, str] = json.loads(body)["broken"]
        return "\n".join(broken.values())

    def ask(self, method: str, path: str, seconds: float) -> tuple[int, bytes]:
        """Return the status and the body of an answer; 0 and the reason where none came."""
        headers = {"x-api-key": os.environ[KEY]} if os.environ.get(KEY) else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error).encode()
        finally:
            connection.close()


def free_range() -> str:
    """Return neighbouring ports on which nobody listens, as LOW-HIGH."""
    while True:
        with ExitStack() as probes, suppress(OSError, OverflowError):
            first = 0
            for number in range(NEEDED_PORTS):
                probe = probes.enter_context(socket.socket())
                probe.bind(("", first + number))
                first = first or int(probe.getsockname()[1])
            return f"{first}-{first + NEEDED_PORTS - 1}"


def is_said(entry: Mapping[str, object]) -> bool:
    """Whether this program says the same."""
    return bool(STARTED.match(str(entry.get("message"))))


def read_error(status: int, body: bytes) -> str:
    """Return an error as the server says it, with its hint."""
    try:
        error = json.loads(body)["error"]
        hint = f"\n  hint: {error['hint']}" if error.get("hint") else ""
        return f"{error['message']}{hint}"
    except (ValueError, KeyError, TypeError):
        return f"{status or 'no answer'}: {body.decode(errors='replace')[:500]}"


def to_terminal(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
