"""Every setting, in one immutable table: `./serve --help`, the documentation and its test read it.

A value comes from the environment variable named beside it. A bad value stops the start with a
message that names the variable, what it holds and what was expected.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from clients.parameters import NUMBER, WHOLE
from clients.repository.model_folders import can_be_read

PROJECT = Path(__file__).resolve().parent.parent

AUTO = "auto"

# In RUN_DIR, for both sides: the status of the programs, which the supervisor publishes, and that
# of the models, which a web worker publishes; the folder that the instances of models share, with
# their engines in a folder there; a file for each model that is to be loaded when Triton starts,
# and one for each that has just failed a request; links to the folders of models that were deleted
# (what begins like this one is on its way into the repository or out of it), and a link to
# MODEL_REPOSITORY as it was set.
SUPERVISOR = "supervisor.json"
READINESS = "readiness.json"
INSTANCES = "instances"
ENGINES = "engines"
WANTED = "wanted"
FAILING = "failing"
ASIDE = "aside"
MODELS = "models"

# A variable of the web workers: models have no more than parts of what shared memory there is.
SCARCE = "SHARED_MEMORY_SCARCE"

MODEL_DIR = "/opt/ml/model"  # where the platform unpacks a model.tar.gz

PORT = "TCP port, 1 to 65535"


class SettingError(ValueError):
    """One or more environment variables hold a value that cannot be used; one line for each."""


@dataclass(frozen=True)
class Row:
    """What a reader wants to know of one setting."""

    attribute: str
    variable: str
    default: str
    expected: str
    meaning: str


def setting(variable: str, default: str, read: Callable[[str], Any], meaning: str) -> Any:
    """Declare a field of `Settings`; `read` turns the variable's text into the field's value."""
    return field(
        metadata={"variable": variable, "default": default, "read": read, "meaning": meaning}
    )


def expects(expected: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Say beside a reader what it accepts: the text stands in errors and in the documentation."""

    def mark(read: Callable[[str], Any]) -> Callable[[str], Any]:
        read.expected = expected  # type: ignore[attr-defined]
        return read

    return mark


@expects(PORT)
def read_port(text: str) -> int:
    """Read a TCP port."""
    return within(1, 65535)(text)


@expects("LOW-HIGH, two TCP ports, or nothing")
def read_port_range(text: str) -> range | None:
    """Read `LOW-HIGH`, both ends belonging to it; nothing is `None`."""
    if not text:
        return None
    low, dash, high = map(str.strip, text.partition("-"))
    ports = range(read_port(low), read_port(high) + 1)
    if not dash or not ports:
        raise ValueError(text)
    return ports


def whole(low: int, high: int) -> Callable[[str], int]:
    """Read a whole number from `low` to `high`."""
    return expects(f"whole number, {low} to {high}")(within(low, high))


def whole_or_nothing(low: int, high: int) -> Callable[[str], int | None]:
    """Read a whole number from `low` to `high`; nothing is `None`."""

    @expects(f"whole number, {low} to {high}, or nothing")
    def read(text: str) -> int | None:
        return within(low, high)(text) if text else None

    return read


