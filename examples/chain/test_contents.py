"""The test of the class: without a server, and without the two models."""

import unittest
from pathlib import Path
from typing import Any

from triton_dispatcher.clients.base import Payload
from triton_dispatcher.clients.testing import OnnxModels, answer, clients_in

HERE = Path(__file__).parent
(Contents,) = clients_in(HERE / "clients" / "contents.py")
CUP = {"label": "cup", "score": 0.5, "box": {"x1": 38.2, "y1": 3.3, "x2": 130.2, "y2": 115.4}}


class ContentsTest(unittest.TestCase):
    def test_each_object_is_cut_out_and_classified(self) -> None:
        asked: list[Any] = []

        def yolov5(payload: Payload, parameters: Payload) -> object:
            asked.append(payload["img"].shape)
            return [CUP] if parameters == {"format": "objects"} else []

        def resnet(payload: Payload, parameters: Payload) -> object:
            asked.append(payload["img"].shape)
            return [{"label": "espresso"}] * parameters["top_k"]

        found = answer(
            Contents,
            Contents.example,
            OnnxModels(HERE),
            parameters={"top_k": 2},
            others={"yolov5": yolov5, "resnet": resnet},
        )
        self.assertEqual(found, [{**CUP, "classes": [{"label": "espresso"}] * 2}])
        self.assertEqual(asked, [(119, 176, 3), (112, 92, 3)])


if __name__ == "__main__":
    unittest.main()
