"""The rivals: other servers with the same work.

Each rival is set up for the cores as its documentation recommends: one process per core with one
thread of the engine each for pictures; for texts, where a batch pays, one process with all the
threads and the rival's own batching. All run the same work (`bench.load.work`) with the same
libraries.
LitServe has the engine that is best in the in-process limit at the precision that is measured; what
is on a Triton has this server's own backend with the server's precision.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load.work import PROJECT
from bench.servers.contenders import (
    BENCH,
    PRECISION,
    SHM_PREFIX,
    Contender,
    Skipped,
    as_it_is,
    free_port,
    install_rival,
)
from bench.servers.sessions import Engine
from container.programs.find_triton import find_embedded
from container.programs.malloc import ALLOCATOR
from container.trouble import Trouble

BATCH = 16
LITSERVE, TRITON = "LitServe", "Triton HTTP"


@dataclass(frozen=True)
class Place:
    """What a rival is started for: a model at a precision, on so many cores.

    Args:
        precision: what MODEL_PRECISION this server has.
        engine: the best one in the in-process limit.

    """

    repository: Path
    cache: Path
    modelname: str
    cpus: int
    precision: str
    engine: Engine


def environment(place: Place, engine: Engine = Engine.ONNXRUNTIME) -> dict[str, str]:
    """Return what `bench.rivals` and `bench.load.work` read inside of a rival."""
    # A text's batch pays more than a second process does.
    is_text = place.modelname == "bert_base"
    workers = 1 if is_text else place.cpus
    return {
        "BENCH_REPOSITORY": str(place.repository),
        "BENCH_MODEL": place.modelname,
        "BENCH_ENGINE": engine,
        "BENCH_WORKERS": str(workers),
        "BENCH_THREADS": str(max(1, place.cpus // workers)),
        "BENCH_BATCH": str(BATCH if is_text else 1),
        "PYTHONPATH": str(PROJECT),
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def litserve(place: Place) -> Contender:
    python, port = install_rival("litserve", place.cache), free_port()
    return Contender(
        LITSERVE,
        [str(python), str(BENCH / "rivals" / "litserve_app.py"), str(port)],
        port,
        "/predict",
        as_it_is,
        lambda answer: answer["result"],
        environment(place, place.engine),
        place.cache / "run",
    )


def triton(place: Place) -> Contender:
    """Return Triton alone: an ensemble with pre- and postprocessing in Python.

    The model in the middle is served as by this server, with the same backend; see `one_by_one`.
    """
    folder, modelname = place.cache / "run" / "triton", place.modelname
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        program = find_embedded(folder)
    except Trouble as error:
        raise Skipped(str(error)) from error
    lay_out_ensemble(folder / "models", place.repository, modelname, place.cpus)
    port = free_port(3)
    classes: dict[str, Any] = {"name": "result"}
    text = {"name": "payload", "shape": [1, 1], "datatype": "BYTES"}
    if modelname == "resnet":
        classes["parameters"] = {"classification": 3}
    return Contender(
        TRITON,
        [
            *(str(program.executable), f"--model-repository={folder / 'models'}"),
            *(*program.options, *fronts(port)),
            f"--backend-config=python,shm-region-prefix-name={SHM_PREFIX}",
        ],
        port,
        "/v2/models/ensemble/infer",
        lambda payload: {
            "inputs": [{**text, "data": list(payload.values())}],
            "outputs": [classes],
        },
        (lambda answer: answer["outputs"][0]["data"])
        if modelname == "resnet"
        else lambda answer: json.loads(answer["outputs"][0]["data"][0]),
        {
            **environment(place),
            **ALLOCATOR,
            PRECISION: place.precision,
            **program.environment,
            "BENCH_PROJECT": str(PROJECT),
        },
        folder,
    )


# The tensors between the steps of the ensembles, without the batch's dimension.
TENSORS = {
    "resnet": ({"input": ("UINT8", "3, 224, 224")}, ("FP32", "1000")),
    "yolov5": ({"images": ("UINT8", "3, 640, 640")}, ("FP32", "25200, 85")),
    "bert_base": (
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ("INT64", "-1")),
        ("FP32", "-1, 30522"),
    ),
}


def lay_out_ensemble(models: Path, repository: Path, modelname: str, cpus: int) -> None:
    inputs, output = TENSORS[modelname]
    text = ("STRING", "1")
    finishes = modelname != "resnet"  # its answer is made by Triton's classification extension
    shutil.copytree(repository / modelname, models / modelname, symlinks=True)
    if not finishes:
        one_by_one(models / modelname / "config.pbtxt", cpus)
    python_model(models / "before", {"payload": text}, {**inputs, "kept": text}, cpus)
    steps = [
        step("before", ["payload"], [*inputs, *(["kept"] if finishes else [])]),
        step(modelname, [*inputs], ["output"], {"output": "output" if finishes else "result"}),
    ]
    if finishes:
        python_model(models / "after", {"output": output, "kept": text}, {"result": text}, cpus)
        steps.append(step("after", ["output", "kept"], ["result"]))
    (models / "ensemble" / "1").mkdir(parents=True)
    labels = ""
    if not finishes:
        shutil.copy(repository / modelname / "labels.txt", models / "ensemble")
        labels = 'label_filename: "labels.txt"'
    result = tensor("result", *(text if finishes else output), labels)
    (models / "ensemble" / "config.pbtxt").write_text(
        'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: 8\n'
        f"input [ {tensor('payload', *text)} ]\noutput [ {result} ]\n"
        f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}\n",
        encoding="utf-8",
    )


def one_by_one(config: Path, cpus: int) -> None:
    """Let a model run its requests one by one, each on one core.

    With shared runs of a ResNet-50 Triton's own HTTP has 0.91 to 0.95 times as many answers, and a
    p99 of up to 1.8 times: those who prepare pictures there have the same cores.
    """
    text = re.sub(r"dynamic_batching \{.*\}", "", config.read_text(encoding="utf-8"))
    config.write_text(re.sub(r"count: \d+", f"count: {cpus}", text), encoding="utf-8")


def python_model(
    model: Path,
    inputs: Mapping[str, tuple[str, str]],
    outputs: Mapping[str, tuple[str, str]],
    cpus: int,
) -> None:
    (model / "1").mkdir(parents=True)
    shutil.copy(BENCH / "rivals" / "triton_step.py", model / "1" / "model.py")
    sides = (
        f"{side} [ {', '.join(tensor(name, *kind) for name, kind in tensors.items())} ]\n"
        for side, tensors in (("input", inputs), ("output", outputs))
    )
    (model / "config.pbtxt").write_text(
        f'name: "{model.name}"\nbackend: "python"\nmax_batch_size: 8\n{"".join(sides)}'
        f"instance_group [ {{ count: {cpus} kind: KIND_CPU }} ]\n",
        encoding="utf-8",
    )


def tensor(name: str, datatype: str, dims: str, more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more} }}'


def step(model: str, inputs: list[str], outputs: list[str], names: Mapping[str, str] = {}) -> str:
    maps = "".join(
        f' {side}_map {{ key: "{name}" value: "{names.get(name, name)}" }}'
        for side, tensors in (("input", inputs), ("output", outputs))
        for name in tensors
    )
    return f'{{ model_name: "{model}" model_version: -1{maps} }}'


def fronts(port: int) -> list[str]:
    """Return the options that give Triton's fronts the ports from this one on."""
    return [
        f"--{front}-{kind}"
        for place, front in enumerate(("http", "grpc", "metrics"))
        for kind in ("address=127.0.0.1", f"port={port + place}")
    ]


RIVALS: Mapping[str, Callable[[Place], Contender]] = {
    "litserve": litserve,
    "triton": triton,
}
