"""`dispatcher dev` with the real server: what `new-model` wrote is served, and mended there."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import (
    PATIENCE_S,
    PICTURES,
    PROJECT,
    Answer,
    Endpoint,
    alive,
    descendants,
    free_ports,
    picture,
    wait_for,
)
from tests.support.models.onnx_models import scores
from tool.__main__ import main

pytestmark = pytest.mark.slow

IMG = {"img": picture(PICTURES / "coffee.png")}


@dataclass
class Dev:
    """The running command, and the terminal that it writes to."""

    folder: Path
    endpoint: Endpoint

    @property
    def screen(self) -> str:
        return self.endpoint.log.read_text()

    def after(self, change: Callable[[], object], *words: str) -> str:
        """Make a change, wait until all words stand on the screen in this order; return it."""
        begin = len(self.screen)
        change()

        order = re.compile(".*".join(map(re.escape, words)), re.DOTALL)
        wait_for(
            lambda: order.search(self.screen, begin),
            lambda: f"{words} in:\n{self.screen[begin:]}",
        )
        return self.screen[begin:]

    def ask(self, model: str, payload: Any, **more: Any) -> Answer:
        return self.endpoint.ask(modelname=model, payload=payload, **more)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    folder = tmp_path_factory.mktemp("dev") / "mine"
    source = scores(folder.parent / "small.onnx", ("n", 3, 24, 16), 5)
    assert main(["new-model", "small", "--from", str(source), "--into", str(folder)]) == 0
    assert main(["new-client", "double", "--into", str(folder)]) == 0
    assert main(["check", str(folder)]) == 0
    port, log = free_ports(1)[0], folder.parent / "screen"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PROJECT / "tool" / "dispatcher", "dev", folder, "--port", str(port)],
            env={**os.environ, "PYTHON": sys.executable},
            stdout=out,
            stderr=out,
            cwd=folder.parent,
        )
    dev = Dev(folder, Endpoint(port, process, log))
    try:
        dev.after(lambda: None, "dev: ready: POST http")
        yield dev
    finally:
        started = descendants(process.pid)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        wait_for(lambda: not alive(started), "the end of all processes")


def test_a_syntax_error_in_a_class_is_shown_and_the_class_before_it_serves(dev: Dev) -> None:
    file = dev.folder / "code" / "clients" / "double.py"
    good = file.read_text()
    said = dev.after(
        lambda: file.write_text(good + "def broken(:\n"),
        "dev: changed: code/clients/double.py",
        f"dev: {file} cannot be imported: SyntaxError: invalid syntax (double.py, line 13)",
        "hint: nothing was taken up: all clients are kept as they were",
        "what worked before is served until this is mended",
    )
    assert 'File "/' not in said.replace(f'File "{file}"', "")
    assert dev.ask("double", {"numbers": [1]}).json["result"] == [2]
    dev.after(lambda: file.write_text(good.replace(".tolist()", ".tolist() * 2")), "ready again")
    assert dev.ask("double", {"numbers": [1]}).json["result"] == [2, 2]
    dev.after(lambda: file.write_text(good), "ready again")


def test_a_failing_class_is_shown_with_its_lines_as_it_fails(dev: Dev) -> None:
    file = dev.folder / "code" / "clients" / "double.py"
    good = file.read_text()
    fails = """        print("asked for", numbers)
        if numbers[0] == 7:
            raise KeyError("seven")
        return"""
    bad = good.replace("        return", fails)
    dev.after(lambda: file.write_text(bad), "asked for [1. 2.]", "ready again")
    begin = len(dev.screen)
    dev.after(
        lambda: dev.ask("double", {"numbers": [7]}),
        f'File "{file}"',
        "KeyError: 'seven'",
        "POST /invocations double 500 client_failed",
    )
    # What it prints comes by another pipe than the log, before or after it.
    wait_for(lambda: "asked for [7.]" in dev.screen[begin:], lambda: dev.screen[begin:])
    dev.after(lambda: file.write_text(good), "ready again")


def test_a_wrong_configuration_is_shown_and_mended(dev: Dev) -> None:
    file = dev.folder / "small" / "config.pbtxt"
    good = file.read_text()
    dev.after(
        lambda: file.write_text(good.replace("max_batch_size", "max_batchsize")),
        "dev: changed: small/config.pbtxt",
        "dev: the model 'small' cannot be loaded: config.pbtxt:3 cannot be read",
        "write `max_batch_size` for `max_batchsize`",
    )
    dev.after(lambda: file.write_text(good.replace(": 8", ": 4")), "dev: ready again")
    model = dev.endpoint.call("/v2/models/small/config").json
    assert model["max_batch_size"] == 4


def test_labels_and_settings_are_read_again(dev: Dev) -> None:
    assert dev.ask("small", IMG).json["result"][0].endswith(":4")
    labels, file = dev.folder / "small" / "labels.txt", dev.folder / "small" / "dispatch.toml"
    dev.after(lambda: labels.write_text("a\nb\nc\nd\nmine\n"), "labels.txt", "dev: ready again")
    assert dev.ask("small", IMG).json["result"][0].endswith(":mine")
    good = file.read_text()
    dev.after(
        lambda: file.write_text(good + "crop = 5\n"), "`crop` is 5×5, but `images` takes 24×16"
    )
    assert dev.ask("small", IMG).status == 200
    dev.after(lambda: file.write_text(good), "dev: ready again")


def test_models_come_and_go(dev: Dev) -> None:
    source = scores(dev.folder.parent / "six.onnx", ("n", 3, 24, 16), 6)
    given = ["--from", str(source), "--into", str(dev.folder)]
    dev.after(lambda: main(["new-model", "more", *given]), "more/config.pbtxt", "dev: ready again")
    assert dev.ask("more", IMG).json["result"][0].endswith(":5")
    dev.after(
        lambda: (dev.folder / "more").rename(dev.folder.parent / "away"),
        "dev: changed: more/",
        "dev: ready again",
    )
    wait_for(lambda: dev.ask("more", IMG).status == 404, "the end of the model")


def test_ctrl_c_ends_all_of_it(dev: Dev) -> None:
    """The last test: nothing is left to be asked."""
    process = dev.endpoint.process
    started = descendants(process.pid)
    assert len(started) > 4
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert not alive(started)
    assert "dev: stopping" in dev.screen
    assert "Traceback" not in dev.screen[dev.screen.index("dev: stopping") :]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", dev.endpoint.port)) != 0


def test_a_port_that_is_taken_ends_it_with_the_server_s_words(tmp_path: Path) -> None:
    assert main(["new-client", "double", "--into", str(tmp_path / "mine")]) == 0
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [PROJECT / "tool" / "dispatcher", "dev", tmp_path / "mine", "--port", str(port)],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 1, done.stdout
    assert f"port {port} cannot be used" in done.stdout
    assert "the server has ended with exit code 1" in done.stdout
