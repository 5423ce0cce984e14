"""The server and its rivals: how each is started, asked and stopped.

Each rival is set up for the cores as its documentation recommends: one process per core with one
thread of ONNX Runtime each for pictures; for texts, where a batch pays, one process with all the
threads and the rival's own batching. All run the same work (`bench.work`) with the same libraries.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import load
from bench.processes import descendants
from bench.work import PROJECT, WORKS
from container.backends.shared_memory import FOLDER
from container.programs import ALLOCATOR
from container.triton import NoTriton, embedded

BENCH = Path(__file__).parent
PATIENCE_S = 180
BATCH = 16
SHM_PREFIX = f"bench_{os.getpid()}_"
"""Of what the rivals' Tritons have in shared memory."""


class Skipped(Exception):
    """A contender cannot be had here; the message says why."""


@dataclass
class Contender:
    """A server that answers one model's payload, or several models' where it is this server.

    Args:
        name: for the table.
        command: that starts it.
        port: that it listens on.
        path: that is asked.
        body: a JSON body around a payload.
        answer: the model's answer inside of the JSON that came.
        environment: variables besides those of this process.
        folder: where it is started, and keeps its log.
        helper: that does a part of its work, and is idle otherwise.

    """

    name: str
    command: list[str]
    port: int
    path: str
    body: Callable[[Any], Any]
    answer: Callable[[Any], Any]
    environment: Mapping[str, str]
    folder: Path
    helper: Contender | None = None
    process: subprocess.Popen[bytes] | None = None
    started: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """Its own, and its helper's: who works for it with all their children."""
        return [self.pid, *(self.helper.pids if self.helper else ())]

    @cached_property
    def log(self) -> Path:
        return self.folder / f"{self.name.replace(' ', '_')}.log"

    def request(self, payload: Any) -> bytes:
        """Return the bytes of a whole request."""
        return load.request(self.path, json.dumps(self.body(payload)).encode())

    def start(self) -> None:
        """Start it; it is not ready yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait(self, payload: Any, modelname: str, right: list[Any]) -> None:
        """Wait until the payload is answered as it should be.

        Raises:
            Skipped: it does not start, or answers something else.

        """
        asked, deadline = self.request(payload), time.monotonic() + PATIENCE_S
        status, body = 0, b""
        while time.monotonic() < deadline and self.process and self.process.poll() is None:
            status, body = load.once(self.port, asked)
            if status == 200:
                break
            time.sleep(0.2)
        if status != 200:
            shown = self.log.read_text(errors="replace")[-1500:]
            raise Skipped(f"it does not answer ({status} {body[:300]!r}); its log ends:\n{shown}")
        gist = WORKS[modelname].gist
        came = self.answer(json.loads(body))
        if gist(came) != gist(right):
            raise Skipped(f"it answers {came}, not {right}")
        self.started = descendants(self.pid)

    def stop(self) -> None:
        """Stop it, and everything that it has started."""
        if self.process is None:
            return
        self.started |= descendants(self.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in self.started:
            try:
                if os.getsid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        self.process = None


def tidy() -> None:
    """Remove from shared memory what Tritons have left that are stopped by now."""
    for left in FOLDER.glob(f"{SHM_PREFIX}*"):
        left.unlink(missing_ok=True)


PORTS = iter(range(21000 + os.getpid() % 7000, 32000))
"""Those that nobody was given yet: a server that is started does not listen at once."""


def free_port(count: int = 1) -> int:
    """Return the first of some neighbouring ports that nobody listens on, or was given."""
    neighbours: list[int] = []
    for port in PORTS:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                neighbours.clear()
                continue
        neighbours.append(port)
        if len(neighbours) == count:
            return neighbours[0]
    raise Skipped("no free ports")


def as_it_is(answer: Any) -> Any:
    return answer


def this_server(
    repository: Path, folder: Path, modelname: str, name: str = "this server"
) -> Contender:
    """Return `./serve` with its default settings and all the models of the repository."""
    port = free_port(10)
    return Contender(
        name,
        [str(PROJECT / "serve")],
        port,
        "/invocations",
        lambda payload: {"modelname": modelname, "payload": payload},
        lambda answer: answer["result"],
        {
            "PYTHON": sys.executable,
            "MODEL_REPOSITORY": str(repository),
            "CLIENTS_PATH": str(BENCH / "nothing"),
            "SAGEMAKER_BIND_TO_PORT": str(port),
            "SAGEMAKER_SAFE_PORT_RANGE": f"{port + 1}-{port + 9}",
            "TRITON_GRPC_PORT": str(port + 1),
        },
        folder,
    )


def also_asked(server: Contender, modelname: str) -> Contender:
    """Return this server, already started, for another model."""
    other = this_server(Path(), server.folder, modelname)
    other.port, other.process = server.port, server.process
    return other


def installed(name: str, cache: Path) -> Path:
    """Return the Python of a rival's own environment, made where it is missing.

    Raises:
        Skipped: its packages cannot be had.

    """
    requirements = BENCH / "requirements" / f"{name}.txt"
    home, python = cache / name, cache / name / "bin" / "python"
    stamp = home / "installed"
    if stamp.exists() and stamp.read_bytes() == requirements.read_bytes():
        return python
    shutil.rmtree(home, ignore_errors=True)
    uv = [sys.executable, "-m", "uv", "--quiet"]
    for command in (
        [*uv, "venv", "--python", sys.executable, str(home)],
        [
            *uv,
            "pip",
            "install",
            "--require-hashes",
            "--python",
            str(python),
            "-r",
            str(requirements),
        ],
    ):
        run(f"{name} cannot be installed", *command)
    shutil.copy(requirements, stamp)
    return python


def run(fault: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(f"{fault}: {done.stderr.strip()[-500:]}")


def environment(repository: Path, modelname: str, cpus: int) -> dict[str, str]:
    """Return what `bench.rivals` and `bench.work` read inside of a rival."""
    # A text's batch pays more than a second process does.
    workers = 1 if modelname == "bert_base" else cpus
    return {
        "BENCH_REPOSITORY": str(repository),
        "BENCH_MODEL": modelname,
        "BENCH_WORKERS": str(workers),
        "BENCH_THREADS": str(max(1, cpus // workers)),
        "BENCH_BATCH": str(BATCH if modelname == "bert_base" else 1),
        "PYTHONPATH": str(PROJECT),
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        # None of them is asked to report home, to look for updates or to fetch anything.
        "BENTOML_DO_NOT_TRACK": "True",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }


def litserve(repository: Path, cache: Path, modelname: str, cpus: int) -> Contender:
    python, port = installed("litserve", cache), free_port()
    return Contender(
        "LitServe",
        [str(python), str(BENCH / "rivals" / "litserve_app.py"), str(port)],
        port,
        "/predict",
        as_it_is,
        lambda answer: answer["result"],
        environment(repository, modelname, cpus),
        cache / "run",
    )


def bentoml(repository: Path, cache: Path, modelname: str, cpus: int) -> Contender:
    python, port = installed("bentoml", cache), free_port()
    variables = environment(repository, modelname, cpus)
    batched = variables["BENCH_BATCH"] != "1"
    return Contender(
        "BentoML",
        [
            *(str(python), "-m", "bentoml", "serve", "bench.rivals.bentoml_app:Rival"),
            *("--host", "127.0.0.1", "--port", str(port), "--working-dir", str(PROJECT)),
        ],
        port,
        "/predict",
        lambda payload: {"payloads" if batched else "payload": [payload] if batched else payload},
        lambda answer: answer[0] if batched else answer,
        {**variables, "BENTOML_HOME": str(cache / "run" / "bentoml")},
        cache / "run",
    )


def mlserver(repository: Path, cache: Path, modelname: str, cpus: int) -> Contender:
    python, port = installed("mlserver", cache), free_port(3)
    variables = environment(repository, modelname, cpus)
    folder = cache / "run" / "mlserver"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        # With one worker only, the work is done in the process that speaks HTTP, as recommended.
        "parallel_workers": int(variables["BENCH_WORKERS"]),
        "debug": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    batch = int(variables["BENCH_BATCH"])
    model = {"name": "rival", "implementation": "bench.rivals.mlserver_app.Rival"}
    batching = {"max_batch_size": batch, "max_batch_time": 0.01} if batch > 1 else {}
    (folder / "model-settings.json").write_text(json.dumps({**model, **batching}))
    return Contender(
        "MLServer",
        [str(python), "-m", "mlserver.cli.main", "start", str(folder)],
        port,
        "/v2/models/rival/infer",
        lambda payload: {"inputs": [text_tensor("payload", payload, [1, 1])]},
        lambda answer: json.loads(answer["outputs"][0]["data"][0]),
        variables,
        folder,
    )


def triton(repository: Path, cache: Path, modelname: str, cpus: int) -> Contender:
    """Return Triton by itself: its own HTTP, an ensemble, before and after in its Python backend.

    The model in the middle is served as by this server, with the same backend; see `one_by_one`.
    """
    folder = cache / "run" / "triton"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        program = embedded(folder)
    except NoTriton as error:
        raise Skipped(str(error)) from error
    lay_out_ensemble(folder / "models", repository, modelname, cpus)
    port = free_port(3)
    classes: dict[str, Any] = {"name": "result"}
    if modelname == "resnet":
        classes["parameters"] = {"classification": 3}
    return Contender(
        "Triton HTTP",
        [
            *(str(program.executable), f"--model-repository={folder / 'models'}"),
            *(*program.options, *fronts(port)),
            f"--backend-config=python,shm-region-prefix-name={SHM_PREFIX}",
        ],
        port,
        "/v2/models/ensemble/infer",
        lambda payload: {"inputs": [text_tensor("payload", payload, [1, 1])], "outputs": [classes]},
        (lambda answer: answer["outputs"][0]["data"])
        if modelname == "resnet"
        else lambda answer: json.loads(answer["outputs"][0]["data"][0]),
        {
            **environment(repository, modelname, cpus),
            **ALLOCATOR,
            **program.environment,
            "BENCH_PROJECT": str(PROJECT),
        },
        folder,
    )


def text_tensor(name: str, payload: Any, shape: list[int]) -> dict[str, Any]:
    """Return a payload, its one text, as a tensor of the Open Inference Protocol."""
    return {"name": name, "shape": shape, "datatype": "BYTES", "data": list(payload.values())}


# The tensors between the steps of the ensembles, without the batch's dimension.
TENSORS = {
    "resnet": ({"input": ("FP32", "3, 224, 224")}, ("FP32", "1000")),
    "yolov5": ({"images": ("FP32", "3, 640, 640")}, ("FP32", "25200, 85")),
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
    one_by_one(models / modelname, cpus)
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
        f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}\n"
    )


def one_by_one(model: Path, cpus: int) -> None:
    """Let a model whose runs are shared by a few run its requests by themselves, one on each core.

    With this server's shared runs of a ResNet-50 Triton's own HTTP has 0.91 to 0.95 times as many
    answers, and a p99 of up to 1.8 times: those who prepare pictures there have the same cores.
    """
    config = (model / "config.pbtxt").read_text()
    config, shared = re.subn(r"dynamic_batching \{ preferred_batch_size.*\}", "", config)
    if shared:
        (model / "config.pbtxt").write_text(re.sub(r"count: \d+", f"count: {cpus}", config))


def python_model(
    model: Path,
    inputs: Mapping[str, tuple[str, str]],
    outputs: Mapping[str, tuple[str, str]],
    cpus: int,
) -> None:
    (model / "1").mkdir(parents=True)
    shutil.copy(BENCH / "rivals" / f"triton_{model.name}.py", model / "1" / "model.py")
    sides = (
        f"{side} [ {', '.join(tensor(name, *kind) for name, kind in tensors.items())} ]\n"
        for side, tensors in (("input", inputs), ("output", outputs))
    )
    (model / "config.pbtxt").write_text(
        f'name: "{model.name}"\nbackend: "python"\nmax_batch_size: 8\n{"".join(sides)}'
        f"instance_group [ {{ count: {cpus} kind: KIND_CPU }} ]\n"
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


ARTICLE = "https://github.com/aws-samples/aws-sm-mmo.git"
SAMPLE = "AWS sample"
TORCH = "torch==2.13.0+cpu"  # the other builds are many times larger


def article(repository: Path, cache: Path, modelname: str, cpus: int) -> Contender:
    """Return the sample of AWS's article, on Triton with this project's backend and models.

    It is taken from the folder aws-sm-mmo of the cache, and fetched to there where it is missing.
    """
    sample, python, port = cache / "aws-sm-mmo", installed("article", cache), free_port(4)
    if not sample.exists():
        run("the sample cannot be fetched", "git", "clone", "--quiet", ARTICLE, str(sample))
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    run("no torch for the sample", *pip, TORCH)
    folder = cache / "run" / "article"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    try:
        program = embedded(folder)
    except NoTriton as error:
        raise Skipped(str(error)) from error
    for model, its in (("resnet", "resnet"), ("yolov5", "yolov5s"), ("bert_base", "bert_base")):
        copy = shutil.copytree(repository / model, folder / "models" / its, symlinks=True)
        one_by_one(copy, cpus)
        config = (copy / "config.pbtxt").read_text()
        (copy / "config.pbtxt").write_text(config.replace(f'"{model}"', f'"{its}"'))
    return Contender(
        SAMPLE,
        [
            *(str(python), str(BENCH / "rivals" / "article_app.py")),
            *(str(port), str(sample), str(repository / "bert_base" / "tokenizer"), str(folder)),
            *("env", *(f"{name}={value}" for name, value in program.environment.items())),
            *(str(program.executable), f"--model-repository={folder / 'models'}"),
            *(*program.options, *fronts(port + 1)),
            f"--backend-config=python,shm-region-prefix-name={SHM_PREFIX}",
        ],
        port,
        "/invocations",
        lambda payload: {"modelname": modelname, "payload": payload},
        lambda answer: answer["result"],
        {"PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1"},
        folder,
    )


def fronts(port: int) -> list[str]:
    """Return the options that give Triton's fronts the ports from this one on."""
    return [
        f"--{front}-{kind}"
        for place, front in enumerate(("http", "grpc", "metrics"))
        for kind in ("address=127.0.0.1", f"port={port + place}")
    ]


RIVALS: Mapping[str, Callable[[Path, Path, str, int], Contender]] = {
    "litserve": litserve,
    "bentoml": bentoml,
    "mlserver": mlserver,
    "triton": triton,
    "article": article,
}
