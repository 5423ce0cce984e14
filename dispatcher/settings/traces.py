"""The settings of traces, a part of the one table; their names are OpenTelemetry's."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.settings import readers as read
from dispatcher.settings.readers import setting

SERVICE = "triton-dispatcher"


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """Where traces are sent, and which."""

    # fmt: off
    otlp_endpoint: str = setting("OTEL_EXPORTER_OTLP_ENDPOINT", "", read.url,
        "collector of traces (OTLP over HTTP), without /v1/traces")
    otlp_traces_endpoint: str = setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", read.url,
        "the same with its path")
    otlp_protocol: str = setting("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf",
        read.one_of("http/protobuf"),
        "how traces are sent")
    otlp_headers: str = setting("OTEL_EXPORTER_OTLP_HEADERS", "", read.attributes,
        "sent to the collector, such as `authorization=Bearer%20…`", secret=True)
    otel_service_name: str = setting("OTEL_SERVICE_NAME", "", read.service,
        "name in traces, if not service.name of OTEL_RESOURCE_ATTRIBUTES")
    otel_resource_attributes: str = setting("OTEL_RESOURCE_ATTRIBUTES", "", read.attributes,
        "what else traces say about this service")
    otel_traces_sampler: str = setting("OTEL_TRACES_SAMPLER", "parentbased_always_on",
        read.one_of("always_on", "always_off", "traceidratio", "parentbased_always_on",
            "parentbased_always_off", "parentbased_traceidratio"),
        "which requests have a trace; parentbased: as the request's own says")
    otel_traces_sampler_arg: float | None = setting("OTEL_TRACES_SAMPLER_ARG", "",
        read.or_nothing(read.share),
        "share of requests for traceidratio, if not all")
    otel_sdk_disabled: bool = setting("OTEL_SDK_DISABLED", "false", read.truth,
        "no traces at all")
    # fmt: on

    @property
    def traces_url(self) -> str:
        """Where traces are sent; empty where there are none."""
        if self.otel_sdk_disabled:
            return ""
        base = self.otlp_endpoint
        return self.otlp_traces_endpoint or (base and f"{base.rstrip('/')}/v1/traces")

    @property
    def traced_service(self) -> str:
        """The name of this service in traces."""
        pairs = (one.partition("=") for one in self.otel_resource_attributes.split(","))
        named = {name.strip(): value.strip() for name, _, value in pairs}
        return self.otel_service_name or named.get("service.name") or SERVICE
