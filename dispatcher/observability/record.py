"""What is told of one request, in the log and in the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from clients.request import Timings

MAX_NAMES = 10  # models of one request that the log names


@dataclass(slots=True)
class RequestRecord:
    """One request. Nothing of its body, and no header but its id, is kept here.

    Args:
        since: when NGINX had all of it, on the clock of `time.monotonic()`.
        request_id: what the log and the answer call it.
        method: GET, POST and so on.
        route: the rule that its path matched; nothing where it matched none.
        path: without the query.
        bytes_in: of the body, as it came.
        queue: seconds until it was its turn or waited no longer; before that, until a web worker
            had it.
        modelname: the model that it names, as far as it was read.
        key: whose API key it has.
        models: the models it asked.
        version: the version that was asked for.
        known: whether those models exist, and their names can be counted under.
        status: of the answer.
        code: the error's, if it is one.
        message: the error's, where it quotes nothing of the body.
        bytes_out: of the body, before NGINX packs it.
        items: how many answers there are in the body, where there may be several.
        failed: how many of those are errors.
        at: when NGINX had all of it, in seconds since 1970.
        total: seconds until all was sent.
        timings: of the model's client.
        told: whether it was told already.

    """

    since: float
    request_id: str
    method: str
    route: str
    path: str
    bytes_in: int
    queue: float = 0.0
    modelname: str = ""
    key: str = ""
    models: list[str] = field(default_factory=list)
    version: str = ""
    known: bool = False
    status: int = 0
    code: str = ""
    message: str = ""
    bytes_out: int = 0
    items: int = 0
    failed: int = 0
    at: float = 0.0
    total: float = 0.0
    timings: Timings | None = None
    told: bool = False

    def name(self, model: str) -> None:
        """Note that a model is asked."""
        if model and model not in self.models and len(self.models) < MAX_NAMES:
            self.models.append(model)
