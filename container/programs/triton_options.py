"""Triton's options: those of TRITON_OPTIONS, and what belongs to them."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from container.programs.find_triton import TritonProgram
from dispatcher.settings import SettingError, Settings
from dispatcher.settings.traces import name_service

CACHE = "local"
"""The cache in Triton's own memory, which every Triton brings; `redis` needs a server beside it."""
CACHE_MIB = 64

OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)
TRACE = "trace-config"
SHM_PREFIX = "shm-region-prefix-name"

PORTS = "SAGEMAKER_SAFE_PORT_RANGE sets the ports, on loopback"
NEEDED = "the web workers, `/ping` and `/metrics` need it as it is"
PLAIN = "the web workers speak plain gRPC on loopback"
PUBLIC = "it opens a port that bypasses the keys and limits of this container"
LOADED = "REQUIRED_MODELS and SAGEMAKER_MULTI_MODEL choose the models, POST /models loads others"

ALLOW_SHM = "allow-client-shm"

# Why an option cannot be in TRITON_OPTIONS. A name that ends in a dash is the beginning of names.
REFUSED = {
    "http-port": PORTS,
    "http-address": PORTS,
    "grpc-port": PORTS,
    "grpc-address": PORTS,
    "metrics-port": PORTS,
    "metrics-address": PORTS,
    "reuse-": "another server would take some of the requests",
    "allow-http": NEEDED,
    "allow-grpc": NEEDED,
    "allow-metrics": NEEDED,
    ALLOW_SHM: NEEDED,
    "http-restricted-api": NEEDED,
    "grpc-restricted-protocol": NEEDED,
    "grpc-use-ssl": PLAIN,
    "grpc-server-": PLAIN,
    "grpc-root-cert": PLAIN,
    "allow-sagemaker": PUBLIC,
    "sagemaker-": PUBLIC,
    "allow-vertex-ai": PUBLIC,
    "vertex-ai-": PUBLIC,
    "model-repository": "MODEL_REPOSITORY and MODEL_DIR name the folders",
    "model-store": "MODEL_REPOSITORY and MODEL_DIR name the folders",
    "model-namespacing": "models are known by their names alone",
    "model-control-mode": LOADED,
    "repository-poll-secs": LOADED,
    "load-model": LOADED,
    "exit-on-error": "a model that does not load must not end the others; /ping says which it is",
    "strict-readiness": "/ping decides which models have to be ready: see REQUIRED_MODELS",
    "exit-timeout-secs": "SERVE_STOP_TIMEOUT sets it",
    "backend-directory": "the backends are those of the Triton that is found",
    "log-file": "the log would miss Triton's lines",
    "log-format": "LOG_FORMAT sets the form of the log",
    "response-cache-byte-size": "--cache-config=local,size=BYTES sets it",
    "help": "Triton would print its help and end",
}


class Word(NamedTuple):
    """One option of TRITON_OPTIONS: its name without dashes, and all of it."""

    name: str
    text: str


def triton_options(settings: Settings) -> list[str]:
    """Return Triton's options besides those that this container decides.

    Raises SettingError: one of them would break the container, or cannot be read.
    """
    words = list(extra_options(settings.triton_options))
    for name, text in words:
        if reason := refusal(name, text):
            raise SettingError(f"TRITON_OPTIONS has {text}; expected: another option, for {reason}")
    return [*trace_options(settings, words), *(text for _, text in words)]


def trace_options(settings: Settings, words: Sequence[Word]) -> list[str]:
    """Return the options for Triton's own spans; none where there are no traces.

    It sends those of the requests that name a trace, which the web workers do if it is sampled, and
    none of its own accord (rate 0).
    """
    if not settings.traces_url or any(name == TRACE for name, _ in words):
        return []
    configured = (
        "mode=opentelemetry",
        "rate=0",
        "level=TIMESTAMPS",
        f"opentelemetry,url={settings.traces_url}",
        # A comma would begin another word of this option.
        f"opentelemetry,resource=service.name={name_service().replace(',', ' ')}",
    )
    return [f"--{TRACE}={one}" for one in configured]


def extra_options(text: str) -> Iterator[Word]:
    """Yield the options of TRITON_OPTIONS, `--name=value` each.

    Raises SettingError: there is another word.
    """
    for word in shlex.split(text):
        if not (match := OPTION.fullmatch(word)):
            raise SettingError(
                f"TRITON_OPTIONS has {word!r}; expected: --name=value, or --name for a switch, "
                "separated by spaces, with quotation marks around a value with spaces"
            )
        yield Word(match[1], word)


def refusal(name: str, text: str) -> str:
    """Return why an option cannot be passed to Triton; empty if it can."""
    if name == "backend-config" and f"python,{SHM_PREFIX}=" in text:
        return "shared memory that is left behind is found by this prefix"
    found = (
        reason
        for refused, reason in REFUSED.items()
        if name == refused or (refused.endswith("-") and name.startswith(refused))
    )
    # `grpc-use-ssl-mutual`
    return next(found, PLAIN if name.startswith("grpc-use-ssl") else "")


def refuse_unknown(triton: TritonProgram, settings: Settings) -> None:
    """Refuse options that this Triton does not have: it would end with its whole help.

    Raises SettingError: there is such an option.
    """
    words = list(extra_options(settings.triton_options))
    known = list_options(triton) if words else set()
    for name, text in words:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"--{near[0]}" if near else "one that `tritonserver --help` lists"
            raise SettingError(f"TRITON_OPTIONS has {text}, which Triton lacks; expected: {fix}")


def newer_options(triton: TritonProgram) -> list[str]:
    """Return the options that newer releases need; older ones do not know them.

    From 26.04 on Triton reads tensors in clients' shared memory only if it is allowed to. The
    clients here are the web workers: no route, and no port of TRITON_PUBLIC_*, registers memory.
    """
    if triton.has_our_backends or ALLOW_SHM not in list_options(triton):  # the wheel has 2.51
        return []
    return [f"--{ALLOW_SHM}=true"]


def list_options(triton: TritonProgram) -> set[str]:
    """Return the names of the options that Triton's help lists; none where it has no help."""
    environment: Mapping[str, str] = {**os.environ, **triton.environment}
    try:
        done = subprocess.run(
            [triton.executable, "--help"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(re.findall(r"^ *--([a-z][a-z0-9-]*)", done.stdout + done.stderr, re.MULTILINE))


def cache_options(triton: TritonProgram, settings: Settings) -> list[str]:
    """Return the options for the response cache, where there is one and TRITON_OPTIONS has none."""
    given = any(name == "cache-config" for name, _ in extra_options(settings.triton_options))
    if given or not has_cache(triton):
        return []
    return [f"--cache-config={CACHE},size={CACHE_MIB * 2**20}"]


def has_cache(triton: TritonProgram) -> bool:
    """Whether Triton brings the library of the cache."""
    return triton.caches is not None and (triton.caches / CACHE).is_dir()
