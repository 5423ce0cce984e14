"""Unpack a `model.tar.gz` as the service does: folders and plain files, and nothing else."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sagemaker_emulator.trouble import Trouble

PROGRAM_MODE, FILE_MODE = 0o755, 0o644  # so that any user of a container can read it
OWNER_RUNS = 0o100


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a temporary folder that any user of a container can read."""
    with TemporaryDirectory(prefix="sagemaker-emulator-") as name:
        folder = Path(name).resolve()
        folder.chmod(PROGRAM_MODE)
        yield folder


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack an archive; raise Trouble where it is damaged, or holds what the service refuses."""
    try:
        with tarfile.open(archive, "r:*") as packed:
            for member in packed:
                if not (member.isfile() or member.isdir()):
                    link = f"is a link to {member.linkname}" if member.linkname else "is no file"
                    raise Trouble(
                        f"{archive}: {member.name} {link}, which the service does not unpack; pack "
                        "the file itself: `tar czf` with `--dereference --hard-dereference`"
                    )
                runs = member.isdir() or (member.mode or 0) & OWNER_RUNS
                safe = tarfile.data_filter(member, str(folder))
                safe.mode = PROGRAM_MODE if runs else FILE_MODE
                packed.extract(safe, folder, filter="fully_trusted")
    except tarfile.FilterError as error:
        raise Trouble(
            f"{archive}: {error}; pack with relative names: `tar czf model.tar.gz -C FOLDER .`"
        ) from error
    except (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise Trouble(f"{archive} cannot be read as a tar.gz: {reason}") from error
