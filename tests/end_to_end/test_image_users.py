"""Users of the image: 1000 by default, root where a platform wants it, and any other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

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
