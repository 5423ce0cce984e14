"""A client for a model that does nothing: what is left is the server's own cost."""

from __future__ import annotations

from typing import Any

from clients.base import Client, Payload


class Nothing(Client):
    """Answers the one number that was sent."""

    modelname = "nothing"
    example = {"number": [1]}

    def inference(self, payload: Payload) -> Any:
        number = self.numbers(payload, "number")
        return self.infer({"INPUT": number[None]})["OUTPUT"][0].tolist()
