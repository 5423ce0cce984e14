"""Collect the licences of an image: `python -m container.image.licences FOLDER`.

FOLDER/README.md        what is shipped, in which version, under which licence
FOLDER/models/          a folder per model: where its weights are from, and their licence
FOLDER/python/          a folder per Python package, with the licence files it came with
FOLDER/system/          a file per package of the system: its `copyright`
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from container.image.weights.cli import REPOSITORY
from container.image.weights.install import Place
from container.image.weights.manifest import MANIFEST, load

TEXTS = {
    "AGPL-3.0": Path(__file__).parent / "AGPL-3.0.txt",
    "MIT": Path(__file__).parent / "MIT-Keras.txt",
    # Debian and Ubuntu have it in every installation.
    "Apache-2.0": Path("/usr/share/common-licenses/Apache-2.0"),
}
DOCUMENTATION = Path("/usr/share/doc")
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS|ThirdPartyNotices)", re.IGNORECASE)

Row = tuple[str, str, str]  # name, version, licence


def models(folder: Path) -> list[Row]:
    """Write the licences of the models that come from this project."""
    manifest = load(MANIFEST)
    rows = []
    for path in sorted(path for path in REPOSITORY.iterdir() if path.is_dir()):
        name, model = path.name, manifest.get(path.name)
        source = model.source(Place(path).state(model).source) if model else None
        if source is None:
            rows.append((name, "a model of the image's builder", "not known here"))
            continue
        target = folder / name
        target.mkdir(parents=True)
        (target / "ORIGIN.txt").write_text(
            f"{source.weights}\nlicence: {source.licence}\nfrom: {source.title}\n{source.notice}\n",
            encoding="utf-8",
        )
        if source.licence in TEXTS:
            shutil.copy(TEXTS[source.licence], target / "LICENSE")
        rows.append((name, source.weights, source.licence))
    return rows


def python_packages(folder: Path) -> list[Row]:
    """Write the licence files of the installed Python packages."""
    rows = []
    for package in sorted(distributions(path=site_packages()), key=lambda p: p.name.lower()):
        for file in package.files or ():
            if LICENCE_FILE.match(file.name) and ".dist-info" in str(file):
                target = folder / package.name / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(str(file.locate())), target)
        rows.append((package.name, package.version, declared(package)))
    return rows


def site_packages() -> list[str]:
    """Return the folders of installed packages, without the project's own folder."""
    return [path for path in sys.path if path.startswith(sys.prefix)]


def declared(package: Distribution) -> str:
    """Return the licence as the package's metadata name it."""
    metadata = package.metadata.json
    said = str(metadata.get("license_expression") or metadata.get("license") or "")
    if 0 < len(said) < 60 and "\n" not in said:
        return said
    kinds = [
        text.rpartition(":: ")[2]
        for text in metadata.get("classifier") or []
        if text.startswith("License ::")
    ]
    return ", ".join(kinds) or "see its files"


def system_packages(folder: Path) -> list[Row]:
    """Write the copyright files of the system's packages."""
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package}\t${Version}\n"],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    folder.mkdir(parents=True)
    rows = []
    for line in listed.stdout.splitlines():
        name, _, version = line.partition("\t")
        copyright_file = DOCUMENTATION / name / "copyright"
        if copyright_file.is_file():
            shutil.copy(copyright_file, folder / name)
        rows.append((name, version, f"system/{name}"))
    return rows


def main(folder: Path) -> None:
    """Write everything."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What this image ships"]
    for title, rows in (
        ("Models", models(folder / "models")),
        ("Python packages", python_packages(folder / "python")),
        ("System packages", system_packages(folder / "system")),
    ):
        lines += ["", f"## {title}", "", "| name | version | licence |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
