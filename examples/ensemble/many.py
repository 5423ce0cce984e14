"""Make a thousand pictures of known colours, send them, and count the answers.

usage: python many.py http://127.0.0.1:8080
"""

import base64
import json
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np

PICTURES, BATCH, CALLERS = 1000, 10, 4
COLOURS = ["red", "green", "blue"]
ENDPOINT = sys.argv[1]
random = np.random.default_rng(0)


def picture(colour: int) -> str:
    """Return a noisy picture in which a colour is the strongest, as base64 of a PNG."""
    pixels = random.integers(0, 100, (48, 64, 3), dtype=np.uint8)
    pixels[:, :, 2 - colour] += 100  # OpenCV's order is blue, green, red
    return base64.b64encode(cv2.imencode(".png", pixels)[1]).decode()


def ask(pictures: list[str]) -> list[str]:
    image = {
        "name": "IMAGE",
        "shape": [len(pictures), 1],
        "datatype": "BYTES",
        "parameters": {"content_type": "base64"},
        "data": pictures,
    }
    wanted = {"name": "SCORES", "parameters": {"classification": 1}}
    body = json.dumps({"inputs": [image], "outputs": [wanted]}).encode()
    with urllib.request.urlopen(f"{ENDPOINT}/infer/colours", body) as answer:
        best = json.load(answer)["outputs"][0]["data"]
    return [one.split(":")[2] for one in best]


pictures = [picture(number % 3) for number in range(PICTURES)]
batches = [pictures[start : start + BATCH] for start in range(0, PICTURES, BATCH)]
with ThreadPoolExecutor(CALLERS) as callers:
    found = [colour for batch in callers.map(ask, batches) for colour in batch]
right = sum(colour == COLOURS[number % 3] for number, colour in enumerate(found))
print(f"{right} of {len(found)} right:", dict(sorted(Counter(found).items())))
