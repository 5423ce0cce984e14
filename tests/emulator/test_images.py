"""`emulate IMAGE` and `conformance IMAGE`, on a real Docker engine.

The container is a small program in Perl, but for this project's own image.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sagemaker_emulator.__main__ import main

from tests.conftest import PROJECT
from tests.support.docker import docker, skip_without_engine
from tests.support.emulate import emulated, end

pytestmark = pytest.mark.image

SERVE = r"""#!/bin/sh
{first}
exec perl -e '
use IO::Socket::INET;
$SIG{{TERM}} = sub {{ exit 0 }};
my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 64, ReuseAddr => 1) or die;
$| = 1;
print "arguments: @ARGV\n";
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
    my $writable = open(my $made, ">", "/opt/ml/model/made") ? "true" : "false";
    open(my $file, "<", "/opt/ml/model/weights"); my $weights = <$file> // "";
    my $answer = "{{\"user\": $<, \"writable\": $writable, \"weights\": \"$weights\", " .
        "\"greeting\": \"$ENV{{GREETING}}\", \"size\": $length}}";
    print $caller "HTTP/1.1 $status\r\nContent-Length: " . length($answer) . "\r\n\r\n$answer";
    close $caller;
}}' "$@"
"""
Build = Callable[[str, Path], str]


def write_image(folder: Path, first: str = "", line: str = "") -> Path:
    """Write an image that runs as another user unless it is run as root."""
    (folder / "serve").write_text(SERVE.format(first=first))
    (folder / "serve").chmod(0o755)
    (folder / "Dockerfile").write_text(
        f"FROM debian:bookworm-slim\nCOPY serve /usr/local/bin/serve\nUSER 1000\n{line}\n"
    )
    return folder


def left() -> str:
    return docker("ps", "--all", "--quiet", "--filter", "name=sagemaker-emulator-")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
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
    assert not left()


@pytest.fixture(scope="module")
def image(built: Build, tmp_path_factory: pytest.TempPathFactory) -> str:
    entry = 'ENTRYPOINT ["/usr/local/bin/serve"]'
    return built("tested", write_image(tmp_path_factory.mktemp("image"), line=entry))


# emulate


def test_an_image_is_started_as_the_service_does(image: str, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("heavy")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "weights", "weights")
    with emulated(
        tmp_path, *(image, "--model", tmp_path / "model.tar.gz", "--env", "GREETING=hello")
    ) as running:
        body, _ = running.invoke(b"abc")
        assert json.loads(body) == {
            "user": 0,
            "writable": False,
            "weights": "heavy",
            "greeting": "hello",
            "size": 3,
        }
        assert "AllTraffic | arguments: serve" in running.lines
        assert end(running) == 130
        assert "stopped within" in running.lines
    assert not left()


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        ("emulate", "no-such-image-here:1", "`docker pull` of 'no-such-image-here:1' failed"),
        ("emulate", "debian:bookworm-slim", "the image needs a program `serve` on PATH"),
        ("conformance", "no-such-image-here:1", "`docker pull` of 'no-such-image-here:1' failed"),
    ],
)
def test_an_image_that_cannot_be_started(
    command: str, name: str, message: str, capsys: pytest.CaptureFixture[str], image: str
) -> None:
    port = ["--port=0"] if command == "emulate" else []
    assert main([command, name, *port]) == 2
    assert message in capsys.readouterr().err
    assert not left()


# conformance

PLANTED = {  # what `serve` does first, a line of the Dockerfile, and the check that finds it
    "": ("", "", set[str]()),
    "writes": ("echo > /opt/ml/model/cache || exit 1", "", {"start.ready"}),
    "port": (
        "",
        "LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true",
        {"start.ready"},
    ),
}


def examined(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, dict[str, str]]:
    """Return the exit code and what came of each check."""
    code = main(["conformance", *map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)["checks"]
    return code, {one["check"]: one["outcome"] for one in found}


def failed(outcomes: dict[str, str]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome == "fail"}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_of_an_image(
    fault: str, built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, line, expected = PLANTED[fault]
    write_image(tmp_path, first, line)
    (tmp_path / "model").mkdir()
    image = built(f"planted-{fault or 'nothing'}", tmp_path)
    start = f"--start-timeout={10 if expected else 300}"
    code, outcomes = examined(capsys, image, "--model", tmp_path / "model", start)
    assert (code, failed(outcomes)) == (int(bool(expected)), expected)


def test_this_project_s_image_keeps_the_contract(
    models: None,
    built: Build,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("resnet", "bert_base"):
        shutil.copytree(PROJECT / "model_repository" / name, tmp_path / name, symlinks=False)
    text = {"modelname": "bert_base", "payload": {"text": "The [MASK] is blue."}}
    bodies = {"body": text, "slow-body": {"requests": [text] * 80}}
    files = tmp_path_factory.mktemp("bodies")
    for name, value in bodies.items():
        (files / name).write_text(json.dumps(value))
    code, outcomes = examined(
        *(capsys, built("own", PROJECT), "--multi-model", tmp_path),
        *(f"--{name}={files / name}" for name in bodies),
        *(f"--stream-body={files / 'slow-body'}", "--stream-accept=application/jsonlines"),
    )
    assert (code, failed(outcomes)) == (0, set())
    assert {name for name, outcome in outcomes.items() if outcome != "pass"} == {"multi-model.full"}
