"""Build an image with models and clients inside."""

from __future__ import annotations

import tarfile
from typing import IO

from tool.docker import docker
from tool.pack.archive import write_tar
from tool.pack.contents import Contents

INSIDE = "/opt/packed-model"  # the service may mount /opt/ml over what an image has there
DOCKERFILE = f"""\
FROM %s
COPY model/ {INSIDE}/
ENV MODEL_DIR={INSIDE}
"""


def build_image(contents: Contents, tag: str, base: str) -> None:
    """Build an image from another one and the packed files.

    Docker gets them as a tar file, so that links are replaced without a copy on disk.

    Raises:
        Trouble: Docker fails.

    """
    docker("build", "--tag", tag, "-", write=lambda out: context(contents, base, out), quiet=False)


def context(contents: Contents, base: str, out: IO[bytes]) -> None:
    """Write what Docker builds from; the models are in the folder `model`."""
    text = (DOCKERFILE % base).encode()
    dockerfile = tarfile.TarInfo("Dockerfile")
    dockerfile.size, dockerfile.mode = len(text), 0o644
    header = dockerfile.tobuf(tarfile.PAX_FORMAT)
    out.write(header + text + bytes(-len(text) % tarfile.BLOCKSIZE))
    write_tar(contents, out, "model/")
