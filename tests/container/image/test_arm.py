"""Whether Linux on Arm gets what it needs: wheels with the checksums in the locks."""

import subprocess
import sys
from pathlib import Path

import pytest

from container.image.wheel import REQUIREMENTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_all_that_is_served_has_wheels_for_arm(python: str, tmp_path: Path) -> None:
    """Install for Debian 12 on Arm, where nothing is run: uv compares the checksums."""
    locks = [REQUIREMENTS / f"{name}.txt" for name in ("serve", "triton")]
    target = ("--python-version", python, "--python-platform", "aarch64-manylinux_2_36")
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--require-hashes"]
        + ["--only-binary", ":all:", *target, "--target", str(tmp_path / "arm")]
        + [word for lock in locks for word in ("-r", str(lock))],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"the registry cannot be asked here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "arm" / "cykooz_resizer").exists()  # Pillow takes over
    stub = f"python_backend_stubs/{python}/triton_python_backend_stub"
    machine = (tmp_path / "arm" / "pytriton" / "tritonserver" / stub).read_bytes()[18:20]
    assert machine == b"\xb7\0", "not an ELF file for AArch64"
