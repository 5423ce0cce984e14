"""What Hatchling adds to the wheel: requirements, and files beside the folders of code.

In the wheel modules import one another by their names there, which type checkers follow.

See `pyproject.toml`.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "triton_dispatcher"

IMPORT = re.compile(
    r"^(\s*from )((?:backends|clients|container|dispatcher|tool|weights)[\w.]* import)",
    re.MULTILINE,
)

REQUIREMENTS = Path(__file__).with_name("requirements")
REQUIREMENT = re.compile(r"^([a-z][^#\\\n]*?)\s*(?:\\|#.*)?$", re.MULTILINE)


class Requirements(MetadataHookInterface):
    """Adds the requirements, and those of the extras, to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them."""
        metadata["dependencies"] = requirements("kit.in")
        metadata["optional-dependencies"] = {
            "tool": requirements("serve.in"),
            # A server is installed as it was tested, with the versions of the image.
            "serve": [*requirements("serve.txt"), *requirements("triton.txt")],
        }


class Files(BuildHookInterface[Any]):
    """Adds files: into the package, and the one that Python reads when it starts."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them, except to an editable installation, which is the project's folder."""
        if version == "editable":
            return
        add = build_data["force_include"]
        add[str(PROJECT / PACKAGE / f"{PACKAGE}.pth")] = f"{PACKAGE}.pth"
        # Without weights, which take 24 MB and more, and the notes of where they are from.
        files = (
            path
            for path in PROJECT.glob("model_repository/*/*")
            if not path.name.isdigit() and path.suffix != ".json"
        )
        for path in (PROJECT / "nginx.conf", PROJECT / "serve", *files):
            add[str(path)] = f"{PACKAGE}/{path.relative_to(PROJECT)}"
        self.renamed = TemporaryDirectory()  # of modules, until this object is gone
        for one in [*self.build_config.builder.recurse_selected_project_files()]:
            path = Path(one.path)
            if path.suffix == ".py" and IMPORT.search(text := path.read_text(encoding="utf-8")):
                other = Path(self.renamed.name, one.relative_path)
                other.parent.mkdir(parents=True, exist_ok=True)
                other.write_text(IMPORT.sub(rf"\1{PACKAGE}.\2", text), encoding="utf-8")
                add[str(other)] = one.distribution_path


def requirements(name: str) -> list[str]:
    """Return the requirements in a file, without comments and checksums."""
    return REQUIREMENT.findall((REQUIREMENTS / name).read_text(encoding="utf-8"))
