"""The container image, its users and parts, on a real Docker engine; skipped without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from container.image import audit
from tests.conftest import PICTURES, PROJECT, free_ports, picture, wait_for
from tests.end_to_end.conftest import write_own_client
from tests.end_to_end.test_remote_triton import X, make_models, triton_in
from tests.support import readme
from tests.support.docker import LOCKED, TAG, Container, build, docker, running

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("engine")]

BIN = Path(sys.executable).parent
LARGEST = 1.5e9  # bytes, with the weights of all three models
LARGEST_FRONT = 0.8e9
LARGEST_GPU = 4e9


def assert_readme(container: Container) -> None:
    for command, shown in readme.requests()[:-1]:  # the last is of a model of the reader's own
        came = readme.run(command, f"http://127.0.0.1:{container.port}")
        assert readme.same(came, shown), came


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [BIN / "hadolint", PROJECT / "Dockerfile"], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode()


def test_its_structure(image: str) -> None:
    subprocess.run(
        [
            *(BIN / "container-structure-test", "test", "--image", image),
            *("--config", PROJECT / "tests" / "end_to_end" / "image_structure.yaml"),
        ],
        check=True,
        timeout=1800,
    )


def test_it_is_small_enough_for_a_laptop(image: str) -> None:
    size = int(docker("image", "inspect", "--format", "{{.Size}}", image))
    assert size < LARGEST


def test_it_runs_as_sagemaker_runs_it(image: str, tmp_path: Path) -> None:
    """`docker run IMAGE serve`, root, model data read-only.

    On the host's network: the engine's proxy would take connections for a port that is closed.
    """
    ports = free_ports(4)
    with running(
        image,
        *("--user", "0:0", "--volume", f"{tmp_path}:/opt/ml/model:ro", "--network", "host"),
        *("--env", f"SAGEMAKER_BIND_TO_PORT={ports[0]}"),
        *("--env", f"SAGEMAKER_SAFE_PORT_RANGE={ports[1]}-{ports[-1]}"),
        command=("serve",),
        port=ports[0],
    ) as container:
        assert_readme(container)
        assert not {"tool", "emulator"} & set(container.inside("ls").split())
        wait_for(lambda: container.state()["Health"]["Status"] == "healthy", "healthy")
        # What loses its parent becomes a child of process 1, and must not stay as a zombie.
        container.inside("sh", "-c", "(sleep 0.2 &)")
        names = ("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null; true")
        wait_for(lambda: "(sleep)" not in container.inside(*names), "the end of the orphan")
        assert "serve" in container.inside("cat", "/proc/1/cmdline")
        assert container.stop() == 0


def test_it_runs_locked_down_and_with_64_mb_of_shared_memory(image: str) -> None:
    """Nothing writable but a noexec /tmp, and no capabilities."""
    with running(image, *LOCKED, "--env", "SAGEMAKER_BIND_TO_PORT=9090", port=9090) as container:
        assert "noexec" in container.inside("grep", " /tmp ", "/proc/mounts")
        assert " 64M " in container.inside("df", "-h", "/dev/shm")
        assert container.inside("id", "-u").strip() == "1000"
        assert_readme(container)
        container.inside("/opt/triton-dispatcher/.venv/bin/python", "-m", "container.health")
        # One text whose logits alone would need 20 MB is refused, and everything goes on.
        answer = container.ask(modelname="bert_base", payload={"text": "[MASK] " * 170})
        assert answer.status == 507
        assert "--shm-size" in answer.json["error"]["message"]
        assert container.call("/ping").status == 200
        assert container.stop() == 0


def test_without_dev_shm_as_sagemaker_serverless_runs_it(image: str) -> None:
    """And as any user, as on OpenShift."""
    nothing = ("--ipc", "none", *LOCKED, "--user", "1000740000:0")
    with running(image, *nothing, "--env", "SERVERLESS=true", command=("serve",)) as container:
        assert "No such file" in container.inside("sh", "-c", "ls -d /dev/shm 2>&1; true")
        assert container.inside("id", "-u").strip() == "1000740000"
        assert "serve: SERVERLESS: shared memory is in /tmp/" in container.logs()
        assert_readme(container)
        img = {"img": picture(PICTURES / "coffee.png")}
        assert container.ask(modelname="resnet", payload=[img] * 4).status == 200
        masks = {"text": "[MASK] " * 150}
        assert container.ask(modelname="bert_base", payload=masks).status == 200
        assert container.call("/invocations", b" " * (4 * 2**20 + 1)).status == 413
        assert container.stop() == 0
    with running(image, *nothing, command=("serve",), ready=False) as container:
        wait_for(lambda: not container.state()["Running"], container.logs)
        assert container.state()["ExitCode"] == 1
        assert "SERVERLESS=true uses a folder in RUN_DIR instead" in container.logs()


def test_the_front_alone_answers_as_the_lambda_adapter_asks_it(image: str, tmp_path: Path) -> None:
    """Without a Triton of its own, /dev/shm, and anything that can be written but /tmp."""
    tag, (port,) = f"{TAG}-lambda", free_ports(1)
    build(tag, "--target", "lambda")
    make_models(tmp_path)
    try:
        with (
            triton_in(tmp_path, "a") as triton,
            running(
                tag,
                *("--network", "host", "--ipc", "none", *LOCKED),
                *("--env", f"TRITON_URL=127.0.0.1:{triton.ports[0]}"),
                *("--env", f"SAGEMAKER_BIND_TO_PORT={port}"),
                port=port,
                ready=False,
            ) as container,
        ):
            wait_for(lambda: answers(container, "/v2/health/live"), container.logs)
            wait_for(lambda: answers(container, "/ping"), container.logs)
            came = container.ask(modelname="plus", payload=X)
            assert came.json["result"]["outputs"][0]["data"] == [2, 3, 4]
            inside = container.inside("sh", "-c", "ls /usr/sbin/nginx .venv/lib/python3*/*; true")
            assert "pytriton" not in inside
            assert "cannot access '/usr/sbin/nginx'" in inside
            assert not container.inside("ls", "/opt/extensions"), "ADAPTER brings it"
            assert container.stop() == 0
        assert int(docker("image", "inspect", "--format", "{{.Size}}", tag)) < LARGEST_FRONT
    finally:
        docker("image", "rm", "--force", tag, check=False)


def answers(container: Container, path: str) -> bool:
    try:
        return container.call(path).status == 200
    except ConnectionError:
        return False


def test_root_without_capabilities_serves_what_is_mounted(
    image: str, small_repository: Path, tmp_path: Path
) -> None:
    write_own_client(tmp_path, small_repository)
    with running(
        image,
        *("--volume", f"{small_repository}:/models:ro", "--env", "MODEL_REPOSITORY=/models"),
        *("--volume", f"{tmp_path / 'clients'}:/clients:ro", "--env", "CLIENTS_PATH=/clients"),
        *("--user", "0:0", *LOCKED),
    ) as container:
        answer = container.ask(modelname="double", payload={"numbers": [1, 2.5]})
        assert answer.json == {"modelname": "double", "result": [2.0, 5.0]}


FAKE_BASE = r"""
FROM debian:bookworm-slim
RUN mkdir -p /opt/tritonserver/bin /opt/tritonserver/backends/onnxruntime \
 && printf '%s\n' '#!/bin/sh' '[ "$1" = --help ] && exit' 'echo "STARTED $*"' \
      'echo "PYTHON $(command -v python3)"' 'exec sleep 600' > /opt/tritonserver/bin/tritonserver \
 && chmod +x /opt/tritonserver/bin/tritonserver
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
"""


def test_on_a_base_with_nvidia_s_triton_that_one_is_used(image: str, tmp_path: Path) -> None:
    """A base laid out as NVIDIA's image is: that itself cannot be had without an image registry."""
    base, tag = f"{TAG}-base", f"{TAG}-native"
    (tmp_path / "Dockerfile").write_text(FAKE_BASE)
    docker("build", "--tag", base, tmp_path)
    build(tag, "--build-arg", f"BASE={base}", "--build-arg", "MODELS=bert_base")
    try:
        with running(tag, ready=False) as container:
            wait_for(lambda: "PYTHON" in container.logs(), "Triton's start")
            log = container.logs()
            assert "serve: Triton: NVIDIA's, in /opt/tritonserver" in log
            assert "--backend-directory=/opt/tritonserver/backends" in log
            assert "PYTHON /usr/bin/python3" in log, "Triton's Python is the image's own"
            packages = container.inside("sh", "-c", "ls .venv/lib/python3*/site-packages")
            assert "pytriton" not in packages, "no second Triton"
            models = container.inside("ls", "model_repository", "/licenses/models")
            assert "bert_base" in models
            assert "yolov5" not in models, "it was left out"
    finally:
        docker("image", "rm", "--force", tag, base, check=False)