def within(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not WHOLE.fullmatch(text) or not low <= (number := int(text)) <= high:
            raise ValueError(text)
        return number

    return read


@expects(f"whole number, 1 to 64, or {AUTO}")
def read_workers(text: str) -> int:
    """Read how many web workers there are; `serve` knows the CPUs, and passes a number on."""
    return 1 if text == AUTO else within(1, 64)(text)


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Read a time in seconds from `low` to `high`."""

    @expects(f"seconds, {low:g} to {high:g}")
    def read(text: str) -> float:
        if not NUMBER.fullmatch(text) or not low <= (number := float(text)) <= high:
            raise ValueError(text)
        return number

    return read


def seconds_or_nothing(low: float, high: float) -> Callable[[str], float | None]:
    """Read a time in seconds from `low` to `high`; nothing is `None`."""

    @expects(f"seconds, {low:g} to {high:g}, or nothing")
    def read(text: str) -> float | None:
        return seconds(low, high)(text) if text else None

    return read


@expects("path of a folder that can be read")
def read_folder(text: str) -> Path:
    """Read the path of a folder that exists."""
    path = Path(text).absolute()
    if not text or not can_be_read(path):
        raise ValueError(text)
    return path


@expects("path")
def read_path(text: str) -> Path:
    """Read a path that need not exist."""
    if not text:
        raise ValueError(text)
    return Path(text).absolute()


@expects("path, of a folder that can be read if of anything")
def read_place(text: str) -> Path:
    """Read the path of a folder that need not exist."""
    path: Path = read_path(text)
    if path.exists() and not can_be_read(path):
        raise ValueError(text)
    return path


# NGINX's configuration and Triton's shell command hold the path of the folder in which the
# container works, and in it lies "gunicorn.sock", whose path may have 107 characters. The folder is
# RUN_DIR for the web workers, and "dispatch-run" in it for `serve`.
WORKABLE = re.compile(r"[A-Za-z0-9._/+-]{1,93}")
RUN_PATH = "path of at most 80 letters, digits and ._/+- from the root on"


@expects(f"{RUN_PATH}, or nothing")
def read_run_dir(text: str) -> Path | None:
    """Read where the container may keep its own files."""
    if not text:
        return None
    path = Path(text).absolute()
    if not WORKABLE.fullmatch(str(path)) or (path.exists() and not path.is_dir()):
        raise ValueError(text)
    return path


@expects("paths of folders that can be read, separated by colons, or nothing")
def read_folders(text: str) -> tuple[Path, ...]:
    """Read several folders, as `PATH` spells them."""
    return tuple(read_folder(part) for part in text.split(":") if part)


@expects("names, separated by commas, or nothing")
def read_names(text: str) -> tuple[str, ...]:
    """Read several names."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if re.search(r"[\s;:]", "".join(names)):  # separated otherwise
        raise ValueError(text)
    return names


def one_of(*words: str) -> Callable[[str], str]:
    """Read one of some words."""

    @expects(f"one of {', '.join(words)}")
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return read


@expects("true or false")
def read_truth(text: str) -> bool:
    """Read true or false, and nothing that is neither."""
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


# One time limit, `timeout`, is what the platform waits for an answer. Each part inside it gives up
# a little earlier than the one around it, so that the caller gets the most specific error.
CLIENT_SHARE = 0.90
PROXY_SHARE = 0.98

UNLOAD_S = 300.0  # at most, for a model to be unloaded: the platform waits 360 s
ENDING_S = 60.0  # for runs that nobody waits for any more, and for a model's processes to end
MARGIN_S = 10.0


MANAGING = 4  # requests to load, unload, list or reload models that run at a time, per worker


def with_others(turns: int) -> int:
    """Return how many turns there are where one model may have so many."""
    return turns + math.ceil(turns / 2)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one container, read and checked."""

    port: int = setting("SAGEMAKER_BIND_TO_PORT", "8080", read_port, "port that NGINX listens on")
    safe_ports: range | None = setting(
        "SAGEMAKER_SAFE_PORT_RANGE",
        "",
        read_port_range,
        "where set, Triton's three ports are the first of this range unless they are set too",
    )
    triton_http_port: int = setting(
        "TRITON_HTTP_PORT", "8000", read_port, "Triton's HTTP, on loopback"
    )
    triton_grpc_port: int = setting(
        "TRITON_GRPC_PORT", "8001", read_port, "Triton's gRPC, on loopback"
    )
    triton_metrics_port: int = setting(
        "TRITON_METRICS_PORT", "8002", read_port, "Triton's metrics, on loopback"
    )
    model_repository: Path = setting(
        "MODEL_REPOSITORY",
        str(PROJECT / "model_repository"),
        read_folder,
        "folder with one folder per model, as Triton wants it",
    )
    canary_interval: float = setting(
        "CANARY_INTERVAL",
        "8",
        seconds(0.1, 3600),
        "how often each required model is asked its example, so that /ping can tell the truth",
    )
    canary_timeout: float = setting(
        "CANARY_TIMEOUT",
        "8",
        seconds(0.1, 3600),
        "how long it may take to answer that before /ping is 503, unless it answers others",
    )
    model_dir: Path = setting(
        "MODEL_DIR",
        MODEL_DIR,
        read_place,
        "folder with models of your own, where the platform unpacks them; it need not exist",
    )
    model_dir_use: str = setting(
        "MODEL_DIR_USE",
        "beside",
        one_of("beside", "instead", "ignore"),
        "whether the models in MODEL_DIR are served beside those of MODEL_REPOSITORY, instead of "
        "them, or not at all; of two with one name that in MODEL_DIR counts",
    )
    multi_model: bool = setting(
        "SAGEMAKER_MULTI_MODEL",
        "false",
        read_truth,
        "start with no model loaded and none required: the platform loads them by POST /models",
    )
    model_url_roots: tuple[Path, ...] = setting(
        "MODEL_URL_ROOTS",
        "",
        read_folders,
        "folders below which a model must lie that POST /models loads; nothing means anywhere",
    )
    default_model: str = setting(
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        "",
        expects("name of a model, or nothing")(lambda text: text),
        "the model that is asked when a request names none",
    )
    required_models: tuple[str, ...] = setting(
        "REQUIRED_MODELS",
        "",
        read_names,
        "models, or classes by their modelname, without which /ping is 503; "
        "nothing means every model in the repository",
    )
    clients_path: tuple[Path, ...] = setting(
        "CLIENTS_PATH", "", read_folders, "folders with client classes of your own"
    )
    clients_watch: float | None = setting(
        "CLIENTS_WATCH",
        "",
        seconds_or_nothing(0.5, 3600),
        "how often clients that are new or have changed are looked for and taken up; "
        "nothing means on POST /reload alone",
    )
    triton_home: Path = setting(
        "TRITON_HOME",
        "/opt/tritonserver",
        read_path,
        "where NVIDIA's image keeps Triton; looked at before PATH and the embedded one",
    )
    tensorrt_engines: Path | None = setting(
        "TENSORRT_ENGINES",
        "",
        expects("path, or nothing")(lambda text: read_path(text) if text else None),
        "folder for TensorRT engines, built at the start where none fits this GPU; "
        "nothing means that the models run as they are",
    )
    run_dir: Path | None = setting(
        "RUN_DIR",
        "",
        read_run_dir,
        "folder for sockets and temporary files, in the folder dispatch-run there, which is "
        "emptied at the start; nothing means a new one, removed at the end",
    )
    shared_memory_mb: int | None = setting(
        "SHARED_MEMORY_MB",
        "",
        whole_or_nothing(16, 2**20),
        "how much of /dev/shm the models of the embedded Triton may use, in MiB; "
        "nothing means what is free at the start",
    )
    tensors_shared_memory_mb: int | None = setting(
        "TENSORS_SHARED_MEMORY_MB",
        "",
        whole_or_nothing(0, 2**20),
        "how much of /dev/shm the web workers may use to hand large tensors to Triton, in MiB; 0 "
        "sends all by gRPC; nothing means an eighth of it, or of the container's memory where that "
        "is less, at most 512, and none where that is less than 1 GiB",
    )
    workers: int = setting(
        "MODEL_SERVER_WORKERS",
        AUTO,
        read_workers,
        "gunicorn's processes; 'auto' is one for every four CPUs that the container may use, at "
        "least one and at most four",
    )
    threads: int = setting(
        "MODEL_SERVER_THREADS",
        "16",
        whole(1, 256),
        "requests of one model that are answered at a time, per worker; half as many again are "
        "kept for other models",
    )
    queue: int = setting(
        "MODEL_SERVER_QUEUE",
        "64",
        whole(0, 10_000),
        "requests that may wait for their turn, per worker; more are answered 429",
    )
    timeout: float = setting(
        "MODEL_SERVER_TIMEOUT",
        "60",
        seconds(2, 3600),
        "what the platform waits for an answer; "
        "model calls and NGINX give up a little earlier, in this order",
    )
    stream_timeout: float = setting(
        "MODEL_SERVER_STREAM_TIMEOUT",
        "480",
        seconds(2, 86_400),
        "what the platform waits for the end of an answer that comes in lines; "
        "each line has the time of MODEL_SERVER_TIMEOUT",
    )
    max_body_mb: int = setting(
        "MODEL_SERVER_MAX_BODY_MB", "25", whole(1, 2048), "largest request body, in MiB"
    )
    batch_payload_mb: int | None = setting(
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        "",
        whole_or_nothing(1, 2048),
        "largest payload of a batch transform job, in MB; a larger one than "
        "MODEL_SERVER_MAX_BODY_MB raises that too",
    )
    max_megapixels: int = setting(
        "MODEL_SERVER_MAX_MEGAPIXELS",
        "50",
        whole(1, 1000),
        "largest picture, in millions of pixels, judged by its header before it is decoded",
    )
    max_batch: int = setting(
        "MODEL_SERVER_MAX_BATCH", "1000", whole(1, 100_000), "most payloads in one request"
    )
    load_timeout: float = setting(
        "MODEL_LOAD_TIMEOUT",
        "300",
        seconds(1, 3600),
        "how long a model may take to load at run time",
    )
    start_timeout: float = setting(
        "SERVE_START_TIMEOUT",
        "480",
        seconds(1, 3600),
        "how long Triton, gunicorn and NGINX may take to answer after the start",
    )
    stop_timeout: float = setting(
        "SERVE_STOP_TIMEOUT",
        "27",
        seconds(1, 3600),
        "from SIGTERM to SIGKILL for what is still running",
    )
    model_precision: str = setting(
        "MODEL_PRECISION",
        "exact",
        one_of("exact", "auto"),
        "precision of models on a CPU: exact answers as ONNX Runtime does in single precision; "
        "auto computes in bf16 where the processor has it and a model's answers pass a trial",
    )
    engine_cache: Path = setting(
        "ENGINE_CACHE",
        str(Path(sys.prefix) / "engines"),
        read_path,
        "folder in which is kept which engine runs a model best on this machine",
    )
    restarts: int = setting(
        "SERVE_RESTARTS",
        "10",
        whole(0, 1_000_000),
        "how often Triton, gunicorn and NGINX each may be restarted within "
        "SERVE_RESTART_WINDOW; the next failure ends the container",
    )
    restart_window: float = setting(
        "SERVE_RESTART_WINDOW",
        "600",
        seconds(1, 86_400),
        "seconds after which a restart no longer counts",
    )
    log_level: str = setting(
        "MODEL_SERVER_LOG_LEVEL",
        "info",
        one_of("debug", "info", "warning", "error"),
        "least severe message that is logged",
    )
    api_keys_file: Path | None = setting(
        "API_KEYS_FILE",
        "",
        expects("path, or nothing")(lambda text: read_path(text) if text else None),
        "file with the API keys that may enter, read anew when it changes; "
        "nothing means that everybody may",
    )
    management_routes: bool = setting(
        "MANAGEMENT_ROUTES",
        "true",
        read_truth,
        "whether models can be loaded, unloaded and reloaded over HTTP; false answers 403",
    )
    access_log: str = setting(
        "MODEL_SERVER_ACCESS_LOG",
        "json",
        one_of("json", "errors", "off"),
        "a line of the log for every request, for those that were not answered 2xx, or for none",
    )
    log_format: str = setting(
        "LOG_FORMAT",
        "text",
        one_of("text", "json"),
        "lines of the log that are no requests: as the programs write them, each after its "
        "program's name, or JSON objects as well",
    )

    @property
    def mounted(self) -> Path | None:
        """The folder with models of one's own, where it is used."""
        return None if self.model_dir_use == "ignore" else self.model_dir

    @property
    def missing(self) -> str:
        """What to say of a folder that somebody named, and that is not there; else nothing."""
        if self.mounted in {None, Path(MODEL_DIR)} or self.model_dir.is_dir():
            return ""
        return f"MODEL_DIR is {self.model_dir}: there is no such folder, so nothing of it is served"

    @property
    def client_folders(self) -> tuple[Path, ...]:
        """The folders with client classes of one's own."""
        beside = () if self.mounted is None else (self.mounted / "code" / "clients",)
        return (*self.clients_path, *(folder for folder in beside if can_be_read(folder)))

    @property
    def max_body(self) -> int:
        """Bytes of the largest body, for NGINX, Flask and the message alike."""
        return max(self.max_body_mb, self.batch_payload_mb or 0) * 2**20

    @property
    def max_payload_mb(self) -> int:
        """What a batch transform job is told."""
        return self.batch_payload_mb or self.max_body_mb

    @property
    def client_timeout(self) -> float:
        """Seconds that one request may take inside a web worker."""
        return self.timeout * CLIENT_SHARE

    @property
    def jobs_per_model(self) -> int:
        """Requests with several calls that may run at a time in one worker, of one model."""
        return math.ceil(self.threads / 2)

    @property
    def web_threads(self) -> int:
        """Threads of one worker that may be busy with models: with calls, with jobs, waiting."""
        turns = (self.threads, self.jobs_per_model, MANAGING)
        return sum(map(with_others, turns)) + self.queue

    @property
    def proxy_timeout(self) -> float:
        """Seconds that NGINX waits for gunicorn."""
        return self.timeout * PROXY_SHARE

    @property
    def unload_timeout(self) -> float:
        """Seconds that a model may take to be unloaded: what its last request has, and some more.

        One that owes an answer, and never gives it, is never unloaded.
        """
        return min(UNLOAD_S, self.client_timeout + ENDING_S)

    @property
    def managing_wait(self) -> float:
        """Seconds that one waits for a turn to load, unload or list models: until one ended."""
        return self.unload_timeout + MARGIN_S

    @property
    def managing_timeout(self) -> float:
        """What NGINX waits for where models are loaded, unloaded or listed.

        That is the wait for a turn, a load, the trial of the model's client, and where that fails
        an unload.
        """
        return self.managing_wait + self.load_timeout + self.proxy_timeout + self.unload_timeout

    def environment(self) -> dict[str, str]:
        """Every setting as environment variables, from which `read_settings` makes an equal one."""
        return {
            f.metadata["variable"]: written(getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) is not None
        }


def written(value: object) -> str:
    if isinstance(value, range):
        return f"{value.start}-{value.stop - 1}"
    if isinstance(value, tuple):
        return (":" if value and isinstance(value[0], Path) else ",").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows() -> Iterator[Row]:
    """Yield the table, a row per setting, in the order of their declaration."""
    for f in fields(Settings):
        yield Row(
            f.name,
            f.metadata["variable"],
            f.metadata["default"],
            f.metadata["read"].expected,
            f.metadata["meaning"],
        )


INNER_PORTS = ("triton_http_port", "triton_grpc_port", "triton_metrics_port")


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from `environment`.

    Raises:
        SettingError: one or more values cannot be used; the message has a line for each.

    """
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for f in fields(Settings):
        variable, read = f.metadata["variable"], f.metadata["read"]
        text = environment.get(variable, f.metadata["default"]).strip()
        try:
            values[f.name] = read(text)
        except (ValueError, OSError):  # the second: in a folder that may not be entered
            wrong.append(f"{variable} is {text!r}; expected: {read.expected}")
    if wrong:
        raise SettingError("\n".join(wrong))
    settings = Settings(**values)
    if settings.multi_model and not settings.management_routes:
        raise SettingError(
            "MANAGEMENT_ROUTES is 'false' and SAGEMAKER_MULTI_MODEL is 'true'; expected: not both, "
            "for the platform loads its models over those routes"
        )
    return with_ports_in_range(settings, environment)


def with_ports_in_range(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Give Triton the first free ports of the safe range, and see that no port is used twice."""
    variables = {f.name: f.metadata["variable"] for f in fields(Settings)}
    chosen = {name: getattr(settings, name) for name in INNER_PORTS}
    if settings.safe_ports is not None:
        given = {name for name in INNER_PORTS if environment.get(variables[name], "").strip()}
        taken = {settings.port} | {chosen[name] for name in given}
        free = iter([number for number in settings.safe_ports if number not in taken])
        for name in INNER_PORTS:
            if name not in given:
                chosen[name] = next(free, 0)
            if chosen[name] not in settings.safe_ports:
                raise SettingError(
                    f"{variables['safe_ports']} is {written(settings.safe_ports)!r}, which has no "
                    f"room for {variables[name]}; expected: at least {len(INNER_PORTS)} ports "
                    f"besides {variables['port']}, and no inner port outside of them"
                )
    users: dict[int, str] = {}
    for name, number in {"port": settings.port, **chosen}.items():
        if number in users:
            raise SettingError(
                f"{variables[name]} is {number}, which {users[number]} has already; "
                "expected: a port of its own for each"
            )
        users[number] = variables[name]
    return replace(settings, **chosen)
