"""Say which licences an image ships: `python -m container.image.licences FOLDER PYTHON`.

FOLDER/README.md   what is shipped, in which version, under which licence, and where the texts are
FOLDER/models/     a folder per model: where its weights are from, and their licence
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from weights.cli import REPOSITORY
from weights.install import sources_of

TEXTS = {
    "AGPL-3.0": Path(__file__).parent / "AGPL-3.0.txt",
    "MIT": Path(__file__).parent / "MIT-Keras.txt",
    # Debian and Ubuntu have it in every installation.
    "Apache-2.0": Path("/usr/share/common-licenses/Apache-2.0"),
}
PAGE = """\
# What this image ships

## Models

| name | version | licence |
|---|---|---|
{models}

## Python packages

The texts are in `{packages}`, in the folder `NAME-VERSION.dist-info` of each package.

{python}

## System packages

`sbom.cdx.json` lists them. The licence of each is in `/usr/share/doc/NAME/copyright`.
"""


def write_models(folder: Path) -> list[str]:
    """Write the licences of the models that come from this project; return rows of a table."""
    rows = []
    for path, source in sources_of(REPOSITORY):
        name = path.name
        if source is None:
            rows.append(f"| {name} | a model of the image's builder | not known here |")
            continue
        target = folder / name
        target.mkdir(parents=True)
        (target / "ORIGIN.txt").write_text(
            f"{source.weights}\nlicence: {source.licence}\nfrom: {source.title}\n{source.notice}\n",
            encoding="utf-8",
        )
        if source.licence in TEXTS:
            shutil.copy(TEXTS[source.licence], target / "LICENSE")
        rows.append(f"| {name} | {source.weights} | {source.licence} |")
    return rows


def list_packages(python: Path) -> str:
    """Return what `pip-licenses` says of an environment."""
    command = [sys.executable, "-m", "piplicenses", f"--python={python}", "--with-system"]
    return subprocess.run(
        [*command, "--format=markdown"], check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout.strip()


def main(folder: Path, python: Path) -> None:
    """Write everything."""
    folder.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(
        models="\n".join(write_models(folder / "models")),
        packages=python.parents[1] / "lib",
        python=list_packages(python),
    )
    (folder / "README.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).absolute())