# Prints which library is missing where CUDA is to run a model, and where its libraries are loaded.
LOAD_CUDA = """
import ctypes, sys
from pathlib import Path
from backends.onnxruntime.session import open_model, session_options
from backends.onnxruntime.session_settings import session_settings
file = Path("model_repository/bert_base/1/model.onnx")
open_model(file, session_options(session_settings({})), [("CUDAExecutionProvider", {})])
for path in Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/lib/lib*.so*"):
    try:
        ctypes.CDLL(path)
    except OSError as error:
        print("\\n", error)
"""


def test_one_for_gpus_answers_on_a_cpu_too(image: str) -> None:
    """On a machine with a GPU it finds all of CUDA: here only the driver is missing."""
    tag = f"{TAG}-gpu"
    build(tag, "--build-arg", "GPU=cuda13")
    try:
        with running(tag, *LOCKED, "--shm-size", "1g") as container:
            assert_readme(container)
            said = container.inside("env", "ORT_DISABLE_TELEMETRY=1", PIP, "-c", LOAD_CUDA)
            missing = re.findall(r"(lib\S+): cannot open", said)
            assert len(missing) > 1
            assert set(missing) == {"libcuda.so.1"}
            assert "NVIDIA_VISIBLE_DEVICES=all" in container.inside("env")
            licences = container.inside("cat", "/licenses/README.md")
            assert re.search(r"nvidia-cudnn-cu13 .*NVIDIA-Proprietary", licences)
            assert not re.search(r"^\| onnxruntime ", licences, re.MULTILINE)
        assert int(docker("image", "inspect", "--format", "{{.Size}}", tag)) < LARGEST_GPU
    finally:
        docker("image", "rm", "--force", tag, check=False)


