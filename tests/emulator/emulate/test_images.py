"""`emulate IMAGE`, on a real Docker engine; the container is a small program in Perl."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sagemaker_emulator.__main__ import main

from tests.support.docker import docker, skip_without_engine
from tests.support.emulate import emulated, end

pytestmark = pytest.mark.image

TAG = "sagemaker-emulator-tested"
SERVE = r"""#!/usr/bin/perl
use IO::Socket::INET;
$SIG{TERM} = sub { exit 0 } unless $ENV{DEAF};
my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 64, ReuseAddr => 1) or die;
$| = 1;
print "arguments: @ARGV\n";
while (1) {
    my $caller = $server->accept or next;
    my $length = 0;
    while (my $line = <$caller>) {
        $length = $1 if $line =~ /^content-length: *(\d+)/i;
        last if $line eq "\r\n";
    }
    read $caller, my $body, $length if $length;
    my $writable = open(my $made, ">", "/opt/ml/model/made") ? "true" : "false";
    open(my $file, "<", "/opt/ml/model/weights"); my $weights = <$file> // "";
    my $answer = "{\"user\": $<, \"writable\": $writable, \"weights\": \"$weights\", " .
        "\"greeting\": \"$ENV{GREETING}\", \"size\": $length}";
    print $caller "HTTP/1.1 200 OK\r\nContent-Length: " . length($answer) . "\r\n\r\n$answer";
    close $caller;
}
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that runs as another user unless it is run as root."""
    skip_without_engine()
    folder = tmp_path_factory.mktemp("image")
    (folder / "serve").write_text(SERVE)
    (folder / "serve").chmod(0o755)
    (folder / "Dockerfile").write_text(
        'FROM debian:bookworm-slim\nCOPY serve /server\nENTRYPOINT ["/server"]\nUSER 1000\n'
    )
    docker("build", "--network", "host", "--tag", TAG, folder)
    yield TAG
    docker("image", "rm", "--force", TAG, check=False)


@pytest.fixture(autouse=True)
def _no_container_is_left(image: str) -> Iterator[None]:
    yield
    assert not left()


def left() -> str:
    return docker(*("ps", "--all", "--quiet", "--filter", "name=sagemaker-emulator-"))


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-image-here:1", "`docker pull` of 'no-such-image-here:1' failed"),
        ("debian:bookworm-slim", "the image needs a program `serve` on PATH"),
    ],
)
def test_an_image_that_cannot_be_started(
    name: str, message: str, capsys: pytest.CaptureFixture[str], image: str
) -> None:
    assert main(["emulate", name, "--port=0"]) == 2
    said: Any = capsys.readouterr()
    assert message in said.err, said
