"""An image without a way out: on a network of Docker that leads to this machine alone."""

from __future__ import annotations

from dataclasses import replace

from tool.emulate.host.calls import Address
from tool.emulate.host.containers import Image, Start, docker

FORMAT = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"


class IsolatedImage(Image):
    """An image on an internal network; it is reached by its own address, on Linux."""

    def __init__(self, image: str, how: Start) -> None:
        super().__init__(image, how)
        self.network = self.name
        self.how = replace(how, options=(*how.options, "--network", self.network))

    def start(self) -> None:
        docker("network", "create", "--internal", self.network)
        super().start()

    def found(self, port: str) -> Address | None:
        address = docker("inspect", "--format", FORMAT, self.name, may_fail=True).strip()
        return Address(address, int(port)) if address else None

    def stop(self) -> str:
        try:
            return super().stop()
        finally:
            docker("network", "rm", self.network, may_fail=True)