PIP = "/opt/triton-dispatcher/.venv/bin/python"
LIST = "/licenses/sbom.cdx.json"


def inside(image: str, *command: str) -> str:
    return docker("run", "--rm", "--entrypoint", command[0], image, *command[1:])


@pytest.fixture(scope="module")
def text(image: str) -> str:
    return inside(image, "cat", LIST)


@pytest.fixture(scope="module")
def parts(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["components"]
    return found


def by_kind(parts: list[dict[str, Any]], kind: str) -> dict[str, str]:
    return {
        one["name"].lower().replace("_", "-"): one["version"]
        for one in parts
        if one.get("purl", "").startswith(f"pkg:{kind}/")
    }


def test_it_has_the_python_packages_that_pip_sees(image: str, parts: list[dict[str, Any]]) -> None:
    seen = json.loads(inside(image, "env", "HOME=/tmp", PIP, "-m", "pip", "list", "--format=json"))
    names = {one["name"].lower().replace("_", "-"): one["version"] for one in seen}
    version = names.pop("triton-dispatcher")
    assert by_kind(parts, "pypi") == names
    assert {"openvino", "nvidia-pytriton", "onnxruntime"} < names.keys()
    assert version == json.loads(inside(image, "cat", LIST))["metadata"]["component"]["version"]


def test_it_has_the_packages_that_dpkg_sees(image: str, parts: list[dict[str, Any]]) -> None:
    lines = inside(image, "env", "COLUMNS=300", "dpkg", "--list").splitlines()
    seen = {
        words[1].split(":")[0]: words[2] for line in lines if (words := line.split())[0] == "ii"
    }
    assert by_kind(parts, "deb") == seen
    assert {"nginx", "python3.11", "libc6"} < seen.keys()


def test_the_system_has_no_known_vulnerability(
    image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor what the Dockerfile gives today, where the layers of the build's cache are older."""
    tag = "triton-dispatcher:system"
    try:
        if audit.main(["--image", image]):
            build(tag, "--no-cache", "--target", "system")
            capsys.readouterr()
            assert audit.main(["--image", tag]) == 0, capsys.readouterr()
    finally:
        docker("image", "rm", "--force", tag, check=False)
    said = capsys.readouterr().out
    if "not checked" in said:
        pytest.skip(said)


OWNERS = "for one in /proc/[0-9]*; do echo $(stat -c '%u %g' $one) $(cat $one/comm); done 2>&1"
KEPT = ("engines", "models", "tokenizers")


def test_by_default_it_runs_as_user_1000(image: str, tmp_path: Path) -> None:
    """Every process; only caches can be written to, and a new volume cannot, until it is given."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    os.chown(jobs, 1000, 1000)
    tmp_path.chmod(0o755)
    with running(
        image, "--volume", f"{jobs}:/jobs", "--env", "JOBS_DIR=/jobs", "--shm-size", "1g"
    ) as container:
        processes = container.inside("sh", "-c", OWNERS).splitlines()
        owners = {tuple(line.split()[:2]) for line in processes if line and "No such" not in line}
        assert owners == {("1000", "0")}
        # The supervisor and gunicorn are "python", and each instance of a model is a stub.
        names = {line.split()[2][:15] for line in processes if len(line.split()) == 3}
        assert names >= {"python", "nginx", "tritonserver", "triton_python_b"}
        # What 64 MB of shared memory would not hold.
        assert "one instance" not in container.logs()
        masks = {"text": "[MASK] " * 150}
        assert container.ask(modelname="bert_base", payload=masks).status == 200
        assert (jobs / "waiting").stat().st_uid == 1000
        version = container.call("/v2").json["version"]
        (listed,) = (
            one
            for one in json.loads(container.inside("cat", "/licenses/sbom.cdx.json"))["components"]
            if one["name"] == "tritonserver"
        )
        assert listed["version"] == version, "no file of Triton's wheel says which one it is"
        for name in KEPT:
            container.inside("touch", f".venv/{name}/made")
        refused = "touch .venv/x clients/x model_repository/x /usr/x /licenses/x /x; true"
        assert container.inside("sh", "-c", refused).count("Permission denied") == 6
        assert container.stop() == 0


@pytest.mark.parametrize("user", ["1234:1234", "1000740000:0"])
def test_any_user_reads_what_is_needed(image: str, user: str) -> None:
    """The second is a user of OpenShift, whose group may write to the caches."""
    show = "id -u; find / -xdev -path /proc -prune -o ! -readable -print 2>/dev/null; " + "; ".join(
        f"test -w .venv/{name} && echo {name}" for name in KEPT
    )
    show += "; true"
    said = docker("run", "--rm", "--user", user, "--entrypoint", "sh", image, "-c", show).split()
    number, group = user.split(":")
    assert said[0] == number
    assert [word for word in said if word in KEPT] == ([*KEPT] if group == "0" else [])
    assert not [word for word in said if word.startswith(("/opt", "/licenses", "/usr/sbin"))]
