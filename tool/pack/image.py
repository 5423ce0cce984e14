"""Build an image with models and clients inside."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from container.trouble import Trouble
from tool.pack.archive import write_tar
from tool.pack.contents import Contents

INSIDE = "/opt/packed-model"  # the service may mount /opt/ml over what an image has there
DOCKERFILE = f"""\
FROM %s
ADD model.tar {INSIDE}/
ENV MODEL_DIR={INSIDE}
"""


def build_image(contents: Contents, tag: str, base: str) -> None:
    """Build an image from another one and the packed files, which Docker unpacks."""
    with tempfile.TemporaryDirectory(prefix="dispatcher-pack-") as name:
        folder = Path(name)
        (folder / "Dockerfile").write_text(DOCKERFILE % base, encoding="utf-8")
        with (folder / "model.tar").open("wb") as out:
            write_tar(contents, out)
        try:
            done = subprocess.run(["docker", "build", "--tag", tag, folder], check=False)
        except FileNotFoundError as error:
            raise Trouble("there is no `docker` here; install it, or use an archive") from error
    if done.returncode:
        raise Trouble("`docker build` failed; it says why above")
