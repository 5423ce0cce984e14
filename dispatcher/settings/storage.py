"""The settings of S3, a part of the one table."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.settings import readers as read
from dispatcher.settings.readers import setting

S3_AT_A_TIME = 8  # objects that a worker reads


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Where objects are read and written."""

    # fmt: off
    s3_bucket: str | None = setting("S3_BUCKET_NAME", "", read.or_nothing(read.bucket),
        "bucket of the keys that requests name")
    s3_endpoint_url: str = setting("S3_ENDPOINT_URL", "", read.url,
        "S3 server, if not AWS_ENDPOINT_URL_S3 or AWS")
    s3_allowed_inputs: tuple[str, ...] = setting("S3_ALLOWED_INPUTS", "", read.s3_places,
        "places from which requests may read, if not S3_BUCKET_NAME")
    s3_allowed_outputs: tuple[str, ...] = setting("S3_ALLOWED_OUTPUTS", "", read.s3_places,
        "places into which requests may write, if not S3_RESULTS_PREFIX, else results/")
    s3_results_prefix: str = setting("S3_RESULTS_PREFIX", "", read.s3_prefix,
        "stores every answer to a request by key below this prefix of S3_BUCKET_NAME")
    # fmt: on

    @property
    def s3_is_used(self) -> bool:
        """Whether requests may name objects."""
        return bool(self.s3_bucket or self.s3_allowed_inputs)
