"""Triton's options: those of TRITON_OPTIONS, and what belongs to them."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from container.programs.find_triton import TritonProgram
from dispatcher.settings import SettingError, Settings
from dispatcher.settings.traces import name_service

CACHE = "local"
"""The cache in Triton's own memory, which every Triton brings; `redis` needs a server beside it."""
CACHE_MIB = 64

OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)
TRACE = "trace-config"
SHM_PREFIX = "shm-region-prefix-name"

ALLOW_SHM = "allow-client-shm"

# Why some options cannot be in TRITON_OPTIONS: patterns of their names, by the reason.
REFUSED = {
    "SAGEMAKER_SAFE_PORT_RANGE sets the ports, on loopback": (
        *("http-port", "http-address", "grpc-port", "grpc-address"),
        *("metrics-port", "metrics-address"),
    ),
    "another server would take some of the requests": ("reuse-*",),
    "the web workers, `/ping` and `/metrics` need it as it is": (
        *("allow-http", "allow-grpc", "allow-metrics", ALLOW_SHM),
        *("http-restricted-api", "grpc-restricted-protocol"),
    ),
    "the web workers speak plain gRPC on loopback": (
        *("grpc-use-ssl*", "grpc-server-*", "grpc-root-cert"),
    ),
    "it opens a port that bypasses the keys and limits of this container": (
        *("allow-sagemaker", "sagemaker-*", "allow-vertex-ai", "vertex-ai-*"),
    ),
    "MODEL_REPOSITORY and MODEL_DIR name the folders": ("model-repository", "model-store"),
    "models are known by their names alone": ("model-namespacing",),
    "REQUIRED_MODELS and SAGEMAKER_MULTI_MODEL choose the models, POST /models loads others": (
        *("model-control-mode", "repository-poll-secs", "load-model"),
    ),
    "a model that does not load must not end the others; /ping says which it is": (
        "exit-on-error",
    ),
    "/ping decides which models have to be ready: see REQUIRED_MODELS": ("strict-readiness",),
    "SERVE_STOP_TIMEOUT sets it": ("exit-timeout-secs",),
    "the backends are those of the Triton that is found": ("backend-directory",),
    "the log would miss Triton's lines": ("log-file",),
    "LOG_FORMAT sets the form of the log": ("log-format",),
    "--cache-config=local,size=BYTES sets it": ("response-cache-byte-size",),
    "Triton would print its help and end": ("help",),
}


Word = tuple[str, str]
"""One option of TRITON_OPTIONS: its name without dashes, and all of it."""


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
        yield match[1], word


def refusal(name: str, text: str) -> str:
    """Return why an option cannot be passed to Triton; empty if it can."""
    if name == "backend-config" and f"python,{SHM_PREFIX}=" in text:
        return "shared memory that is left behind is found by this prefix"
    patterns = ((reason, one) for reason, those in REFUSED.items() for one in those)
    return next((reason for reason, one in patterns if fnmatchcase(name, one)), "")


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
    try:
        done = subprocess.run(
            [triton.executable, "--help"],
            env={**os.environ, **triton.environment},
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
    return (triton.caches / CACHE).is_dir()
