"""What web workers know of the programs and the models, and answer from.

The supervisor publishes the status of the programs, one web worker that of Triton and its models.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clients.errors import ModelUnavailable
from clients.triton.server import ModelState
from dispatcher.status.instances import Death
from dispatcher.status.status_file import STALE_S

UNASKED = "Triton was not probed yet"
UNTRIED = "it was not probed yet"
TRITON = "Triton"


@dataclass(frozen=True)
class SupervisorStatus:
    """What the supervisor knows."""

    stopping: bool = False  # whether the container was asked to end
    # By name the `state` (waiting, starting, running or ending), the number of `starts`, the `pid`,
    # and the `reason` why it is not running.
    programs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # How many requests NGINX has answered without a web worker, by status.
    refusals: Mapping[str, int] = field(default_factory=dict)
    tls: Mapping[str, float] = field(default_factory=dict)  # metrics of the files of TLS
    hung: Collection[str] = ()  # the models whose last load was ended because it had all its time

    @property
    def triton_starts(self) -> int:
        """How often Triton was started: what was found before the last start is void."""
        return int(self.programs.get(TRITON, {}).get("starts", 1))

    @property
    def triton_pid(self) -> int:
        """Triton's process; 0 where it is not known."""
        return int(self.programs.get(TRITON, {}).get("pid", 0))

    @property
    def triton_fault(self) -> str:
        """Why Triton cannot be asked now; the empty text where it runs."""
        triton = self.programs.get(TRITON, {})
        if triton.get("state", "running") == "running":
            return ""
        if triton["starts"] < 2 and not triton["reason"]:
            return "Triton is starting"
        return f"Triton is being restarted: {triton['reason']}"

    def restarts(self) -> dict[str, int]:
        return {name: max(0, one["starts"] - 1) for name, one in self.programs.items()}


@dataclass(frozen=True)
class Result:
    """What the last probe of a model, or of a class by its own name, found."""

    model: str  # the model that the class asks; its own name where it asks none
    # Whether `/ping` is 503 without it. Those are probed again and again, others once after each
    # start of Triton, and when a request to them failed.
    required: bool
    reason: str = UNTRIED  # why it does not answer; empty where it does
    # When it was probed, on the clock of `time.monotonic()`, which all processes share.
    at: float = 0.0
    tried_in: int = 0  # during which start of Triton that was
    answered_in: int = 0  # during which start of Triton it last answered its example
    model_failed: bool = False  # whether the model failed, not its class
    late: bool = False  # whether it failed because no answer came in time
    part: str = ""  # the model that failed, where that is another one that the class asks as well


