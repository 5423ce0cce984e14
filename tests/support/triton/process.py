"""A real Triton on free ports of this machine, with the Python-based backends of the repository."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import tritonclient.grpc as grpc_client

from container.programs.find_triton import find_embedded
from tests.conftest import PATIENCE_S, free_ports


def prefix_of(ports: range) -> str:
    """Return how the shared memory of a server's models is named, and no other's."""
    return f"backends{ports[0]}_"


class Triton:
    """A running server: its client, its log, its process id."""

    def __init__(
        self, process: subprocess.Popen[bytes], ports: range, log: Path, ca_file: Path | None
    ) -> None:
        self.process = process
        self.ports = ports
        self.log_file = log
        self.prefix = prefix_of(ports)
        self.client = grpc_client.InferenceServerClient(
            f"127.0.0.1:{ports[0]}",
            ssl=ca_file is not None,
            root_certificates=str(ca_file) if ca_file else None,
        )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def states(self) -> dict[str, tuple[str, str]]:
        """Return state and reason of every model that Triton has tried to load."""
        return {
            model.name: (model.state, model.reason)
            for model in self.client.get_model_repository_index().models
        }

    def await_models(self, names: Iterable[str], seconds: float) -> None:
        """Wait for models while Triton's log goes on: some dozens take minutes on a busy machine.

        At its start Triton answers nothing, its index neither, until all of them are settled.

        Raises:
            TimeoutError: nothing was written for so many seconds.

        """
        wanted, written, deadline = set(names), -1, 0.0
        while True:
            if written != (written := self.log_file.stat().st_size):
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise TimeoutError(f"not all of {sorted(wanted)} were loaded: {self.log()}")
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(grpc_client.InferenceServerException):
                states = self.states()
                settled = {
                    name for name, (state, _) in states.items() if state in ("READY", "UNAVAILABLE")
                }
                if wanted <= settled and self.client.is_server_live():
                    return
            time.sleep(0.05)


@contextlib.contextmanager
def running(
    folder: Path,
    models: Iterable[str],
    options: Iterable[str] = (),
    ports: range | None = None,
    ca_file: Path | None = None,
    *,
    compares: bool = True,
) -> Iterator[Triton]:
    """Run a server over `folder/models`, load the named ones, and stop it in the end.

    `ca_file` has the authority of its certificate, where the options give it one. Where it
    compares no engines, which takes longer than all else, ONNX Runtime runs what pins none.
    """
    ports = ports or free_ports(3)
    log = folder / "triton.log"
    program = find_embedded(folder)
    command = [
        str(program.executable),
        f"--model-repository={folder / 'models'}",
        *program.options,
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--grpc-port={ports[0]}",
        f"--http-port={ports[1]}",
        f"--metrics-port={ports[2]}",
        "--metrics-interval-ms=100",  # at the end it waits for the thread that sleeps as long
        f"--backend-config=python,shm-region-prefix-name={prefix_of(ports)}",
        *options,
        *(f"--load-model={name}" for name in models),
    ]
    with log.open("wb") as output:
        environment = {**os.environ, **program.environment, "MODEL_INSTANCES_DIR": str(folder)}
        environment |= {} if compares else {"ENGINE_COMPARISON_LIMIT_S": "0.01"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    triton = Triton(process, ports, log, ca_file)
    try:
        triton.await_models(models, seconds=PATIENCE_S)
        yield triton
    finally:
        triton.client.close()
        process.terminate()
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def stubs(folder: Path, model: str = "") -> list[int]:
    """Return the processes that run instances of a model (of any) below the folder."""
    found = []
    wanted = f"{folder / 'models' / model}/" if model else f"{folder}/"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if arguments[0].endswith("triton_python_backend_stub") and wanted in arguments[1]:
                found.append(int(process.name))
    return found


def region_size(triton: Triton, model: str) -> int:
    """Return the bytes of shared memory that the one instance of a model has by now."""
    (process,) = stubs(triton.log_file.parent, model)
    # The third argument of Triton's stub is the name of its region.
    name = Path("/proc", str(process), "cmdline").read_text().split("\0")[2]
    return Path("/dev/shm", name).stat().st_size
