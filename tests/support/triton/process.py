"""A real Triton on free ports of this machine, with the Python-based backends of the repository."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import tritonclient.grpc as grpc_client

from tests.conftest import free_ports

BACKENDS = Path(__file__).resolve().parents[3] / "backends"


def _wheel() -> Path:
    # Found without importing it: that would start looking for plug-ins.
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _backend_folder(folder: Path) -> Path:
    """Make a folder as the launcher does: the wheel's python backend and links to our own."""
    server = _wheel() / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "python"
    python.mkdir(parents=True)
    for source in (server / "backends" / "python", server / "python_backend_stubs" / version):
        for file in source.iterdir():
            if file.is_file():
                shutil.copy(file, python / file.name)
    for name in ("onnxruntime", "openvino"):
        (folder / name).symlink_to(BACKENDS / name)
    return folder


def _environment(folder: Path, interpreter: Path) -> dict[str, str]:
    libraries = [str(_wheel().parent / "nvidia_pytriton.libs")]
    libpython = Path(sysconfig.get_config_var("LIBDIR") or "")
    if (libpython / str(sysconfig.get_config_var("INSTSONAME"))).is_file():
        libraries.append(str(libpython))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        # The stub asks the first python3 on PATH where packages lie.
        "PATH": os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", "")]),
        "MODEL_INSTANCES_DIR": str(folder),
    }


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
    interpreter: Path = Path(sys.executable),
    options: Iterable[str] = (),
    ports: range | None = None,
    ca_file: Path | None = None,
) -> Iterator[Triton]:
    """Run a server over `folder/models`, load the named ones, and stop it in the end.

    `ca_file` has the authority of its certificate, where the options give it one.
    """
    ports = ports or free_ports(3)
    log = folder / "triton.log"
    command = [
        str(_wheel() / "tritonserver" / "bin" / "tritonserver"),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={_backend_folder(folder / 'backends')}",
        f"--cache-directory={_wheel() / 'tritonserver' / 'caches'}",
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
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_environment(folder, interpreter)
        )
    triton = Triton(process, ports, log, ca_file)
    try:
        triton.await_models(models, seconds=120)
        yield triton
    finally:
        triton.client.close()
        process.terminate()
        try:
            process.wait(timeout=60)
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
