"""Whether Triton's models still answer."""

from __future__ import annotations

import threading

import grpc
from tritonclient.grpc import service_pb2

from clients.errors import ModelFailed, TensorsRefused
from clients.triton.connection import Connection
from clients.triton.errors import translated
from clients.triton.requests import DEADLINE, infer_request
from clients.triton.server import Probe, Tensors

LONG_AGO = 1  # a deadline that has passed: the container's own backends answer without a run


class TritonProbe(Connection, Probe):
    """Probes models of a Triton; see `Connection` for the argument."""

    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        channel = self._channels.get(model, self._common)
        if channel.runs.is_broken:
            channel = self._renewed(channel, model)
        request = infer_request(model, "", inputs, (), {DEADLINE: LONG_AGO})
        try:
            channel.runs.infer(request, timeout)
        except (grpc.RpcError, ValueError) as error:
            if channel.abandoned:
                raise ModelFailed(channel.abandoned) from error
            if isinstance(error, ValueError):
                raise
            known = translated(error)
            if not isinstance(known, TensorsRefused):
                raise self._explained(known, model, "", timeout) from error

    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        self._failing.add(model)
        channel = self._channels.pop(model, None)
        if channel and within:
            timer = threading.Timer(within, channel.abandon, (reason,))
            timer.daemon = True
            timer.start()
        elif channel:
            channel.abandon(reason)

    def note_failure(self, model: str) -> None:
        self._failing.add(model)

    def take_failing(self) -> set[str]:
        failing = set(self._failing)
        self._failing -= failing
        return failing

    def instances(self, model: str, *, timeout: float) -> int:
        request = service_pb2.ModelConfigRequest(name=model)
        config = self._call("ModelConfig", request, timeout).config
        return sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)

    def answered(self, model: str, *, timeout: float) -> int:
        request = service_pb2.ModelStatisticsRequest(name=model)
        versions = self._call("ModelStatistics", request, timeout).model_stats
        return sum(version.inference_stats.success.count for version in versions)
