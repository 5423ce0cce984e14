"""What the log and the metrics record of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from clients.request import Timings

MAX_NAMES = 10  # models of one request in the log


@dataclass(slots=True)
class RequestRecord:
    """One request, without anything of its body, and no header but its id.

    Args:
        since: when NGINX had all of it, on the clock of `time.monotonic()`.
        request_id: its id in the log and the response.
        method: GET, POST and so on.
        route: the URL rule that its path matched; empty where it matched none.
        path: without the query.
        bytes_in: of the body, as it arrived.
        queue: seconds until it left the queue; before that, until a web worker had it.
        modelname: the model that it names, once that is read.
        key: the name of its API key.
        models: the models that it asked.
        version: the requested version.
        known: whether those models exist, so that the metrics may name them.
        status: of the answer.
        code: the error's, if it is one.
        message: the error's, unless it quotes from the body.
        bytes_out: of the body, before NGINX compresses it.
        items: how many results the body has, where there may be several.
        failed: how many of those are errors.
        at: when NGINX had all of it, in seconds since 1970.
        total: seconds until the response was sent.
        timings: of the model's client.
        reported: whether it was counted and logged already.

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
    reported: bool = False

    def name(self, model: str) -> None:
        """Add a model to those asked."""
        if model and model not in self.models and len(self.models) < MAX_NAMES:
            self.models.append(model)
