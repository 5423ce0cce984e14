"""Records this project in a virtual environment, as installing its wheel would.

Packages of authors can ask for `triton-dispatcher>=0.1,<0.2` in a checkout and in the image, too:
pip sees which version is there, and looks for no other. What the extras bring is there as well.

`python -m container.image.distribution`
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from dispatcher.version import VERSION

NAME = "triton_dispatcher"
METADATA = """\
Metadata-Version: 2.1
Name: triton-dispatcher
Version: {version}
Provides-Extra: serve
Provides-Extra: tool
"""


def record(packages: Path) -> Path:
    """Write the record into a folder of packages, in place of another version's; return it."""
    for other in packages.glob(f"{NAME}-*.dist-info"):
        shutil.rmtree(other)
    folder = packages / f"{NAME}-{VERSION}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA.format(version=VERSION), encoding="utf-8")
    (folder / "INSTALLER").write_text("make\n", encoding="utf-8")
    files = [f"{folder.name}/{name}" for name in ("INSTALLER", "METADATA", "RECORD")]
    lines = [f"{file},,\n" for file in (*files, "triton-dispatcher.pth")]
    (folder / "RECORD").write_text("".join(lines), encoding="utf-8")
    return folder


if __name__ == "__main__":
    record(Path(sysconfig.get_path("purelib")))
