"""The application of AWS's article, with replacements for what is missing.

That is the addresses of Triton, the tokenizer that it fetches from the internet at each request,
and `torchvision.ops.nms`, of which there is no build for this torch, by OpenCV's.
"""

from __future__ import annotations

import importlib
import sys
import types
from functools import partial
from typing import Any
from unittest import mock

import cv2
import torch
import transformers
import tritonclient.grpc
import tritonclient.http


def program(sample: str, http: str, grpc: str, tokenizer: str) -> Any:
    """Return the WSGI application, whose models are asked at these two addresses."""
    vision = types.ModuleType("torchvision")
    vision.ops = types.SimpleNamespace(nms=nms)  # type: ignore[attr-defined]
    sys.modules["torchvision"] = vision
    for module, address in ((tritonclient.http, http), (tritonclient.grpc, grpc)):
        at_address = partial(connected, module.InferenceServerClient, address)
        mock.patch.object(module, "InferenceServerClient", at_address).start()
    bert = transformers.BertTokenizer
    mock.patch.object(
        bert, "from_pretrained", partial(read, bert.from_pretrained, tokenizer)
    ).start()
    sys.path.insert(0, f"{sample}/sm")
    return importlib.import_module("predictor").app


def connected(client: Any, address: str, **options: Any) -> Any:
    return client(**{**options, "url": address})


def read(from_pretrained: Any, folder: str, _name: str) -> Any:
    return from_pretrained(folder)


def nms(boxes: Any, scores: Any, threshold: float) -> Any:
    sides = torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), 1)
    return torch.tensor(cv2.dnn.NMSBoxes(sides.numpy(), scores.numpy(), 0.0, threshold))
