"""Asks a running container for the objects in a picture and draws them on it.

usage: python docs/draw_boxes.py PICTURE OUT [ENDPOINT]
"""

from __future__ import annotations

import base64
import json
import sys
import urllib.request
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

LABELS = Path(__file__).parent.parent / "model_repository" / "yolov5" / "labels.txt"
COLOUR = (255, 64, 0)


def main(picture: Path, out: str, endpoint: str = "http://127.0.0.1:8080/invocations") -> None:
    """Ask, draw and save."""
    image = base64.b64encode(picture.read_bytes()).decode()
    body = json.dumps({"modelname": "yolov5", "payload": {"img": image}}).encode()
    with urllib.request.urlopen(endpoint, body) as answer:  # noqa: S310  the reader's own container
        objects = json.load(answer)["result"]
    labels = LABELS.read_text(encoding="utf-8").splitlines()
    drawn = ImageOps.exif_transpose(Image.open(picture)).convert("RGB")  # as the server does
    draw = ImageDraw.Draw(drawn)
    for class_id, score, x1, x2, y1, y2, *_ in objects:
        draw.rectangle((x1, y1, x2, y2), outline=COLOUR, width=3)
        text = f" {labels[class_id]} {score:.2f} "
        box = draw.textbbox((x1 + 3, y1 + 3), text, font_size=20)
        draw.rectangle(box, fill=COLOUR)
        draw.text((x1 + 3, y1 + 3), text, font_size=20, fill="white")
    drawn.save(out, quality=85)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
