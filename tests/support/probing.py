"""A prober on a stage where time stands still, and Triton is a dictionary of functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients.base import Client, Environment
from clients.plugins.registry import Registry
from dispatcher.settings import FAILING
from dispatcher.status.instances import ModelProcesses
from dispatcher.status.prober import Prober
from dispatcher.status.status import Readiness, SupervisorStatus
from tests.support.fake_triton import FakeTriton


class Echo(Client):
    modelname = "echo"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.infer({})
        if payload.get("x") != 1:
            raise ValueError("not the example")


class Other(Echo):
    modelname = "other"


def triton(state: str = "running", starts: int = 1, reason: str = "") -> SupervisorStatus:
    program = {"state": state, "starts": starts, "reason": reason}
    return SupervisorStatus(programs={"Triton": program})


@dataclass
class Stage:
    """A prober for `echo`, which is required, and `other`, which is not; time stands still."""

    server: FakeTriton = field(default_factory=lambda: FakeTriton({"echo": dict, "other": dict}))
    supervisor: SupervisorStatus = field(default_factory=triton)
    time: float = 100.0
    run_dir: Path | None = None
    names: Sequence[str] = ("echo",)
    replaced: int = 0
    proc: Path = Path("/proc")

    def __post_init__(self) -> None:
        environment = Environment(self.server, Path())
        clients = {one.modelname: one(environment) for one in (Echo, Other)}
        registry = Registry(clients if "echo" in self.names else {})
        self.prober = Prober(
            self.names,
            registry,
            self.server,
            8,
            8,
            lambda: self.supervisor,
            lambda: self.time,
            self.run_dir,
            replace_workers=self.replace,
            processes=ModelProcesses(self.proc),
        )
        if self.run_dir:
            (self.run_dir / FAILING).mkdir(exist_ok=True)
        assert self.prober.is_elected()
        self.prober.list_models()

    def replace(self) -> None:
        self.replaced += 1

    @property
    def readiness(self) -> Readiness:
        """What web workers say now."""
        self.prober.publish()
        return Readiness(lambda: self.supervisor, self.prober.status, lambda: self.time)

    def round(self) -> list[str]:
        """Probe what is due, and return it."""
        self.prober.report_failures()
        due = list(self.prober.due())
        for name, probe in due:
            self.prober.run(name, probe)
        return [name for name, _ in due]

    def turn(self, seconds: float = 0) -> list[str]:
        """Let time pass, list the models, and probe what is due, as the prober does."""
        self.time += seconds
        self.prober.list_models()
        return self.round()

    def require(self, *names: str) -> None:
        """Begin again with other required models, or classes."""
        self.prober.required = names
        self.prober.__post_init__()
        self.prober.list_models()

    def look(self, name: str = "echo") -> None:
        self.prober.run(name, self.prober.probes[name])

    def see_deaths(self) -> None:
        self.prober.note_deaths()
        self.prober.publish()
        self.prober.abandon()
        for model in list(self.prober.reloads.lost):
            found = self.prober.found
            self.prober.reloads.reload(model, found.triton_starts, found.ready()[model])

    def end_stuck(self) -> None:
        stuck = self.readiness.prober().stuck()
        self.prober.reloads.end(stuck, self.prober.processes, self.supervisor.triton_starts)

    def is_stuck(self, model: str) -> bool:
        return model in self.readiness.prober().refused


def probed(prober: Prober, *, everything: bool = True) -> Readiness:
    """Return what web workers say after one round of a prober: of all models, or required ones."""
    prober.list_models()
    for name, probe in list(prober.due()):
        if probe.result.required or everything:
            prober.run(name, probe)
    prober.publish()
    return Readiness(prober.supervisor, prober.status)
