"""The variables of OpenTelemetry that Triton needs too.

Its SDK reads and checks the others itself, and logs what it cannot use.
"""

from __future__ import annotations

import os

SERVICE = "triton-dispatcher"


def name_service() -> str:
    pairs = (one.partition("=") for one in standard("OTEL_RESOURCE_ATTRIBUTES").split(","))
    named = {name.strip(): value.strip() for name, _, value in pairs}
    return standard("OTEL_SERVICE_NAME") or named.get("service.name") or SERVICE


def standard(variable: str) -> str:
    return os.environ.get(variable, "").strip()
