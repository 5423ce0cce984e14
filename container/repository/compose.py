"""Link the models of several folders into the one repository of Triton.

Models are loaded at run time by adding a folder there, and folders that cannot be written to are
left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from clients.model_files.config_text import read_folder
from clients.model_files.gpu_config import TENSORRT, gpu_settings_of, has_gpu
from clients.model_files.model_folders import (
    MODEL_FILES,
    TO_ONNX,
    available,
    find_misplaced_configs,
    link,
    unservable,
)
from clients.model_files.response_cache import cache_warning


def compose(
    repository: Path,
    mounted: Path | None,
    *built_in: Path,
    instead: bool,
    say: Callable[[str], None],
) -> tuple[str, ...]:
    """Fill `repository` with links to model folders; return the models' names.

    Models in `mounted` come first; with `instead` they leave out those in `built_in`.
    """
    repository.mkdir()
    found = available(mounted, *built_in, instead=instead, say=say)
    for name, folder in list(found.items()):
        if reason := unservable(name, folder):
            say(f"{found.pop(name)} is not served: {reason}")
    for name, folder in found.items():
        link(folder, repository / name)
        if said := cache_warning(folder):
            say(f"{name}: {said}")
        for path in find_misplaced_configs(folder):
            say(f"{path} has no effect: Triton reads {folder / path.name} alone; move it up")
        for one in () if has_gpu() else gpu_settings_of(folder):
            say(f"{name}: {one}")
    return tuple(sorted(found))


def without_backend(repository: Path) -> Iterator[str]:
    """Yield a sentence for each model that the embedded Triton has no backend for.

    Of TensorRT `compose` says more where there is no GPU.
    """
    for folder in sorted(repository.iterdir()):
        config = read_folder(folder)
        named = config.text("backend") or config.text("platform")
        for file, fix in TO_ONNX.items():
            if MODEL_FILES.get(named) == file or (not named and any(folder.glob(f"*/{file}"))):
                yield (
                    f"{folder.name}: only NVIDIA's image of Triton can run {file}: build on that "
                    f"image, or {fix}"
                )
        for one in gpu_settings_of(folder) if has_gpu() else ():
            if one.rule is TENSORRT:
                yield f"{folder.name}: {one}"
