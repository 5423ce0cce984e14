"""Users of the image: 1000 by default, root where a platform wants it, and any other."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.conftest import write_own_client
from tests.support.docker import docker, running

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("engine")]

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
        assert container.stop()[0] == 0


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


def test_an_upgrade_says_what_belongs_to_another_user(image: str, tmp_path: Path) -> None:
    """Folders and files of root, which an earlier version of the image could use."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    keys = closed / "keys"
    keys.write_text(f"inference me {'0' * 64}\n")
    tmp_path.chmod(0o755)
    keys.chmod(0o600)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for variable, path, mode in (
        ("JOBS_DIR", jobs, "755"),
        ("API_KEYS_FILE", keys, "600"),
    ):
        options = ("--volume", f"{path}:/mine", "--env", f"{variable}=/mine")
        done = subprocess.run(
            ["docker", "run", "--rm", *options, image], check=False, capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        assert f"{variable} is '/mine'" in done.stderr
        assert f"'/mine' belongs to user 0 (mode {mode}), and this runs as user 1000" in done.stderr
        assert (
            "`chown` or `chmod -R u+rwX` what is mounted there, or run the container as user 0"
            in done.stderr
        )


def test_root_uses_folders_of_root(image: str, small_repository: Path, tmp_path: Path) -> None:
    """With the capabilities that Docker gives; those of the hosting service are in test_image."""
    write_own_client(tmp_path, small_repository)
    (tmp_path / "jobs").mkdir(mode=0o700)
    with running(
        image,
        *("--user", "0:0", "--volume", f"{small_repository}:/models:ro"),
        *("--env", "MODEL_REPOSITORY=/models", "--volume", f"{tmp_path / 'clients'}:/clients:ro"),
        *("--env", "CLIENTS_PATH=/clients", "--volume", f"{tmp_path / 'jobs'}:/jobs"),
        *("--env", "JOBS_DIR=/jobs"),
    ) as container:
        assert container.inside("id", "-u").strip() == "0"
        answer = container.ask(modelname="double", payload={"numbers": [1, 2.5]})
        assert answer.json["result"] == [2.0, 5.0]
        assert (tmp_path / "jobs" / "waiting").stat().st_uid == 0
