"""TensorRT engines, built from the ONNX files on the GPU they are for.

    python -m container.repository.tensorrt_engines ENGINES    # builds what is missing

An engine fits one kind of GPU and one version of TensorRT. So ENGINES, a folder that outlives the
container, has a model repository for each such pair, and beside every engine a record of what it
was made from: where that differs, the engine is built again. `serve` does the same at its start
where `TENSORRT_ENGINES` names the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.machine.shared_folder import locked
from clients.model_files.config_text import read
from clients.model_files.files import denied, text_of
from clients.model_files.model_folders import CONFIG
from dispatcher.settings import read_settings

TRTEXEC = Path("/usr/src/tensorrt/bin/trtexec")  # where NVIDIA's image has it
RECORD = "engine.json"

Say = Callable[[str], None]


class NoEngine(Exception):
    """An engine cannot be built; the message says why."""


@dataclass(frozen=True)
class Profile:
    """The shapes an engine is built for.

    Args:
        batch: best and largest batch.
        inputs: for every input the least, best and largest dims behind the batch, as TensorRT
            writes them.

    """

    batch: tuple[int, int]
    inputs: Mapping[str, tuple[str, str, str]]

    def options(self) -> list[str]:
        """Return the options of trtexec."""
        best, largest = self.batch
        return [
            f"--{which}Shapes="
            + ",".join(f"{name}:{batch}x{dims[at]}" for name, dims in self.inputs.items())
            for at, (which, batch) in enumerate((("min", 1), ("opt", best), ("max", largest)))
        ]


TOKENS = ("1", "64", "512")

PROFILES = {
    "resnet": Profile((8, 16), {"input": ("3x224x224",) * 3}),
    "yolov5": Profile((4, 8), {"images": ("3x640x640",) * 3}),
    "bert_base": Profile(
        (8, 16), {"input_ids": TOKENS, "attention_mask": TOKENS, "token_type_ids": TOKENS}
    ),
}


def provide(engines: Path, repository: Path, say: Say) -> Path:
    """Link the engines for this GPU into `repository`; return their folder.

    Engines are built as far as they are missing. Models that have no profile here stay.

    Raises:
        NoEngine: there is no GPU or no trtexec, or it failed.

    """
    folder, names = build_all(engines, repository, say)
    for name in names:
        link = repository / name
        remove(link)
        link.symlink_to(folder / name)
    return folder


def build_all(engines: Path, repository: Path, say: Say) -> tuple[Path, list[str]]:
    """Build the engines for this GPU as far as they are missing.

    Returns:
        Their folder, and the models of the repository that have one there.

    Raises:
        NoEngine: there is no GPU or no trtexec, or it failed.

    """
    trtexec = find_trtexec()
    folder = engines / key(trtexec)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise NoEngine(
            f"TENSORRT_ENGINES is '{engines}': {error.strerror}; expected: a folder that can be "
            f"written to{denied(engines, os.W_OK)}"
        ) from error
    built = []
    with locked(engines / ".lock"):  # other containers may share the folder
        for name in PROFILES:
            if (repository / name / "1" / "model.onnx").is_file():
                if (repository / name / CONFIG).is_file():
                    build(trtexec, name, (repository / name).resolve(), folder / name, say)
                    built.append(name)
                else:
                    say(f"{name}: it has no {CONFIG}, and stays as it is")
    return folder, built


def build(trtexec: Path, name: str, model: Path, target: Path, say: Say) -> None:
    """Build one model's engine, unless the one there was made of the same."""
    onnx = model / "1" / "model.onnx"
    with onnx.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    options = ["--fp16", *PROFILES[name].options(), "--skipInference"]
    record = {"onnx_sha256": digest, "options": options}
    if recorded(target) == record and (target / "1" / "model.plan").is_file():
        say(f"{name}: the engine in {target} fits")
    else:
        say(f"{name}: building the engine in {target}; this takes minutes")
        part = target.with_name(f".{target.name}.part")
        remove(part)
        (part / "1").mkdir(parents=True)
        run(trtexec, [f"--onnx={onnx}", f"--saveEngine={part / '1' / 'model.plan'}", *options])
        if not (part / "1" / "model.plan").is_file():
            raise NoEngine(f"{name}: trtexec wrote no engine")
        (part / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        remove(target)
        part.rename(target)
    # Small, and a newer image may have others.
    for path in model.iterdir():
        if path.name not in ("1", CONFIG):
            remove(target / path.name)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target / path.name)
    (target / CONFIG).write_text(configuration(text_of(model / CONFIG)), encoding="utf-8")


def configuration(text: str) -> str:
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


def key(trtexec: Path) -> str:
    """Return the name of the repository for this GPU and this TensorRT."""
    gpus = output(
        ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],
        "there is no GPU here: start the container with --gpus all",
    )
    first = gpus.strip().splitlines()[0] if gpus.strip() else "unknown"
    version = re.search(r"TensorRT v(\d+)", output([str(trtexec), "--help"], "trtexec fails"))
    if version is None:
        raise NoEngine(f"{trtexec} does not say which TensorRT it is")
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{first} TensorRT {version[1]}")


def find_trtexec() -> Path:
    """Return trtexec: the one on PATH, or that of NVIDIA's image.

    Raises:
        NoEngine: there is none.

    """
    found = shutil.which("trtexec") or (os.access(TRTEXEC, os.X_OK) and TRTEXEC)
    if not found:
        raise NoEngine("there is no trtexec: engines are built in NVIDIA's image alone")
    return Path(found)


def run(trtexec: Path, options: list[str]) -> None:
    """Run trtexec; its output goes to the log.

    Raises:
        NoEngine: it failed.

    """
    done = subprocess.run([trtexec, *options], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise NoEngine(f"trtexec ended with {done.returncode}; its output above says why")


def output(command: list[str], trouble: str) -> str:
    """Return what a command prints.

    Raises:
        NoEngine: it is not there or failed.

    """
    try:
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEngine(f"{trouble} ({error})") from error


def recorded(target: Path) -> object:
    try:
        return json.loads((target / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Build the engines; print where they are."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m container.repository.tensorrt_engines ENGINES\n")
        return 2

    def say(line: str) -> None:
        sys.stderr.write(f"tensorrt: {line}\n")

    try:
        folder, _ = build_all(Path(arguments[0]), read_settings(os.environ).model_repository, say)
    except NoEngine as error:
        say(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
