"""TensorRT engines, with a fake trtexec and a fake nvidia-smi: the real ones need a GPU."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from container.repository.tensorrt_engines import NoEngine, provide
from tests.conftest import PROJECT, start


class Machine:
    """A machine with a GPU and a TensorRT; it notes every engine that is built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.is_now("NVIDIA L4, 8.9", "v101300")

    def is_now(self, gpu: str, version: str, exit_code: int = 0) -> None:
        self._program("nvidia-smi", f'echo "{gpu}"')
        self._program(
            "trtexec",
            f'echo "&&&& RUNNING TensorRT.trtexec [TensorRT {version}] [b1] # trtexec $*"\n'
            '[ "$1" = --help ] && exit 0\n'
            f'echo "$*" >> "{self.folder}/builds"\n'
            'for option; do case $option in --saveEngine=*) echo plan > "${option#*=}" ;; esac; '
            f"done\nexit {exit_code}",
        )

    def _program(self, name: str, lines: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (self.folder / name).chmod(0o755)

    def builds(self) -> list[dict[str, str]]:
        file = self.folder / "builds"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [
            dict(option.removeprefix("--").partition("=")[::2] for option in line.split())
            for line in lines
        ]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(machine.folder), prepend=":")
    return machine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The project's models with small files for weights, and one of a user's own; as links."""
    folder, links = tmp_path / "models", tmp_path / "repository"
    for model in (PROJECT / "model_repository").iterdir():
        shutil.copytree(model, folder / model.name, ignore=shutil.ignore_patterns("*.onnx"))
        (folder / model.name / "1").mkdir(exist_ok=True)
        (folder / model.name / "1" / "model.onnx").write_text(f"weights of {model.name}")
    (folder / "double" / "1").mkdir(parents=True)
    links.mkdir()
    for model in folder.iterdir():
        (links / model.name).symlink_to(model)
    return links


def made(engines: Path, repository: Path) -> Path:
    """Build what is missing for a container, each of which has a repository of its own."""
    own = repository.with_name("own")
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(repository, own, symlinks=True)
    return provide(engines, own, lambda line: None)


def test_an_engine_per_model_with_the_shapes_of_its_configuration(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    folder = made(tmp_path / "engines", repository)
    assert folder.name == "NVIDIA-L4-8.9-TensorRT-101300"
    builds = {Path(build["onnx"]).parents[1].name: build for build in machine.builds()}
    assert set(builds) == {"resnet", "yolov5", "bert_base"}
    for name, build in builds.items():
        assert "fp16" in build
        config: Any = text_format.Parse(
            (folder / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
        )
        assert (config.platform, config.backend) == ("tensorrt_plan", "")
        assert (folder / name / "1" / "model.plan").read_text() == "plan\n"
        largest = dict(part.split(":") for part in build["maxShapes"].split(","))
        least = dict(part.split(":") for part in build["minShapes"].split(","))
        assert set(largest) == {tensor.name for tensor in config.input}
        for tensor in config.input:
            batch, *dims = map(int, largest[tensor.name].split("x"))
            assert batch == config.max_batch_size
            assert int(least[tensor.name].split("x")[0]) == 1
            assert [d for d in tensor.dims if d > 0] in (dims, [])
    assert (folder / "resnet" / "labels.txt").is_file()
    assert (folder / "bert_base" / "tokenizer" / "vocab.txt").is_file()


def test_the_repository_leads_to_the_engines(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    folder = provide(tmp_path / "engines", repository, lambda line: None)
    for name in ("resnet", "yolov5", "bert_base"):
        assert (repository / name).samefile(folder / name)
    assert (repository / "double").resolve() == tmp_path / "models" / "double"


def test_a_container_without_a_model_leaves_its_engine_to_the_others(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    made(tmp_path / "engines", repository)
    machine.builds()
    (repository / "yolov5").rename(tmp_path / "elsewhere")
    made(tmp_path / "engines", repository)
    (tmp_path / "elsewhere").rename(repository / "yolov5")
    made(tmp_path / "engines", repository)
    assert machine.builds() == []


def test_a_model_whose_folder_has_another_name_has_the_engine_of_its_own(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "models" / "resnet").rename(tmp_path / "models" / "model")
    (repository / "resnet").unlink()
    (repository / "resnet").symlink_to(tmp_path / "models" / "model")
    folder = provide(tmp_path / "engines", repository, lambda line: None)
    assert len(machine.builds()) == 3
    assert (repository / "resnet").resolve() == folder / "resnet"
    assert (folder / "resnet" / "config.pbtxt").is_file()


def test_a_model_without_a_configuration_stays_as_it_is(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    made(tmp_path / "engines", repository)  # of what was there before
    assert len(machine.builds()) == 3
    (tmp_path / "models" / "resnet" / "config.pbtxt").unlink()
    said: list[str] = []
    provide(tmp_path / "engines", repository, said.append)
    assert machine.builds() == []
    assert (repository / "yolov5").resolve().is_relative_to(tmp_path / "engines")
    assert "resnet: it has no config.pbtxt, and stays as it is" in said
    assert (repository / "resnet").resolve() == tmp_path / "models" / "resnet"


def test_what_fits_is_not_built_again(machine: Machine, repository: Path, tmp_path: Path) -> None:
    first = made(tmp_path / "engines", repository)
    assert len(machine.builds()) == 3
    assert made(tmp_path / "engines", repository) == first
    assert machine.builds() == []


@pytest.mark.parametrize(
    "now", [("NVIDIA A10G, 8.6", "v101300"), ("NVIDIA L4, 8.9", "v101400")], ids=["gpu", "version"]
)
def test_another_gpu_or_tensorrt_has_engines_of_its_own(
    machine: Machine, repository: Path, tmp_path: Path, now: tuple[str, str]
) -> None:
    first = made(tmp_path / "engines", repository)
    machine.builds()
    machine.is_now(*now)
    assert made(tmp_path / "engines", repository) != first
    assert len(machine.builds()) == 3
    assert (first / "resnet" / "1" / "model.plan").is_file(), "the others stay"


def test_new_weights_have_a_new_engine(machine: Machine, repository: Path, tmp_path: Path) -> None:
    made(tmp_path / "engines", repository)
    machine.builds()
    (repository / "resnet" / "1" / "model.onnx").write_text("other weights")
    made(tmp_path / "engines", repository)
    assert [Path(b["onnx"]).parents[1].name for b in machine.builds()] == ["resnet"]


def test_a_build_that_fails_leaves_nothing_that_looks_whole(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    machine.is_now("NVIDIA L4, 8.9", "v101300", exit_code=3)
    with pytest.raises(NoEngine, match="trtexec ended with 3"):
        made(tmp_path / "engines", repository)
    machine.builds()
    machine.is_now("NVIDIA L4, 8.9", "v101300")
    made(tmp_path / "engines", repository)
    assert len(machine.builds()) == 3


def test_serve_says_what_is_missing_where_there_is_no_gpu(tmp_path: Path) -> None:
    endpoint = start(tmp_path, TENSORRT_ENGINES=str(tmp_path / "engines"))
    assert endpoint.process.wait(30) == 1
    assert "serve: there is no trtexec" in endpoint.log.read_text()


def test_serve_gives_the_engines_to_nvidia_s_triton(
    machine: Machine, repository: Path, tmp_path: Path
) -> None:
    """A folder laid out as /opt/tritonserver is, whose server prints where its models lie."""
    home = tmp_path / "tritonserver"
    (home / "bin").mkdir(parents=True)
    server = home / "bin" / "tritonserver"
    server.write_text(
        "#!/bin/sh\n"
        "for option; do\n"
        '  case $option in --model-repository=*) readlink -f "${option#*=}"/* ;; esac\n'
        "done\n"
        "exit 7\n"
    )
    server.chmod(0o755)
    endpoint = start(
        tmp_path,
        TENSORRT_ENGINES=str(tmp_path / "engines"),
        MODEL_REPOSITORY=str(repository),
        PATH=f"{home / 'bin'}:{os.environ['PATH']}",
    )
    assert endpoint.process.wait(30) == 7
    (folder,) = (tmp_path / "engines").glob("NVIDIA*")
    for name in ("bert_base", "resnet", "yolov5"):
        assert f"{folder / name}\n" in endpoint.log.read_text()
    assert json.loads((folder / "resnet" / "engine.json").read_text())["onnx_sha256"]
