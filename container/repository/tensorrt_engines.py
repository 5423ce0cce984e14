"""TensorRT engines, built from the ONNX files on the GPU they are for.

An engine fits one kind of GPU and one version of TensorRT. So `TENSORRT_ENGINES`, a folder that
outlives the container, has a model repository for each such pair, and beside every engine a record
of what it was made from: where that differs, `serve` builds the engine again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from backends.machine.shared_folder import hold_lock
from clients.model_files.config_text import read
from clients.model_files.files import explain_denial, text_of
from clients.model_files.model_folders import CONFIG

TRTEXEC = "/usr/src/tensorrt/bin"  # where NVIDIA's image has it
RECORD = "engine.json"

Say = Callable[[str], None]


class NoEngine(Exception):
    """An engine cannot be built; the message says why."""


def shapes(batches: tuple[int, int, int], **inputs: tuple[str, str, str]) -> list[str]:
    """Return trtexec's options for the least, best and largest batch, and dims of each input."""
    return [
        f"--{which}Shapes="
        + ",".join(f"{name}:{batch}x{dims[at]}" for name, dims in inputs.items())
        for at, (which, batch) in enumerate(zip(("min", "opt", "max"), batches, strict=True))
    ]


TOKENS = ("1", "64", "512")
PROFILES = {
    "resnet": shapes((1, 8, 16), input=("3x224x224",) * 3),
    "yolov5": shapes((1, 4, 8), images=("3x640x640",) * 3),
    "bert_base": shapes((1, 8, 16), input_ids=TOKENS, attention_mask=TOKENS, token_type_ids=TOKENS),
}


def provide(engines: Path, repository: Path, say: Say) -> Path:
    """Link the engines for this GPU into `repository`; return their folder.

    Engines are built as far as they are missing. Models that have no profile here stay.

    Raises NoEngine: there is no GPU or no trtexec, or it failed.
    """
    trtexec = shutil.which("trtexec", path=f"{os.environ.get('PATH', os.defpath)}:{TRTEXEC}")
    if not trtexec:
        raise NoEngine("there is no trtexec: engines are built in NVIDIA's image alone")
    folder = engines / name_pair(trtexec)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise NoEngine(
            f"TENSORRT_ENGINES is '{engines}': {error.strerror}; expected: a folder that can be "
            f"written to{explain_denial(engines, os.W_OK)}"
        ) from error
    with hold_lock(engines / ".lock"):  # other containers may share the folder
        for name in PROFILES:
            link = repository / name
            if not (link / "1" / "model.onnx").is_file():
                continue
            if not (link / CONFIG).is_file():
                say(f"{name}: it has no {CONFIG}, and stays as it is")
                continue
            build(trtexec, name, link.resolve(), folder / name, say)
            remove(link)
            link.symlink_to(folder / name)
    return folder


def build(trtexec: str, name: str, model: Path, target: Path, say: Say) -> None:
    """Build one model's engine, unless the one there was made of the same."""
    onnx, part = model / "1" / "model.onnx", target.with_name(f".{target.name}.part")
    with onnx.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    options = ["--fp16", *PROFILES[name], "--skipInference"]
    record = f"{json.dumps({'onnx_sha256': digest, 'options': options}, indent=2)}\n"
    plan, written = target / "1" / "model.plan", target / RECORD
    if plan.is_file() and written.is_file() and written.read_text(encoding="utf-8") == record:
        say(f"{name}: the engine in {target} fits")
    else:
        say(f"{name}: building the engine in {target}; this takes minutes")
        remove(part)
        (part / "1").mkdir(parents=True)
        command = [trtexec, f"--onnx={onnx}", f"--saveEngine={part / '1' / 'model.plan'}", *options]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        if done.returncode or not (part / "1" / "model.plan").is_file():
            raise NoEngine(f"trtexec ended with {done.returncode}; its output above says why")
        (part / RECORD).write_text(record, encoding="utf-8")
        remove(target)
        part.rename(target)
    # Small, and a newer image may have others.
    for path in model.iterdir():
        if path.name not in ("1", CONFIG):
            remove(target / path.name)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target / path.name)
    (target / CONFIG).write_text(configure(text_of(model / CONFIG)), encoding="utf-8")


def configure(text: str) -> str:
    """Return a model's configuration for TensorRT in place of ONNX Runtime."""
    message = read(text)
    places = {
        (field.start, field.end)
        for name in ("backend", "platform", "default_model_filename", "optimization")
        for field in message.all(name)
    }
    for start, end in sorted(places, reverse=True):
        text = text[:start] + text[end:]
    return f'platform: "tensorrt_plan"\n{text.strip()}\n'


def name_pair(trtexec: str) -> str:
    """Return the name of the repository for this GPU and this TensorRT."""
    gpus = ask(
        ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],
        "there is no GPU here: start the container with --gpus all",
    )
    version = re.search(r"TensorRT v(\d+)", ask([trtexec, "--help"], "trtexec fails"))
    if not gpus.strip() or version is None:
        raise NoEngine(f"nvidia-smi names no GPU, or {trtexec} not which TensorRT it is")
    first = gpus.strip().splitlines()[0]
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{first} TensorRT {version[1]}")


def ask(command: list[str], trouble: str) -> str:
    """Return what a command prints; raise NoEngine where it is not there or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEngine(f"{trouble} ({error})") from error


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
