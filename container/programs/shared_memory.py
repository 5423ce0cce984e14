"""Where Triton's Python backend has its shared memory: /dev/shm, or a folder with SERVERLESS.

The backend passes tensors to the processes of models in memory that both map, by `shm_open`. glibc
knows /dev/shm alone for that, which some platforms lack. There a small library, loaded with
LD_PRELOAD, opens the same names as files of a folder in RUN_DIR.

`python -m container.programs.shared_memory` makes the library, as the image does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from backends.machine.shared_memory import FOLDER, MIB, PLACE
from container.programs.find_triton import TritonProgram
from container.repository.shared_memory_plan import SharedMemoryPlan, find_ours, share_out
from container.supervisor.log import Say
from container.trouble import Trouble
from dispatcher.settings import Settings

SOURCE = Path(__file__).with_name("shm_elsewhere.c")
LIBRARY = Path(sys.prefix) / "lib" / "shm_elsewhere.so"


# The prefix of regions that Triton's Python backends and the web workers leave in shared memory
# where they are killed.
OWN_PREFIX = f"triton_dispatcher_{os.getpid()}_"


def place_of(settings: Settings, run_dir: Path) -> Path:
    return run_dir / "shm" if settings.serverless else FOLDER


def prepare(settings: Settings, run_dir: Path) -> None:
    """Make the folder, or see that /dev/shm can be used.

    Raises Trouble: neither is possible.
    """
    if not settings.serverless:
        if not os.access(FOLDER, os.W_OK | os.X_OK, effective_ids=True):
            raise Trouble(
                f"{FOLDER} cannot be written to, and Triton's Python backend needs shared memory; "
                "SERVERLESS=true uses a folder in RUN_DIR instead"
            )
        return
    place_of(settings, run_dir).mkdir(exist_ok=True)
    if not LIBRARY.is_file():
        try:
            make(LIBRARY)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Trouble(
                f"SERVERLESS needs {LIBRARY}, which the image has; a C compiler would make it here "
                "(`apt-get install gcc libc6-dev`)"
            ) from error


def plan_shared_memory(
    settings: Settings, triton: TritonProgram | None, run_dir: Path, say: Say
) -> SharedMemoryPlan:
    """Return how shared memory is divided among the models of the embedded Triton.

    Raises Trouble: there is none.
    """
    if not (triton and (settings.serverless or triton.has_our_backends)):
        return SharedMemoryPlan()
    prepare(settings, run_dir)
    place = place_of(settings, run_dir)
    free = os.statvfs(place)
    if settings.serverless:
        left = free.f_bavail * free.f_frsize // MIB
        say(f"SERVERLESS: shared memory is in {place}, {left} MB are free; bodies up to 4 MB")
    if not triton.has_our_backends:
        return SharedMemoryPlan()
    size = free.f_bavail * free.f_frsize
    models = find_ours(settings.model_repository)
    if settings.load_on_demand:  # the others take their shares of what is free when they are loaded
        models = {name: models[name] for name in models if name in settings.required_models}
    return share_out(models, size)


def environment(settings: Settings, run_dir: Path) -> dict[str, str]:
    if not settings.serverless:
        return {}
    loaded = [str(LIBRARY), *os.environ.get("LD_PRELOAD", "").split()]
    return {"LD_PRELOAD": " ".join(loaded), PLACE: str(place_of(settings, run_dir))}


def make(library: Path) -> None:
    """Make the library.

    Raises OSError, subprocess.CalledProcessError: there is no compiler, or it fails.
    """
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    make(LIBRARY)
