"""Every setting, in one immutable table.

`./serve --help`, the documentation and its test read the table. A value comes from the environment
variable named beside it. A bad value stops the start with a message that names the variable, its
value and what was expected.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clients.model_files.model_folders import can_be_read
from dispatcher.settings import readers as read
from dispatcher.settings import remote_triton as remote
from dispatcher.settings.readers import ROW, SettingRow, setting
from dispatcher.settings.traces import standard

AUTO, RUN_PATH, WORKABLE, write_value = read.AUTO, read.RUN_PATH, read.WORKABLE, read.write_value

# Set for web workers where models get only a part of the shared memory that they want.
SCARCE = "SHARED_MEMORY_SCARCE"

PROJECT = Path(__file__).resolve().parents[2]

# Names in RUN_DIR, for the supervisor and the web workers.
SUPERVISOR = "supervisor.json"  # the status of the programs, which the supervisor publishes
READINESS = "readiness.json"  # that of the models, which a web worker publishes
INSTANCES = "instances"  # the folder that the instances of models share
ENGINES = "engines"  # in it: their engines
WANTED = "wanted"  # a file for each model that Triton is to load when it starts
FAILING = "failing"  # a file for each model that has just failed a request
JOBS = "jobs"  # the folder of asynchronous requests, where JOBS_DIR does not name one
KEY_LIMITS = "key-limits"  # files that count the requests of each API key
CAPTURED = "captured"  # captured requests that wait for S3
USED = "used"  # a file for each model, whose time is that of its last request
# A link to each folder of MODEL_REPOSITORY, or for one in S3 a folder of links to its models.
MODELS = "models"
# Links to the deleted folders of models. Names that begin like this one are on their way into the
# repository or out of it.
ASIDE = "aside"

S3_AT_A_TIME = 8  # objects that a worker reads

USUAL_PORTS = range(8000, 8010)
TRITON_PORTS = ("http", "grpc", "metrics")

MODEL_DIR = "/opt/ml/model"  # where the platform unpacks a model.tar.gz

# One time limit, `timeout`, is what the platform waits for a response. Each part inside gives up a
# little earlier than the one around it, so that the caller gets the most specific error.
CLIENT_SHARE = 0.90
PROXY_SHARE = 0.98
S3_SHARE = 1 / 3  # for one object, so that there is time for the model
LOAD_SHARE = 5 / 8  # of the time for a start, for one model at run time
STREAM_SHARE = 8  # of 60 s: a response stream of SageMaker may take 8 minutes

MOST_SERVERLESS_MB = 4  # of SageMaker Serverless

UNLOAD_S = 300.0  # the longest unload: the platform waits 360 s
ENDING_S = 60.0  # for runs that were given up, and for a model's processes to end
MARGIN_S = 10.0

MANAGING = 4  # management requests that run at a time, per worker


class SettingError(ValueError):
    """Environment variables have unusable values; the message has a line for each."""


def with_others(slots: int) -> int:
    """Return the number of all slots where one model may have `slots`."""
    return slots + math.ceil(slots / 2)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one container, read and checked."""

    # fmt: off
    port: int = setting("SAGEMAKER_BIND_TO_PORT", "8080", read.port, "port that NGINX listens on")
    safe_ports: range | None = setting("SAGEMAKER_SAFE_PORT_RANGE", "",
        read.or_nothing(read.port_range),
        "range for Triton's ports on loopback (HTTP, gRPC, metrics), if not 8000 to 8009")
    public_grpc_port: int | None = setting("TRITON_PUBLIC_GRPC_PORT", "",
        read.or_nothing(read.port),
        "opens Triton's gRPC port to all, without limits")
    triton_url: str | None = setting("TRITON_URL", "", read.or_nothing(remote.grpc_url),
        "gRPC address of a Triton elsewhere, in place of this container's")
    triton_http_url: str | None = setting("TRITON_HTTP_URL", "", read.or_nothing(remote.http_url),
        "its HTTP address, for the documents below /v2, otherwise 501")
    triton_ca_file: Path | None = setting("TRITON_CA_FILE", "", read.or_nothing(read.file),
        "certificates (PEM) of its authorities, if not the usual ones")
    triton_certificate_file: Path | None = setting("TRITON_CERTIFICATE_FILE", "",
        read.or_nothing(read.file), "certificate and key (PEM) that are shown to it")
    triton_metadata: str = setting("TRITON_METADATA", "", remote.metadata,
        "sent to it with every call, such as `authorization: Bearer …`", secret=True)
    probe_interval: float = setting("PROBE_INTERVAL", "8", read.seconds(0.1, 3600),
        "how often each required model is probed with its example")
    model_dir: Path = setting("MODEL_DIR", MODEL_DIR, read.place,
        "folder with your own models, where the platform unpacks them")
    model_dir_use: str = setting("MODEL_DIR_USE", "beside",
        read.one_of("beside", "instead", "ignore"),
        "whether they are served beside MODEL_REPOSITORY's, and win; instead; or not")
    multi_model: bool = setting("SAGEMAKER_MULTI_MODEL", "false", read.truth,
        "start with no model: the platform loads them by POST /models")
    model_url_roots: tuple[Path, ...] = setting("MODEL_URL_ROOTS", "", read.folders,
        "the only folders from which POST /models may load")
    default_model: str = setting("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "", read.name,
        "model for requests that name none")
    default_accept: str = setting("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "", read.media_type,
        "type of answers for callers that accept any, such as text/csv, where there is one")
    clients_path: tuple[Path, ...] = setting("CLIENTS_PATH", "", read.folders,
        "folders with your own client classes")
    triton_options: str = setting("TRITON_OPTIONS", "", read.words,
        "options of tritonserver, --name=value each")
    run_dir: Path | None = setting("RUN_DIR", "", read.or_nothing(read.read_run_dir),
        "folder for sockets and temporary files, if not a new one")
    workers: int = setting("MODEL_SERVER_WORKERS", AUTO, read.workers,
        "web workers; auto: one for every four CPUs, at most four; with a GPU five for eight")
    threads: int = setting("MODEL_SERVER_THREADS", "16", read.read_integer(1, 256),
        "requests of one model at a time, per worker; half as many more for others")
    queue: int = setting("MODEL_SERVER_QUEUE", "64", read.read_integer(0, 10_000),
        "requests that may wait, per worker, before 429")
    timeout: float = setting("MODEL_SERVER_TIMEOUT", "60", read.seconds(2, 3600),
        "how long the platform waits for a response; eight times as long for lines")
    max_body_mb: int = setting("MODEL_SERVER_MAX_BODY_MB", "25", read.read_integer(1, 2048),
        "largest request body, object in S3, and picture by URL, in MiB")
    batch_payload_mb: int | None = setting("SAGEMAKER_MAX_PAYLOAD_IN_MB", "",
        read.or_nothing(read.read_integer(1, 2048)),
        "the same for a batch transform job, where it is larger")
    serverless: bool = setting("SERVERLESS", "false", read.truth,
        "for SageMaker Serverless: bodies of at most 4 MB, no /dev/shm")
    max_megapixels: int = setting("MODEL_SERVER_MAX_MEGAPIXELS", "50", read.read_integer(1, 1000),
        "largest picture, in millions of pixels, before it is decoded")
    start_timeout: float = setting("SERVE_START_TIMEOUT", "480", read.seconds(1, 3600),
        "how long Triton, gunicorn and NGINX may take to start; a model later five eighths of it")
    stop_timeout: float = setting("SERVE_STOP_TIMEOUT", "27", read.seconds(1, 3600),
        "time from SIGTERM to SIGKILL")
    model_precision: str = setting("MODEL_PRECISION", "exact", read.one_of("exact", "auto"),
        "on a CPU: single precision, or bf16 where the results agree")
    engine_cache: Path = setting("ENGINE_CACHE", str(Path(sys.prefix) / "engines"), read.path,
        "folder that stores which engine runs a model best")
    restarts: int = setting("SERVE_RESTARTS", "10", read.read_integer(0, 1_000_000),
        "restarts of a program within ten minutes before the container ends")
    log_level: str = setting("MODEL_SERVER_LOG_LEVEL", "info",
        read.one_of("debug", "info", "warning", "error"),
        "lowest level that is logged")
    api_keys_file: Path | None = setting("API_KEYS_FILE", "", read.or_nothing(read.path),
        "file with the accepted API keys, read again when it changes")
    tls_certificate: Path | None = setting("TLS_CERTIFICATE", "", read.or_nothing(read.path),
        "certificate and chain (PEM) for TLS, read again when it changes")
    tls_key: Path | None = setting("TLS_KEY", "", read.or_nothing(read.path),
        "its key (PEM), if not in the same file")
    tls_client_ca: Path | None = setting("TLS_CLIENT_CA", "", read.or_nothing(read.path),
        "authorities (PEM) of the certificates that callers must show (mTLS)")
    management_routes: bool = setting("MANAGEMENT_ROUTES", "true", read.truth,
        "whether HTTP may load, unload and reload models; otherwise 403")
    page: str = setting("PAGE", AUTO, read.one_of(AUTO, "on", "off"),
        "whether / is a page and /docs Swagger UI; auto: where no key is needed")
    cors_origins: tuple[str, ...] = setting("CORS_ORIGINS", "", read.origins,
        "sites whose pages may read answers in a browser")
    access_log: str = setting("MODEL_SERVER_ACCESS_LOG", "json",
        read.one_of("json", "errors", "off"),
        "log a line for every request, for failures, or for none")
    log_format: str = setting("LOG_FORMAT", "text", read.one_of("text", "json"),
        "form of all other log lines")
    repositories: tuple[Path | str, ...] = setting("MODEL_REPOSITORY",
        str(PROJECT / "model_repository"), read.repositories,
        "Triton's model repositories; the first wins for equal names")
    required_models: tuple[str, ...] = setting("REQUIRED_MODELS", "", read.names,
        "models or classes without which /ping is 503, if not every model")
    load_on_demand: bool = setting("LOAD_ON_DEMAND", "false", read.truth,
        "load each model at its first request, but for REQUIRED_MODELS, which stay")
    model_memory_mb: int | None = setting("MODEL_MEMORY_MB", "",
        read.or_nothing(read.read_integer(1, 2**30)),
        "MiB for models on demand; the least recently used are unloaded")
    model_idle: float | None = setting("MODEL_IDLE_TIMEOUT", "",
        read.or_nothing(read.seconds(1, 31_536_000)),
        "seconds without a request after which LOAD_ON_DEMAND unloads")
    model_cache: Path = setting("MODEL_CACHE", str(Path(sys.prefix) / "models"), read.path,
        "folder for copies of models in S3, for this container alone")
    model_cache_mb: int = setting("MODEL_CACHE_MB", "20480", read.read_integer(1, 2**30),
        "its size, in MiB")
    s3_bucket: str | None = setting("S3_BUCKET_NAME", "", read.or_nothing(read.bucket),
        "bucket of the keys that requests name")
    s3_allowed_inputs: tuple[str, ...] = setting("S3_ALLOWED_INPUTS", "", read.s3_places,
        "places from which requests may read, if not S3_BUCKET_NAME")
    s3_allowed_outputs: tuple[str, ...] = setting("S3_ALLOWED_OUTPUTS", "", read.s3_places,
        "places into which requests may write, if not S3_RESULTS_PREFIX, else results/")
    s3_results_prefix: str = setting("S3_RESULTS_PREFIX", "", read.s3_prefix,
        "stores every answer to a request by key below this prefix of S3_BUCKET_NAME")
    image_url_hosts: tuple[str, ...] = setting("IMAGE_URL_HOSTS", "", read.hosts,
        "hosts on the internet from which pictures are fetched by `img_url`, over https alone")
    jobs_queue: int = setting("JOBS_QUEUE", "1000", read.read_integer(0, 100_000),
        "asynchronous requests that may wait or run before 429; 0: none are asynchronous")
    jobs_dir: Path | None = setting("JOBS_DIR", "", read.or_nothing(read.path),
        "folder for them and their results, which then survive a restart")
    jobs_disk_mb: int = setting("JOBS_DISK_MB", "1024", read.read_integer(1, 2**20),
        "MiB for their bodies and results, before 429")
    jobs_keep: float = setting("JOBS_KEEP", "3600", read.seconds(1, 31_536_000),
        "seconds for which one that has ended is kept")
    capture_to: Path | str = setting("CAPTURE_TO", "", read.capture_place,
        "where samples of requests and their answers are written, if at all")
    capture_share: Mapping[str, float] = setting("CAPTURE_SHARE", "1", read.shares,
        "the share of requests that are sampled, by model")
    capture_per_minute: int = setting("CAPTURE_PER_MINUTE", "600",
        read.read_integer(1, 1_000_000), "how many of them at most, over all models")
    capture_payloads: bool = setting("CAPTURE_PAYLOADS", "false", read.truth,
        "whether what callers sent is written too, which `dispatcher replay` needs")
    capture_hide: Mapping[str, str] = setting("CAPTURE_HIDE", "", read.hidden_fields,
        "fields that are left out of what is written, or hashed")
    capture_keep_days: int = setting("CAPTURE_KEEP_DAYS", "7", read.read_integer(1, 3650),
        "days for which they are kept in a folder; in S3 the bucket's rules decide")
    # fmt: on

    @property
    def model_repository(self) -> Path:
        """The folder that Triton reads, for the programs that `serve` starts."""
        return self.folders[0]

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of MODEL_REPOSITORY that are on disk."""
        return tuple(one for one in self.repositories if isinstance(one, Path))

    @property
    def traces_url(self) -> str:
        """Where traces are sent; empty where there are none."""
        if standard("OTEL_SDK_DISABLED").lower() == "true":
            return ""
        base = standard("OTEL_EXPORTER_OTLP_ENDPOINT").rstrip("/")
        return standard("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base}/v1/traces")

    @property
    def triton_ports(self) -> dict[str, int]:
        """Triton's ports on loopback by their use: the first of the range that are free here."""
        taken = (self.port, self.public_grpc_port)
        free = (number for number in self.safe_ports or USUAL_PORTS if number not in taken)
        return dict(zip(TRITON_PORTS, free, strict=False))

    @property
    def mounted(self) -> Path | None:
        """MODEL_DIR, where it is used."""
        return None if self.model_dir_use == "ignore" else self.model_dir

    @property
    def missing(self) -> str:
        """What is wrong with MODEL_DIR where it was set and does not exist; else empty."""
        if self.mounted in {None, Path(MODEL_DIR)} or self.model_dir.is_dir():
            return ""
        return f"MODEL_DIR is {self.model_dir}: there is no such folder, so nothing of it is served"

    @property
    def client_folders(self) -> tuple[Path, ...]:
        """The folders with client classes of the user."""
        beside = () if self.mounted is None else (self.mounted / "code" / "clients",)
        return (*self.clients_path, *(folder for folder in beside if can_be_read(folder)))

    @property
    def max_body(self) -> int:
        most = MOST_SERVERLESS_MB if self.serverless else sys.maxsize
        return min(most, max(self.max_body_mb, self.batch_payload_mb or 0)) * 2**20

    @property
    def objects_are_read(self) -> bool:
        """Whether requests may name objects, in S3 or by a URL, which are read for them."""
        return bool(self.s3_bucket or self.s3_allowed_inputs or self.image_url_hosts)

    @property
    def shows_page(self) -> bool:
        return self.page == "on" or (self.page == AUTO and self.api_keys_file is None)

    @property
    def max_payload_mb(self) -> int:
        """The largest payload of a batch transform job, in MB."""
        most = MOST_SERVERLESS_MB if self.serverless else sys.maxsize
        return min(most, self.batch_payload_mb or self.max_body_mb)

    @property
    def stream_timeout(self) -> float:
        """Seconds that the platform waits for the end of a response in lines."""
        return self.timeout * STREAM_SHARE

    @property
    def client_timeout(self) -> float:
        """Seconds that a request may take in a web worker."""
        return self.timeout * CLIENT_SHARE

    @property
    def jobs_per_model(self) -> int:
        """How many requests with several calls may run at a time, per worker and model."""
        return math.ceil(self.threads / 2)

    @property
    def web_threads(self) -> int:
        """How many threads of one worker may be busy with models, or wait for them."""
        slots = (self.threads, self.jobs_per_model, MANAGING)
        waiting = self.queue + (self.queue + S3_AT_A_TIME) * self.objects_are_read
        return sum(map(with_others, slots)) + waiting

    @property
    def proxy_timeout(self) -> float:
        """Seconds that NGINX waits for gunicorn."""
        return self.timeout * PROXY_SHARE

    @property
    def load_timeout(self) -> float:
        """Seconds that a model may take to load at run time."""
        return self.start_timeout * LOAD_SHARE

    @property
    def unload_timeout(self) -> float:
        """Seconds that an unload may take.

        It waits for the model's last request. A model that never answers its last request is never
        unloaded.
        """
        return min(UNLOAD_S, self.client_timeout + ENDING_S)

    @property
    def managing_wait(self) -> float:
        """Seconds that a management request waits for its slot: until another one ends."""
        return self.unload_timeout + MARGIN_S

    @property
    def managing_timeout(self) -> float:
        """Seconds that NGINX waits for a management request.

        It may wait for its slot, load a model, test its client and unload the model again.
        """
        return self.managing_wait + self.load_timeout + self.proxy_timeout + self.unload_timeout

    def environment(self) -> dict[str, str]:
        """Return the environment variables that `read_settings` reads equally."""
        return {
            f.metadata[ROW].variable: write_value(getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) is not None
        }


