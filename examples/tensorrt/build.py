"""Build the TensorRT engine of model.onnx, on the GPU that will run it.

Exit code 3: this machine lacks what that needs, as the one line on stdout says. Other codes than 0
are those of trtexec.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LACKING = 3
IN_THE_IMAGE = "/usr/src/tensorrt/bin"  # where NVIDIA's image has trtexec


def lacking() -> list[str]:
    """Return what is not on this machine, in words."""
    nvidia_smi = shutil.which("nvidia-smi")
    asked = nvidia_smi and subprocess.run([nvidia_smi], capture_output=True, check=False)
    missing = [] if asked and not asked.returncode else ["NVIDIA GPU"]
    if not shutil.which("trtexec") and not shutil.which("trtexec", path=IN_THE_IMAGE):
        missing.append("trtexec")
    return missing


if missing := lacking():
    print(
        f"TensorRT builds an engine where it is to run, and here is no {' and no '.join(missing)}: "
        "use NVIDIA's image of Triton, started with --gpus all"
    )
    sys.exit(LACKING)
trtexec = shutil.which("trtexec") or f"{IN_THE_IMAGE}/trtexec"
shapes = {"min": "X:1x8", "opt": "X:8x8", "max": "X:8x8"}  # of the batches, from 1 to 8
options = [f"--{name}Shapes={shape}" for name, shape in shapes.items()]
plan = HERE / "models" / "mix" / "1" / "model.plan"
command = [trtexec, f"--onnx={HERE / 'model.onnx'}", f"--saveEngine={plan}", *options]
sys.exit(subprocess.run(command, check=False).returncode)