@dataclass(frozen=True)
class Status:
    """All that the prober found."""

    at: float = 0.0  # when it last asked Triton for its models, on the clock of `time.monotonic()`
    triton_starts: int = 0  # during which start of Triton; 0 before the first time
    fault: str = ""  # why Triton did not list its models; empty where it did
    models: list[ModelState] = field(default_factory=list)  # what it listed
    was_listed: bool = False  # whether it listed them at any time during this start
    # The models that are required, or that required classes ask.
    required: list[str] = field(default_factory=list)
    # Why the container is not ready, a sentence each.
    reasons: list[str] = field(default_factory=list)
    restart: str = ""  # why Triton is to be restarted; empty where that would not help
    # Why requests to a model are to be refused, by model.
    refused: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)  # of the probes, by name
    # The last one of each model's processes.
    deaths: Mapping[str, Death] = field(default_factory=dict)
    processes: Mapping[str, list[int]] = field(default_factory=dict)  # that run models, by model

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Status:
        """Return what `dataclasses.asdict` made of a status."""
        made = {
            "models": [ModelState(**one) for one in fields["models"]],
            "results": {name: Result(**one) for name, one in fields["results"].items()},
            "deaths": {name: Death(**one) for name, one in fields["deaths"].items()},
        }
        return cls(**{**fields, **made})

    def ready(self) -> Counter[str]:
        """Return the models that are ready, and how many versions of each are."""
        return Counter(state.name for state in self.models if state.ready)

    def stuck(self) -> set[str]:
        """Return the models that answered, and do not any more."""
        return {self.results[name].model for name in self.refused}

    def concluded(self, required: Mapping[str, bool], reloading: Collection[str]) -> Status:
        """Return the status with what follows from the facts in it.

        `required` says of each required name whether there is a class of it. The models that are
        `reloading` are being loaded again, which may be enough.
        """
        results = {name: self.results[name] for name in required}
        stuck = {name: one for name, one in self.results.items() if self._is_stuck(one)}
        reasons = [self.fault] if self.fault else self._reasons(required, results)
        mends = (self.was_listed and self.fault) or any(
            name in stuck
            for name, one in results.items()
            if (one.part or one.model) not in reloading
        )
        return replace(
            self,
            required=[result.model for result in results.values()],
            reasons=reasons,
            restart="; ".join(reasons) if mends else "",
            refused={name: one.reason for name, one in stuck.items() if not one.part},
        )

    def _is_stuck(self, result: Result) -> bool:
        """Whether a model answered and does not any more.

        It may have died before its first probe after a start: then one more start tells.
        """
        was_well = result.answered_in >= max(1, self.triton_starts - 1)
        return result.model_failed and result.tried_in == self.triton_starts and was_well

    def _reasons(self, required: Mapping[str, bool], results: Mapping[str, Result]) -> list[str]:
        """Return why the required models keep the container from its work, a sentence each."""
        ready, listed = self.ready(), {state.name for state in self.models}
        absent = [
            f"the required model {name!r} is not ready{self._why_not(name, one.model)}"
            for name, one in results.items()
            # A class may have no model of its own: it asks others, or none.
            if one.model not in ready and (one.model in listed or not required[name])
        ]
        # A model that failed by itself comes before the classes that ask it.
        return absent or [
            f"the required model {name!r} does not answer: {reason}"
            for name, one in sorted(results.items(), key=lambda item: bool(item[1].part))
            if (reason := one.reason if one.tried_in == self.triton_starts else UNTRIED)
        ]

    def _why_not(self, name: str, model: str) -> str:
        """Return what is known of a model that is not ready, to be added to saying so."""
        its = "" if name == model else f": its model is {model!r}"
        return its + "".join(f": {s.why}" for s in self.models if s.name == model and s.why)


@dataclass(frozen=True)
class Readiness:
    """What `/ping`, `/health`, `/metrics` and requests read; nothing is asked on their behalf."""

    supervisor: Callable[[], SupervisorStatus]
    prober: Callable[[], Status]
    clock: Callable[[], float] = time.monotonic

    def reasons(self) -> list[str]:
        """Return why the container cannot do its work, a sentence each; none where it can."""
        supervisor, status = self.supervisor(), self.prober()
        if supervisor.stopping:
            return ["the container is stopping"]
        if supervisor.triton_fault:
            return [supervisor.triton_fault]
        if status.triton_starts != supervisor.triton_starts:
            return [UNASKED]
        if (age := self.clock() - status.at) > STALE_S:
            return [f"the prober has not asked Triton for {age:.0f} s"]
        return status.reasons

    def restart_helps(self) -> bool:
        """Whether a restart of Triton may help."""
        return bool(self._current().restart)

    def refuse(self, model: str) -> None:
        """Refuse a request to a model that would wait in vain."""
        status = self._current()
        if fault := self.supervisor().triton_fault or status.fault:
            raise ModelUnavailable(fault, hint="try again after Retry-After seconds")
        if reason := status.refused.get(model):
            raise ModelUnavailable(
                f"the model {model!r} does not answer any more: {reason}",
                hint="GET /health says more",
            )

    def report(self, name: str) -> dict[str, object] | None:
        """Return the last probe of a model as JSON; `None` where it is not probed."""
        status = self.prober()
        required = (one for one in status.results.values() if one.required and one.model == name)
        result = next(required, None) or status.results.get(name)
        if result is None:
            return None
        age = round(self.clock() - result.at, 1) if result.at else None
        return {"ok": not result.reason, "reason": result.reason, "age_s": age}

    def _current(self) -> Status:
        """Return the status; an empty one where it is of an earlier start of Triton."""
        status = self.prober()
        return status if status.triton_starts == self.supervisor().triton_starts else Status()
