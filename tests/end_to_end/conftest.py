"""What tests of the whole container share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from tests.conftest import PROJECT, Endpoint
from tests.support.docker import TAG, build, docker, skip_without_engine
from tests.support.front import front
from tests.support.sequences import ask, container, lay_out


@pytest.fixture
def small_repository(tmp_path: Path, models: None) -> Path:
    return write_small_repository(tmp_path)


def write_small_repository(folder: Path) -> Path:
    name = "bert_base"
    shutil.copytree(PROJECT / "model_repository" / name, folder / "repository" / name)
    return folder / "repository"


def write_own_client(folder: Path, repository: Path) -> None:
    """Write the README's example as it stands there, and its model, which doubles numbers."""
    blocks = (PROJECT / "README.md").read_text().split("```")
    source = next(b.removeprefix("python\n") for b in blocks if b.startswith("python\n"))
    config = next(b.partition("\n")[2] for b in blocks if 'name: "double"' in b)
    (folder / "clients").mkdir()
    (folder / "clients" / "double.py").write_text(source)
    (repository / "double" / "1").mkdir(parents=True)
    (repository / "double" / "config.pbtxt").write_text(config)
    graph = helper.make_graph(
        [helper.make_node("Add", ["INPUT", "INPUT"], ["OUTPUT"])],
        "double",
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["batch", "n"])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["batch", "n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, repository / "double" / "1" / "model.onnx")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A container whose metrics and log are read."""
    with front(tmp_path_factory.mktemp("seen"), MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The container with stateful and decoupled models."""
    folder = tmp_path_factory.mktemp("stateful")
    with container(folder, lay_out(folder), CANARY_INTERVAL="60") as endpoint:
        assert endpoint.call("/ping").status == 200
        # Behind the probes of the start.
        for model in ("down", "crawling"):
            answer = ask(endpoint, {"modelname": model, "payload": {"number": [1]}})
            assert answer.json["result"] == [1]
        yield endpoint


@pytest.fixture(scope="session")
def engine() -> None:
    skip_without_engine()


@pytest.fixture(scope="session")
def image(engine: None, models: None) -> Iterator[str]:
    build(TAG)
    yield TAG
    docker("image", "rm", "--force", TAG, check=False)
