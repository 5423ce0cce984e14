"""The files of this project that a request to ResNet-50 runs through, from a trace.

usage: python -m tests.support.trip     writes their list into docs/architecture.md

Starts the container with ResNet-50 alone, asks it as a lone caller, and traces a later request
in all processes (tests/support/tracing/).
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import PICTURES, PROJECT, Endpoint, picture, running, wait_for
from tests.support.telemetry import lines_of, settled

PAGE = PROJECT / "docs" / "architecture.md"
BEGIN, END = "<!-- trip -->\n", "<!-- end of trip -->\n"
TRACING = Path(__file__).parent / "tracing"
# Which engine is faster depends on the machine; and with its threads said nothing is measured.
CONFIGURATION = """
parameters { key: "engine" value: { string_value: "openvino" } }
parameters { key: "INFERENCE_NUM_THREADS" value: { string_value: "1" } }
"""
INFERENCE = "dispatcher/routes/inference.py"
BACKENDS = "backends/"


@dataclass(frozen=True)
class Call:
    """A function of the project that was called, and the file that called it, or "-"."""

    caller: str
    file: str
    function: str


@dataclass(frozen=True)
class Trip:
    """What one request called, in order: in the web worker's thread, and in the model's process."""

    web: list[Call]
    model: list[Call]

    def crossings(self) -> list[tuple[str, str]]:
        """Return between which folders calls lead, each pair once."""
        pairs = {
            (call.caller.partition("/")[0], call.file.partition("/")[0])
            for call in (*self.web, *self.model)
        }
        return sorted(pair for pair in pairs if "-" not in pair and pair[0] != pair[1])


def files(calls: list[Call]) -> list[str]:
    """Return the files of some calls, in the order in which they are first run."""
    return list(dict.fromkeys(call.file for call in calls))


def traced(folder: Path) -> Trip:
    """Start the container in an empty folder, ask ResNet-50, and return what was called."""
    repository = folder / "repository"
    shutil.copytree(PROJECT / "model_repository" / "resnet", repository / "resnet")
    config = repository / "resnet" / "config.pbtxt"
    config.write_text(
        config.read_text().replace('backend: "onnxruntime"', 'backend: "python"') + CONFIGURATION
    )
    shutil.copy(TRACING / "model.py", repository / "resnet" / "1")
    calls = folder / "calls"
    calls.mkdir()
    settings = {
        "MODEL_REPOSITORY": str(repository),
        "PROBE_INTERVAL": "3600",
        "TRIP_FOLDER": str(calls),
        "TRIP_TRACING": str(TRACING),
        "PYTHONPATH": os.pathsep.join(
            part for part in (str(TRACING), os.environ.get("PYTHONPATH", "")) if part
        ),
    }
    body = {"modelname": "resnet", "payload": {"img": picture(PICTURES / "coffee.png")}}
    with running(folder, **settings) as endpoint:
        wait_for(lambda: endpoint.call("/ping").status == 200, "/ping is 200")
        ask(endpoint, body)  # what the first one makes is there for all that come later
        (calls / "recording").touch()
        ask(endpoint, body)
        (calls / "recording").unlink()
        serve = str(endpoint.process.pid)
    return sorted_out([read(file) for file in calls.iterdir() if file.name != serve])


def ask(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """Send a request; wait until it was counted and logged."""
    answer = endpoint.ask(**body)
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.body.decode()}")
    lines_of(endpoint, answer.headers["X-Request-Id"])
    settled(endpoint)


def read(file: Path) -> dict[str, list[Call]]:
    """Return the calls of one process, by the piece of work that they are a part of."""
    works: dict[str, list[Call]] = {}
    for line in file.read_text().splitlines():
        work, *call = line.split(" ")
        works.setdefault(work, []).append(Call(*call))
    return works


def sorted_out(processes: list[dict[str, list[Call]]]) -> Trip:
    """Return the calls of the web worker that answered, and of the model's process."""
    (web,) = [
        calls
        for works in processes
        for calls in works.values()
        if any(call.file == INFERENCE for call in calls)
    ]
    others = [
        [call for calls in works.values() for call in calls]
        for works in processes
        if web not in works.values()
    ]
    (model,) = [calls for calls in others if any(call.file.startswith(BACKENDS) for call in calls)]
    return Trip(web, model)


def listed(trip: Trip) -> str:
    """Return the lists of the page: each file with the first line of its docstring."""
    parts = []
    web, model = files(trip.web), files(trip.model)
    for where, names, first in (
        ("web worker", web, 1),
        ("model's process, in Triton", model, len(web) + 1),
    ):
        lines = [f"In the {where}, {len(names)} files:\n"]
        for number, name in enumerate(names, first):
            docstring = ast.get_docstring(ast.parse((PROJECT / name).read_text())) or ""
            first_line = docstring.partition(chr(10))[0]
            lines.append(f"{number}. [`{name}`](../{name}):\n   {first_line}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def written(page: str) -> str:
    """Return the list that the page has."""
    return page.partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def main() -> int:
    """Write the list into the page."""
    with tempfile.TemporaryDirectory() as folder:
        trip = traced(Path(folder))
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{listed(trip)}\n{END}{after}")
    sys.stdout.write(
        f"{len(files(trip.web))} files in the web worker, {len(files(trip.model))} in the model's "
        f"process; calls between folders: {trip.crossings()}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