def rows() -> list[SettingRow]:
    return [f.metadata[ROW] for f in fields(Settings)]


GONE = (
    *("CANARY_INTERVAL", "CANARY_TIMEOUT", "CLIENTS_WATCH", "GPU_CONFIGS", "JOBS_AT_A_TIME"),
    *("MODEL_KEEP", "MODEL_LOAD_TIMEOUT", "MODEL_SERVER_MAX_BATCH", "MODEL_SERVER_STREAM_TIMEOUT"),
    *("OTEL_EXPORTER_OTLP_PROTOCOL", "PINNED_MODELS", "S3_ENDPOINT_URL", "S3_MAX_CONCURRENCY"),
    *("S3_MAX_OBJECT_MB", "S3_TIMEOUT"),
    *("SERVE_RESTART_WINDOW", "SHARED_MEMORY_MB", "TENSORRT_ENGINES", "TENSORS_SHARED_MEMORY_MB"),
    *("TRITON_BACKEND_CONFIG", "TRITON_CACHE_MB", "TRITON_GRPC_PORT", "TRITON_HOME"),
    *("TRITON_HTTP_PORT", "TRITON_LOG_VERBOSE", "TRITON_METRICS_PORT", "TRITON_PUBLIC_HTTP_PORT"),
    *("TRITON_PUBLIC_METRICS_PORT", "TRITON_RATE_LIMIT", "TRITON_RATE_LIMIT_RESOURCES"),
    "WARM_MODELS",
)
"""Settings of earlier versions."""


