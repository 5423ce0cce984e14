"""`conformance IMAGE`, on a real Docker engine: images of others, and this project's."""

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

IMAGES = Path(__file__).parent / "images"
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
REQUEST = '{"x": 1}'
SLOW = '{"x": 3}'


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flask", {"start.exec-form", "ping.loading", "stop.sigterm"}),
        ("litserve", {"stop.sigterm"}),
        ("bentoml", {"ports.range"}),
        ("article", {"ping.loading", "sizes.largest", "stop.drain", "ping.broken"}),
    ],
)
def test_what_is_found_in_others(
    name: str,
    expected: set[str],
    models: None,
    built: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The README in their folder says from where each fault is known."""
    (tmp_path / "request.json").write_text(REQUEST)
    (tmp_path / "slow.json").write_text(SLOW)
    if name == "article":
        built("own", PROJECT)  # which its Dockerfile names
    image = built(name, IMAGES / name)
    code, outcomes = examined(
        *(capsys, image, "--body", tmp_path / "request.json"),
        *("--slow-body", tmp_path / "slow.json", "--start-timeout=120"),
    )
    assert (code, failed(outcomes)) == (1, expected)


def test_this_project_s_image_keeps_the_contract(
    models: None, built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("resnet", "bert_base"):
        shutil.copytree(PROJECT / "model_repository" / name, tmp_path / name, symlinks=False)
    code, outcomes = examined(capsys, built("own", PROJECT), "--multi-model", tmp_path)
    assert (code, failed(outcomes)) == (0, set())
    assert {name for name, outcome in outcomes.items() if outcome != "pass"} == {
        *("start.read-only-model", "deadlines.slow", "multi-model.full")
    }


def test_an_image_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_engine()
    assert main(["conformance", "no-such-image-here:1"]) == 2
    assert "there is no image 'no-such-image-here:1' here" in capsys.readouterr().err
