"""Mistakes in what the engines read."""

from __future__ import annotations

from tests.support.mistakes.mistake import (
    Mistake,
    accelerated_by,
    all_of,
    ir,
    move,
    parameter,
)

ENGINES = [
    Mistake(
        "unknown_engine",
        parameter("engine", "openvin"),
        "unknown_engine/config.pbtxt:6",
        "parameter 'engine' is 'openvin', but expected is one of auto, openvino, onnxruntime",
        "leave it out",
    ),
    Mistake(
        "unknown_accelerator",
        accelerated_by("opnvino"),
        "unknown_accelerator/config.pbtxt",
        "the CPU execution accelerator 'opnvino' is unknown, but expected is 'openvino'",
        "write that",
    ),
    Mistake(
        "streams_of_onnx",
        parameter("NUM_STREAMS", "many"),
        "streams_of_onnx/config.pbtxt:6",
        "parameter 'NUM_STREAMS' is 'many', but expected is a whole number",
        "",
    ),
    Mistake(
        "ir_hint",
        all_of(ir(), parameter("PERFORMANCE_HINT", "fast")),
        "ir_hint/config.pbtxt:6",
        "parameter 'PERFORMANCE_HINT' is 'fast', but expected is LATENCY or THROUGHPUT",
        "write that",
    ),
    Mistake(
        "ir_without_weights",
        ir("model.xml"),
        "ir_without_weights/1/model.xml",
        "model.bin', but there is no such file",
        "put it there",
    ),
    Mistake(
        "ir_cut",
        ir("model.xml", "model.bin", cut=300),
        "ir_cut/1/model.xml",
        "cannot be served: OpenVINO cannot open",
        "save it again with openvino.save_model",
    ),
    Mistake(
        "ir_weights_cut",
        ir("model.bin", "model.xml", cut=8),
        "ir_weights_cut/1/model.xml",
        "Incorrect weights in bin file",
        "copy 'model.bin' again",
    ),
    Mistake(
        "ir_of_text",
        all_of(ir(), lambda folder: (folder / "1" / "model.xml").write_text("hello")),
        "ir_of_text/1/model.xml",
        "is no XML, as a model of OpenVINO is",
        "fetch it again",
    ),
    Mistake(
        "ir_without_file",
        all_of(ir(), move("1/model.xml", "1/net.xml")),
        "ir_without_file/1",
        "has no model.xml or model.onnx; it has model.bin, net.xml",
        "rename net.xml to model.xml",
    ),
    Mistake(
        "ir_pointer",
        all_of(
            ir(),
            lambda folder: (folder / "1" / "model.bin").write_bytes(
                b"version https://git-lfs.github.com/spec/v1\n"
            ),
        ),
        "ir_pointer/1/model.bin",
        "is a pointer of Git LFS",
        "git lfs pull",
        refused=False,  # it has as many bytes as the weights
    ),
]
