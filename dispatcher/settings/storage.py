"""The settings of S3, a part of the one table."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.settings import readers as read
from dispatcher.settings.readers import setting


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Where objects are read and written, and how much of them."""

    # fmt: off
    s3_bucket: str | None = setting("S3_BUCKET_NAME", "", read.or_nothing(read.bucket),
        "bucket of the keys that requests name")
    s3_endpoint_url: str = setting("S3_ENDPOINT_URL", "", read.url,
        "S3 server, if not AWS_ENDPOINT_URL_S3 or AWS")
    s3_region: str = setting("AWS_REGION", "", read.region,
        "region of the buckets, if not AWS_DEFAULT_REGION or boto3's")
    s3_timeout: float = setting("S3_TIMEOUT", "20", read.seconds(0.1, 3600),
        "how long reading or writing one object may take")
    s3_max_concurrency: int = setting("S3_MAX_CONCURRENCY", "8", read.whole(1, 256),
        "objects that are read at a time, per worker")
    s3_max_object_mb: int = setting("S3_MAX_OBJECT_MB", "25", read.whole(1, 2048),
        "largest object that is read, in MiB")
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

    @property
    def s3_max_object(self) -> int:
        """Bytes of the largest object that a request may have read."""
        return self.s3_max_object_mb * 2**20
