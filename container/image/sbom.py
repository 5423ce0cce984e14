"""Write the image's parts list (SBOM) in CycloneDX's JSON, inside of it.

    python -m container.image.sbom FILE PYTHON    # as the Dockerfile does

`cyclonedx-py` lists the Python packages. What it does not know is added: the system's packages,
Triton, the libraries inside of wheels, and the models. The same parts give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packageurl import PackageURL

from dispatcher.version import VERSION
from weights.cli import REPOSITORY
from weights.install import sources_of
from weights.sources import NpmSource

NAME = "triton-dispatcher"
TRITON_HOME = Path("/opt/tritonserver")  # in NVIDIA's image
# Which Triton is in which wheel of nvidia-pytriton; no file of the wheel says it.
TRITON_OF_WHEEL = {"0.7.0": "2.51.0"}
DPKG_FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version")

Part = dict[str, Any]


def list_image(python: Path) -> Part:
    """List the parts of the image in which this runs; `python` is that of the container."""
    bom = find_packages(python)
    bom["components"] = [one for one in bom["components"] if one["name"] != NAME]
    (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    for one in bom["components"]:
        libraries = site / f"{one['name'].lower().replace('-', '_')}.libs"
        if libraries.is_dir():
            one["components"] = [describe_file(path) for path in sorted(libraries.iterdir())]
    wheels = {one["name"]: one["version"] for one in bom["components"]}
    bom["components"] += [*find_system_packages(), *find_models(REPOSITORY)]
    bom["components"] += find_triton(site, wheels.get("nvidia-pytriton"))
    whole = {"type": "container", "name": NAME, "version": VERSION, "bom-ref": NAME}
    # All that nothing else needs are parts of the whole.
    there = {one["bom-ref"] for one in bom["components"]}
    graph = [one for one in bom["dependencies"] if one["ref"] in there]
    needed = {part for one in graph for part in one.get("dependsOn", ())}
    graph.append({"ref": NAME, "dependsOn": sorted(there - needed)})
    return {**bom, "metadata": {"component": whole}, "dependencies": graph}


def find_packages(python: Path) -> Part:
    """Return what `cyclonedx-py` finds in an environment."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--no-validate"]
    command += ["--output-reproducible", "--sv", "1.6", str(python)]
    found: Part = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def find_system_packages() -> Iterator[Part]:
    """Yield the packages of Debian or Ubuntu, with their sources, by which advisories name them."""
    release = dict(
        re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text("utf-8"), re.MULTILINE)
    )
    fields = "\t".join(f"${{{field}}}" for field in DPKG_FIELDS)
    shown = subprocess.run(
        ["dpkg-query", "--show", f"--showformat=${{db:Status-Status}}\t{fields}\n"],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    for line in shown.stdout.splitlines():
        status, name, version, architecture, source, source_version = line.split("\t")
        if status != "installed":
            continue
        qualifiers = {
            "arch": architecture,
            "distro": f"{release['ID']}-{release['VERSION_ID']}",
            "upstream": source if source_version == version else f"{source}@{source_version}",
        }
        purl = PackageURL("deb", release["ID"], name, version, qualifiers).to_string()
        part = {"type": "library", "name": name, "version": version}
        yield part | {"purl": purl, "bom-ref": purl}


def find_triton(site: Path, wheel: str | None) -> Iterator[Part]:
    """Yield Triton, of NVIDIA's image or of the wheel in that version."""
    if TRITON_HOME.is_dir():
        program, file = TRITON_HOME / "bin" / "tritonserver", TRITON_HOME / "TRITON_VERSION"
        version = file.read_text("utf-8").strip() if file.is_file() else None
    elif wheel:
        program = site / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        version = TRITON_OF_WHEEL.get(wheel)
    else:
        return
    part = describe_file(program) if program.is_file() else {"bom-ref": "tritonserver"}
    part |= {"type": "application", "name": "tritonserver"}
    yield part | ({"version": version} if version else {})


def find_models(repository: Path) -> Iterator[Part]:
    """Yield the models: whose weights they are, and the checksum of each file of a version."""
    for folder, source in sources_of(repository):
        part: Part = {
            "type": "machine-learning-model",
            "name": folder.name,
            "bom-ref": f"model:{folder.name}",
            "description": source.weights if source else "a model of the image's builder",
            "components": [
                describe_file(path, str(path.relative_to(folder)))
                for path in sorted(folder.glob("[0-9]*/**/*"))
                if path.is_file()
            ],
        }
        if source:
            part["licenses"] = [{"license": {"id": source.licence}}]
        if isinstance(source, NpmSource):
            part["externalReferences"] = [
                {
                    "type": "source-distribution",
                    "url": PackageURL("npm", None, source.package, source.version).to_string(),
                    "hashes": [{"alg": "SHA-256", "content": source.sha256}],
                    "comment": "what the weights were converted from",
                }
            ]
        yield part


def describe_file(path: Path, name: str = "") -> Part:
    """Describe a file by its checksum and its place."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "type": "file",
        "name": name or path.name,
        "bom-ref": str(path),
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "evidence": {"occurrences": [{"location": str(path)}]},
    }


if __name__ == "__main__":
    made, its_python = map(Path, sys.argv[1:])
    content = json.dumps(list_image(its_python.absolute()), indent=1)
    made.write_text(f"{content}\n", encoding="utf-8")
