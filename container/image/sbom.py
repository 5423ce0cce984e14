"""Write a parts list (SBOM) in CycloneDX's JSON: of the image, or of a wheel.

    python -m container.image.sbom image FILE PYTHON    # inside the image, as the Dockerfile does
    python -m container.image.sbom wheel WHEEL          # beside it: NAME-VERSION.cdx.json

`cyclonedx-py` lists the Python packages, of an environment or of a lock file; `dpkg-query` those of
the system. What neither knows is added: Triton, the libraries inside of wheels, and the models.
The same parts give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from container.image.weights.cli import REPOSITORY
from container.image.weights.install import Place
from container.image.weights.manifest import MANIFEST, load
from container.image.weights.sources import NpmSource
from dispatcher.version import VERSION

NAME = "triton-dispatcher"
REQUIREMENTS = Path(__file__).with_name("requirements")
TRITON_HOME = Path("/opt/tritonserver")  # in NVIDIA's image
# Which Triton is in which wheel of nvidia-pytriton; no file of the wheel says it.
TRITON_OF_WHEEL = {"0.7.0": "2.51.0"}
DPKG_FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version")


def image_parts(python: Path) -> Bom:
    """Return the parts of the image in which this runs.

    Args:
        python: of the environment that the container uses.

    """
    bom = listed("environment", python)
    for one in [one for one in bom.components if one.name == NAME]:  # what the list is of
        bom.components.remove(one)
        bom.dependencies = [two for two in bom.dependencies if two.ref != one.bom_ref]
    packages = {canonicalize_name(one.name): one for one in bom.components}
    (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    for folder in sorted(site.glob("*.libs")):
        if owner := packages.get(canonicalize_name(folder.name.removesuffix(".libs"))):
            owner.components.update(map(library, sorted(folder.iterdir())))
    bom.components.update(system_packages())
    bom.components.update(models(REPOSITORY))
    wheel = packages.get(canonicalize_name("nvidia-pytriton"))
    if TRITON_HOME.is_dir():
        version = TRITON_HOME / "TRITON_VERSION"
        named = version.read_text(encoding="utf-8").strip() if version.is_file() else None
        bom.components.add(triton(TRITON_HOME / "bin" / "tritonserver", named))
    elif wheel:
        program = site / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        bom.components.add(triton(program, TRITON_OF_WHEEL.get(wheel.version or "")))
    return about(
        bom, Component(name=NAME, version=VERSION, type=ComponentType.CONTAINER, bom_ref=NAME)
    )


def wheel_parts(wheel: Path) -> Bom:
    """Return what a wheel of this project brings.

    Required are the packages of `pip install`; those that only an extra brings are optional. The
    versions and checksums are those of the lock files, which the extra `serve` asks for.
    """
    bom = Bom()
    for lock in ("serve.txt", "triton.txt"):
        bom.components.update(listed("requirements", REQUIREMENTS / lock).components)
    required = {
        canonicalize_name(Requirement(line.partition("#")[0]).name)
        for line in (REQUIREMENTS / "kit.in").read_text(encoding="utf-8").splitlines()
        if line.partition("#")[0].strip()
    }
    for one in bom.components:
        one.description = None  # the line of the lock file
        one.bom_ref.value = str(one.purl)
        named = canonicalize_name(one.name) in required
        one.scope = ComponentScope.REQUIRED if named else ComponentScope.OPTIONAL
    name, version, _, _ = parse_wheel_filename(wheel.name)
    component = Component(
        name=name,
        version=str(version),
        type=ComponentType.LIBRARY,
        bom_ref=NAME,
        purl=PackageURL("pypi", None, name, str(version), {"file_name": wheel.name}),
        hashes=[sha256(wheel)],
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )
    return about(bom, component)


def listed(kind: str, source: Path) -> Bom:
    """Return what `cyclonedx-py` finds in an environment, or in a lock file."""
    command = [sys.executable, "-m", "cyclonedx_py", kind, "--no-validate", "--output-reproducible"]
    done = subprocess.run(
        [*command, "--sv", "1.6", str(source)], check=True, capture_output=True, encoding="utf-8"
    )
    found = Bom.from_json(json.loads(done.stdout))  # type: ignore[attr-defined]
    assert isinstance(found, Bom)  # noqa: S101  for the type alone
    return found


def system_packages() -> Iterator[Component]:
    """Yield the packages of Debian or Ubuntu, with their sources, by which advisories name them."""
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
        if "=" in line
    )
    system, edition = (release[key].strip('"') for key in ("ID", "VERSION_ID"))
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
            "distro": f"{system}-{edition}",
            "upstream": source if source_version == version else f"{source}@{source_version}",
        }
        purl = PackageURL("deb", system, name, version, qualifiers)
        yield Component(name=name, version=version, purl=purl, bom_ref=str(purl))


def library(file: Path) -> Component:
    """Return a library that a wheel has brought along."""
    return Component(
        name=file.name, type=ComponentType.FILE, bom_ref=str(file), hashes=[sha256(file)]
    )


def triton(program: Path, version: str | None) -> Component:
    """Return Triton, whose program this is."""
    there = program.is_file()
    return Component(
        name="tritonserver",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="tritonserver",
        hashes=[sha256(program)] if there else [],
        evidence=found_at(program) if there else None,
    )


def models(repository: Path) -> Iterator[Component]:
    """Yield the models: whose weights they are, and the checksum of each file of a version."""
    manifest = load(MANIFEST)
    for folder in sorted(path for path in repository.iterdir() if path.is_dir()):
        model = manifest.get(folder.name)
        source = model.source(Place(folder).state(model).source) if model else None
        files = [path for path in sorted(folder.glob("[0-9]*/**/*")) if path.is_file()]
        references = []
        if isinstance(source, NpmSource):
            purl = PackageURL("npm", None, source.package, source.version)
            references = [
                ExternalReference(
                    type=ExternalReferenceType.SOURCE_DISTRIBUTION,
                    url=XsUri(str(purl)),
                    hashes=[HashType(alg=HashAlgorithm.SHA_256, content=source.sha256)],
                    comment="what the weights were converted from",
                )
            ]
        yield Component(
            name=folder.name,
            type=ComponentType.MACHINE_LEARNING_MODEL,
            bom_ref=f"model:{folder.name}",
            description=source.weights if source else "a model of the image's builder",
            licenses=[DisjunctiveLicense(id=source.licence)] if source else [],
            external_references=references,
            components=[
                Component(
                    name=str(path.relative_to(folder)),
                    type=ComponentType.FILE,
                    bom_ref=f"model:{path.relative_to(repository)}",
                    hashes=[sha256(path)],
                    evidence=found_at(path),
                )
                for path in files
            ],
        )


def found_at(path: Path) -> ComponentEvidence:
    return ComponentEvidence(occurrences=[Occurrence(location=str(path))])


def sha256(path: Path) -> HashType:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def about(bom: Bom, component: Component) -> Bom:
    """Make `component` what the list is of, and all that nothing else needs its parts."""
    bom.metadata.component = component
    needed = {part.ref for one in bom.dependencies for part in one.dependencies}
    apart = [Dependency(one.bom_ref) for one in bom.components if one.bom_ref not in needed]
    bom.dependencies.add(Dependency(component.bom_ref, apart))
    return bom


def text_of(bom: Bom) -> str:
    """Return the list as text, with a serial number made of what it says, and without a time."""
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.serial_number = uuid.UUID(int=0)
    text = written(bom)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, text)
    return written(bom)


def written(bom: Bom) -> str:
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return f"{outputter.output_as_string(indent=1)}\n"


def main(arguments: Iterable[str]) -> None:
    """Write a list."""
    match list(arguments):
        case ["image", file, python]:
            Path(file).write_text(text_of(image_parts(Path(python).absolute())), encoding="utf-8")
        case ["wheel", file]:
            name = "-".join(Path(file).name.split("-")[:2])
            made = Path(file).with_name(f"{name}.cdx.json")
            made.write_text(text_of(wheel_parts(Path(file))), encoding="utf-8")
            sys.stdout.write(f"{made}\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
