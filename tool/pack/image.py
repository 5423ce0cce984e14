"""Build an image with models and clients inside."""

from __future__ import annotations

import subprocess
import tarfile
from contextlib import suppress
from typing import IO, Any, cast

from container.trouble import Trouble
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
        Trouble: Docker fails; it has said why.

    """
    try:
        process = subprocess.Popen(["docker", "build", "--tag", tag, "-"], stdin=subprocess.PIPE)
    except FileNotFoundError as error:
        raise Trouble("there is no `docker` here; install it, or use an archive") from error
    with process:
        try:
            if process.stdin:
                try:
                    context(contents, base, cast(IO[bytes], Input(process, process.stdin)))
                    process.stdin.flush()
                except BrokenPipeError as error:
                    if isinstance(error.__context__, KeyboardInterrupt):
                        raise KeyboardInterrupt from None
                    # Otherwise Docker says itself why it reads no more.
                close_input(process)
            process.wait()
        except BaseException:
            process.kill()
            close_input(process)
            raise
    if process.returncode:
        raise Trouble("`docker build` failed; it says why above")


def context(contents: Contents, base: str, out: IO[bytes]) -> None:
    """Write what Docker builds from; the models are in the folder `model`."""
    text = (DOCKERFILE % base).encode()
    dockerfile = tarfile.TarInfo("Dockerfile")
    dockerfile.size, dockerfile.mode = len(text), 0o644
    header = dockerfile.tobuf(tarfile.PAX_FORMAT)
    out.write(header + text + bytes(-len(text) % tarfile.BLOCKSIZE))
    write_tar(contents, out, "model/")


class Input:
    """Docker's standard input; Docker is ended where Ctrl-C interrupts a write.

    What writes, such as `tarfile`, would write its last block before it passes Ctrl-C on, and wait
    for a Docker that does not read.
    """

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        self.process, self.stream = process, stream

    def write(self, content: Any) -> int:
        try:
            return self.stream.write(content)
        except KeyboardInterrupt:
            self.process.kill()
            raise


def close_input(process: subprocess.Popen[bytes]) -> None:
    """Close Docker's standard input, whether or not it reads what is left."""
    if process.stdin:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdin = None