def find_gone(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each setting that had an effect in an earlier version."""
    instead = "CHANGELOG.md, Removed, says what is in its place"
    return [f"{one} has no effect any more: {instead}" for one in GONE if one in environment]


def read_settings(environment: Mapping[str, str]) -> Settings:
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for f in fields(Settings):
        row: SettingRow = f.metadata[ROW]
        text = environment.get(row.variable, row.default).strip()
        try:
            values[f.name] = row.read(text)
        except (ValueError, OSError):  # the second for a folder without permission
            shown = "a text that is not shown" if row.secret else repr(text)
            why = "" if row.secret else read.unreadable(text)
            wrong.append(f"{row.variable} is {shown}; expected: {row.expected}{why}")
    if wrong:
        raise SettingError("\n".join(wrong))
    settings = Settings(**values)
    check_together(settings)
    return settings


def check_together(settings: Settings) -> None:
    """Refuse settings that contradict each other."""
    if settings.multi_model and not settings.management_routes:
        raise SettingError(
            "MANAGEMENT_ROUTES is 'false' and SAGEMAKER_MULTI_MODEL is 'true'; expected: not both, "
            "for the platform loads its models over those routes"
        )
    for variable, value in (
        ("MODEL_MEMORY_MB", settings.model_memory_mb),
        ("MODEL_IDLE_TIMEOUT", settings.model_idle),
    ):
        if value is not None and not settings.load_on_demand:
            raise SettingError(
                f"{variable} is '{value:g}' and LOAD_ON_DEMAND is 'false'; expected: "
                "LOAD_ON_DEMAND=true, without which an unloaded model would stay so"
            )
    if (settings.tls_key or settings.tls_client_ca) and not settings.tls_certificate:
        raise SettingError("TLS_KEY or TLS_CLIENT_CA is set; expected: TLS_CERTIFICATE too")
    if settings.s3_results_prefix and not settings.s3_bucket:
        raise SettingError("S3_RESULTS_PREFIX is set, and S3_BUCKET_NAME is not; expected: both")
    if misplaced := remote.find_misplaced(settings):
        raise SettingError("\n".join(misplaced))
    if settings.port == settings.public_grpc_port:
        raise SettingError(
            f"TRITON_PUBLIC_GRPC_PORT is {settings.port}, which is also SAGEMAKER_BIND_TO_PORT; "
            "expected: different ports"
        )
    if not settings.triton_url and len(settings.triton_ports) < len(TRITON_PORTS):
        raise SettingError(
            f"SAGEMAKER_SAFE_PORT_RANGE is {write_value(settings.safe_ports)!r}; expected: at "
            "least 3 ports besides SAGEMAKER_BIND_TO_PORT and TRITON_PUBLIC_GRPC_PORT"
        )
