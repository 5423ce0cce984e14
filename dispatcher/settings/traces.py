"""Where traces are sent, a part of the one table.

OpenTelemetry's SDK reads and checks its other variables itself, and logs what it cannot use. Those
that Triton needs too are read here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from dispatcher.settings import readers as read
from dispatcher.settings.readers import setting

SERVICE = "triton-dispatcher"


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """Where traces are sent."""

    # fmt: off
    otlp_endpoint: str = setting("OTEL_EXPORTER_OTLP_ENDPOINT", "", read.url,
        "collector of traces (OTLP over HTTP), without /v1/traces")
    # fmt: on

    @property
    def traces_url(self) -> str:
        """Where traces are sent; empty where there are none."""
        if standard("OTEL_SDK_DISABLED").lower() == "true":
            return ""
        base = self.otlp_endpoint.rstrip("/")
        return standard("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base}/v1/traces")


def traced_service() -> str:
    """Return the name of this service in traces."""
    pairs = (one.partition("=") for one in standard("OTEL_RESOURCE_ATTRIBUTES").split(","))
    named = {name.strip(): value.strip() for name, _, value in pairs}
    return standard("OTEL_SERVICE_NAME") or named.get("service.name") or SERVICE


def standard(variable: str) -> str:
    """Return the value of one of OpenTelemetry's variables."""
    return os.environ.get(variable, "").strip()
