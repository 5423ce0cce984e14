# BentoML reads annotations; this is as short as its users write it.
# ruff: noqa: ANN204
import time

import bentoml
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route


# BentoML has /livez and /readyz, and no setting for another name.
@bentoml.asgi_app(Starlette(routes=[Route("/ping", lambda _: Response())]))
@bentoml.service
class Model:
    def __init__(self):
        time.sleep(3)  # as a model of some size takes
        self.factor = 2

    @bentoml.api(route="/invocations")
    def predict(self, x: float) -> dict[str, float]:
        time.sleep(x if x > 1 else 0.05)
        return {"y": x * self.factor}
