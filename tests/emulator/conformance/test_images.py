"""`conformance IMAGE`, on a real Docker engine: images with a planted fault, and this project's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sagemaker_emulator.__main__ import main

from tests.conftest import PROJECT
from tests.support.docker import docker, skip_without_engine

pytestmark = pytest.mark.image

SERVE = r"""#!/bin/sh
{first}
exec perl -e '
use IO::Socket::INET;
$SIG{{TERM}} = sub {{ exit 0 }};
my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 64, ReuseAddr => 1) or die;
$| = 1;
print "it listens\n";
while (1) {{
    my $caller = $server->accept or next;
    my ($length, $path) = (0, "");
    while (my $line = <$caller>) {{
        $path ||= (split " ", $line)[1];
        $length = $1 if $line =~ /^content-length: *(\d+)/i;
        last if $line eq "\r\n";
    }}
    read $caller, my $body, $length if $length;
    my $status = $path =~ /^.(ping|invocations)$/ ? "200 OK" : "404 Not Found";
    print $caller "HTTP/1.1 $status\r\nContent-Length: 0\r\n\r\n";
    close $caller;
}}'
"""
PLANTED = {  # what `serve` does first, a line of the Dockerfile, and the check that finds it
    "": ("", "", set[str]()),
    "writes": ("echo > /opt/ml/model/cache || exit 1", "", {"start.read-only-model"}),
    "downloads": (
        "timeout 3 bash -c '</dev/tcp/ELSEWHERE/8080' || exit 1",
        "",
        {"start.no-network"},
    ),
    "shell": ("", "ENTRYPOINT exec /usr/local/bin/serve", {"start.exec-form"}),
    "label": (
        "",
        "LABEL com.amazonaws.sagemaker.capabilities.multi-model=true",
        {"image.labels"},
    ),
    "port": (
        "",
        "LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true",
        {"ports.bind"},
    ),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Build an image of a folder; return its name."""
    skip_without_engine()
    tags: list[str] = []

    def build(name: str, folder: Path) -> str:
        tags.append(f"sagemaker-emulator-{name}")
        docker("build", "--network", "host", "--tag", tags[-1], folder)
        return tags[-1]

    yield build
    for tag in tags:
        docker("image", "rm", "--force", tag, check=False)
    assert not docker("ps", "--all", "--quiet", "--filter", "name=sagemaker-emulator-")
    assert not docker("network", "ls", "--quiet", "--filter", "name=sagemaker-emulator-")


def examined(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, dict[str, str]]:
    """Return the exit code and what came of each check."""
    code = main(["conformance", *map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)["checks"]
    return code, {one["check"]: one["outcome"] for one in found}


def failed(outcomes: dict[str, str]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome == "fail"}


def write_image(folder: Path, first: str = "", line: str = "") -> Path:
    (folder / "serve").write_text(SERVE.format(first=first))
    (folder / "serve").chmod(0o755)
    (folder / "Dockerfile").write_text(
        f"FROM debian:bookworm-slim\nCOPY serve /usr/local/bin/serve\n{line}\n"
    )
    return folder


@pytest.fixture(scope="module")
def elsewhere(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that a container reaches unless it has no network."""
    image = built("elsewhere", write_image(tmp_path_factory.mktemp("elsewhere")))
    name = docker("run", "--detach", image, "serve").strip()
    yield docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", name).strip()
    docker("rm", "--force", name)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_of_an_image(
    fault: str,
    built: Any,
    elsewhere: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, line, expected = PLANTED[fault]
    write_image(tmp_path, first.replace("ELSEWHERE", elsewhere), line)
    (tmp_path / "model").mkdir()
    image = built(f"planted-{fault or 'nothing'}", tmp_path)
    code, outcomes = examined(capsys, image, "--model", tmp_path / "model", "--start-timeout=30")
    assert (code, failed(outcomes)) == (int(bool(expected)), expected)


def test_this_project_s_image_keeps_the_contract(
    models: None,
    built: Any,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("resnet", "bert_base"):
        shutil.copytree(PROJECT / "model_repository" / name, tmp_path / name, symlinks=False)
    text = {"modelname": "bert_base", "payload": {"text": "The [MASK] is blue."}}
    bodies = {"body": text, "slow-body": {"requests": [text] * 240}}
    files = tmp_path_factory.mktemp("bodies")
    for name, value in bodies.items():
        (files / name).write_text(json.dumps(value))
    code, outcomes = examined(
        *(capsys, built("own", PROJECT), "--multi-model", tmp_path),
        *(f"--{name}={files / name}" for name in bodies),
        *(f"--stream-body={files / 'slow-body'}", "--stream-accept=application/jsonlines"),
    )
    assert (code, failed(outcomes)) == (0, set())
    assert {name for name, outcome in outcomes.items() if outcome != "pass"} == {
        *("start.read-only-model", "multi-model.full")
    }


def test_an_image_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_engine()
    assert main(["conformance", "no-such-image-here:1"]) == 2
    assert "`docker pull` of 'no-such-image-here:1' failed" in capsys.readouterr().err
