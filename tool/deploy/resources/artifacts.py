"""What an endpoint is made from: archives in S3, images in ECR."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import BotoCoreError, ClientError

from tool.deploy.resources.aws import OWNER, Refused, in_words, tag_map
from tool.deploy.resources.hosting import Model
from tool.deploy.resources.kind import Found, Kind, Resource
from tool.docker import docker
from tool.emulate.places import bucket_and_key
from tool.progress import Progress
from tool.trouble import Trouble

ABSENT = ("404", "NoSuchKey", "RepositoryNotFoundException", "ImageNotFoundException")


class Archive(Kind):
    """A `model.tar.gz` in S3; its name is its address."""

    def found(self, name: str) -> Found | None:
        bucket, key = bucket_and_key(name)
        try:
            self.aws.call("s3", "head_object", Bucket=bucket, Key=key)
            tags = self.aws.call("s3", "get_object_tagging", Bucket=bucket, Key=key)["TagSet"]
        except Refused as error:
            if error.code in ABSENT:
                return None
            raise
        return Found(tag_map(tags).get(OWNER, ""), {})

    def create(self, resource: Resource) -> None:
        bucket, key = bucket_and_key(resource.name)
        progress = Progress("uploading", Path(resource.source).stat().st_size)
        try:
            self.aws.client("s3").upload_file(
                str(resource.source),
                bucket,
                key,
                ExtraArgs={"Tagging": urlencode(self.tags)},
                Callback=progress.add,
            )
        except S3UploadFailedError as error:
            raise Trouble(
                f"the archive could not be uploaded: {error}; look at --bucket"
            ) from error
        except (BotoCoreError, ClientError) as error:
            raise in_words("upload_file", error) from error
        finally:
            progress.close()

    def delete(self, name: str) -> None:
        bucket, key = bucket_and_key(name)
        self.aws.call("s3", "delete_object", Bucket=bucket, Key=key)

    def owned(self) -> Iterator[str]:
        for place in sorted({*self.places, *self.of_models()}):
            bucket, prefix = bucket_and_key(place)
            folder = f"{prefix.rstrip('/')}/{self.endpoint}/".lstrip("/")
            try:
                keys = [
                    one["Key"]
                    for one in self.aws.every(
                        "s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=folder
                    )
                ]
            except Refused as error:
                if error.code == "NoSuchBucket":
                    continue
                raise
            for key in keys:
                name = f"s3://{bucket}/{key}"
                found = self.found(name)
                if found and found.owner == self.endpoint:
                    yield name

    def of_models(self) -> Iterator[str]:
        """Yield the places that models of this endpoint name."""
        models = Model(self.aws, self.endpoint, self.tags)
        for name in models.owned():
            found = models.found(name)
            container = found.properties.get("PrimaryContainer", {}) if found else {}
            place, mark, _ = container.get("ModelDataUrl", "").partition(f"/{self.endpoint}/")
            if mark:
                yield place


class Repository(Kind):
    """A repository in ECR of this endpoint's own; its name is the endpoint's."""

    def found(self, name: str) -> Found | None:
        try:
            (one,) = self.aws.call("ecr", "describe_repositories", repositoryNames=[name])[
                "repositories"
            ]
        except Refused as error:
            if error.code in ABSENT:
                return None
            raise
        arn = one["repositoryArn"]
        tags = self.aws.call("ecr", "list_tags_for_resource", resourceArn=arn)["tags"]
        return Found(tag_map(tags).get(OWNER, ""), one)

    def create(self, resource: Resource) -> None:
        self.aws.call("ecr", "create_repository", repositoryName=resource.name, tags=self.tag_list)

    def delete(self, name: str) -> None:
        self.aws.call("ecr", "delete_repository", repositoryName=name, force=True)

    def owned(self) -> Iterator[str]:
        name = self.endpoint.lower()
        found = self.found(name)
        if found and found.owner == self.endpoint:
            yield name


class Image(Kind):
    """A pushed image; its name is its address in ECR."""

    def found(self, name: str) -> Found | None:
        repository, tag = repository_and_tag(name)
        try:
            self.aws.call(
                "ecr",
                "describe_images",
                repositoryName=repository,
                imageIds=[{"imageTag": tag}],
            )
        except Refused as error:
            if error.code in ABSENT:
                return None
            raise
        return Found(self.endpoint, {})  # named by its own digest: it is the same whoever pushed it

    def create(self, resource: Resource) -> None:
        if "@" in str(resource.source):  # it is in another registry
            docker("pull", str(resource.source), quiet=False)
        answer = self.aws.call("ecr", "get_authorization_token")["authorizationData"][0]
        user, _, password = base64.b64decode(answer["authorizationToken"]).partition(b":")
        registry = resource.name.partition("/")[0]
        docker(
            *("login", "--username", user.decode(), "--password-stdin", registry),
            write=lambda out: out.write(password),
        )
        docker("tag", str(resource.source), resource.name)
        docker("push", resource.name, quiet=False)

    def delete(self, name: str) -> None:
        repository, tag = repository_and_tag(name)
        self.aws.call(
            "ecr", "batch_delete_image", repositoryName=repository, imageIds=[{"imageTag": tag}]
        )

    def owned(self) -> Iterator[str]:
        repositories = Repository(self.aws, self.endpoint, self.tags)
        for name in repositories.owned():
            repository = repositories.found(name)
            for one in self.aws.every("ecr", "list_images", "imageIds", repositoryName=name):
                if repository and "imageTag" in one:
                    yield f"{repository.properties['repositoryUri']}:{one['imageTag']}"


def repository_and_tag(address: str) -> tuple[str, str]:
    """Return the repository and the tag of `REGISTRY/REPOSITORY:TAG`."""
    repository, _, tag = address.partition("/")[2].rpartition(":")
    return repository, tag
