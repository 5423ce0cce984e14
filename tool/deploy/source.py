"""The image and the archive of an endpoint, as AWS will have them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tool.checks.check import check_all, folder_of, report
from tool.checks.findings import Findings
from tool.deploy.resources.aws import Aws, Refused
from tool.deploy.resources.kind import Resource
from tool.docker import docker
from tool.emulate.places import bucket_and_key
from tool.pack.archive import write_archive
from tool.pack.contents import contents_of
from tool.trouble import Trouble

ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
DIGEST = re.compile("(?<=@)sha256:[0-9a-f]{64}$")
DIGITS = 12
GZIP = b"\x1f\x8b"


def image_of(
    aws: Aws, endpoint: str, image: str, repository: str
) -> tuple[str, tuple[Resource, ...]]:
    """Return an image's address in ECR, and what has to be made for it.

    Args:
        aws: is asked whether it is there.
        endpoint: a repository of this name is made for a local image.
        image: an address in ECR, an image of another registry by its digest, or the name of an
            image on this machine.
        repository: an existing one for a local image; may be empty.

    Raises:
        Trouble: there is no such image, or the service would not take it.

    """
    if match := ECR.fullmatch(image):
        return pinned(aws, image, match), ()
    host, digest = image.partition("/")[0] if "/" in image else "", DIGEST.search(image)
    if not digest and ("." in host or ":" in host or host == "localhost"):
        raise Trouble(
            f"{image} is in another registry, and the service takes images from ECR; name it by "
            "its digest (IMAGE@sha256:…, as `docker pull` prints it), and it is copied there"
        )
    number = digest[0] if digest else docker("image", "inspect", "--format", "{{.Id}}", image)
    tag = number.strip().rpartition(":")[2][:DIGITS]
    name = repository or endpoint.lower()
    suffix = ".cn" if aws.region.startswith("cn-") else ""
    address = f"{aws.account}.dkr.ecr.{aws.region}.amazonaws.com{suffix}/{name}:{tag}"
    pushed = Resource("image", address, source=image)
    own = () if repository else (Resource("repository", name, {"RepositoryName": name}),)
    return address, (*own, pushed)


def pinned(aws: Aws, image: str, match: re.Match[str]) -> str:
    """Return an image in ECR by its digest: a tag may be moved, and an update has to see that.

    Raises:
        Trouble: it is not there.

    """
    if match["region"] != aws.region:
        raise Trouble(
            f"{image} is in {match['region']}, and the endpoint would be in {aws.region}; give "
            f"--region {match['region']}, or an image in {aws.region}"
        )
    which = (
        {"imageDigest": match["digest"]}
        if match["digest"]
        else {"imageTag": match["tag"] or "latest"}
    )
    try:
        (found,) = aws.call(
            "ecr",
            "describe_images",
            registryId=match["account"],
            repositoryName=match["repository"],
            imageIds=[which],
        )["imageDetails"]
    except Refused as error:
        raise Trouble(f"the image {image} is not found: {error}") from error
    return f"{image.partition('@')[0].removesuffix(':' + str(match['tag']))}@{found['imageDigest']}"


@contextmanager
def archive_of(path: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield a checked archive; a folder is packed first.

    Raises:
        Trouble: it holds what the service does not take, or what would not be served.

    """
    with TemporaryDirectory(prefix="dispatcher-deploy-") as folder:
        if path.is_dir():
            contents = contents_of(path)
            accept(Findings(path.resolve(), links_replaced=True), path, say)
            archive = Path(folder, "model.tar.gz")
            write_archive(contents, archive)
            yield archive
            return
        with folder_of(path) as findings:
            accept(findings, path, say)
        with path.open("rb") as file:
            if file.read(2) != GZIP:
                raise Trouble(f"{path} is not packed with gzip; use `dispatcher pack FOLDER`")
        yield path


def accept(findings: Findings, path: Path, say: Callable[[str], None]) -> None:
    """Raise Trouble where the check finds errors."""
    models = check_all(findings)
    for line in report(findings, models).splitlines():
        say(line)
    if findings.errors:
        raise Trouble(f"{path} has mistakes; correct them, and check by `dispatcher check {path}`")


def place_of(aws: Aws | None, bucket: str) -> str:
    """Return where archives go: the place that was named, or the bucket that SageMaker's SDK uses.

    Args:
        aws: None where AWS is not to be asked.
        bucket: `s3://BUCKET/PREFIX`, or empty.

    Raises:
        Trouble: it is no place in S3, or AWS is not to be asked for it.

    """
    if bucket:
        bucket_and_key(bucket)
        return bucket.rstrip("/")
    if aws is None:
        raise Trouble("say where the archive goes by --bucket s3://BUCKET/PREFIX")
    return f"s3://sagemaker-{aws.region}-{aws.account}"


def archive_in(place: str, endpoint: str, archive: Path) -> Resource:
    """Return the object in S3; its name has a digest of its content."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
    return Resource("archive", f"{place}/{endpoint}/{digest}/model.tar.gz", source=archive)
