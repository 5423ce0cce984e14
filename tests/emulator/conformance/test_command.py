"""`conformance`: its report in each form, its exit codes, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sagemaker_emulator.__main__ import main

from tests.conftest import PROJECT, free_ports, wait_for
from tests.emulator.conftest import PROGRAM


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program with long errors, which runs already."""
    port = str(free_ports(1)[0])
    folder = tmp_path_factory.mktemp("running")
    variables = {**os.environ, "SAGEMAKER_BIND_TO_PORT": port, "FAULT": "long errors"}
    variables["LOADING_S"] = "0.1"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, PROGRAM], env=variables, stdout=log, stderr=log)
    wait_for(lambda: "starts" in (folder / "log").read_text(), "the start")
    yield f"http://127.0.0.1:{port}"
    assert process.poll() is None, "a server that runs already is not stopped"
    process.kill()
    process.wait()


def body(folder: Path) -> str:
    (folder / "body.json").write_text('{"x": "good"}')
    return f"--body={folder / 'body.json'}"


def test_a_report_for_machines_and_one_for_people(
    running: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", running, body(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    by_name = {one["check"]: one for one in found["checks"]}
    assert found["summary"]["fail"] == 1
    assert by_name["errors.answered"]["outcome"] == "fail"
    assert "characters" in by_name["errors.answered"]["came"]
    for name in ("start.ready", "stop.sigterm", "stop.drain"):
        assert by_name[name]["outcome"] == "not applicable", name
    for one in found["checks"]:
        assert all(one[part] for part in ("asked", "came", "why", "fix")), one
    assert main(["conformance", running, body(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("pass  ping.time ") for line in lines)
    number = next(at for at, line in enumerate(lines) if line.startswith("FAIL  errors.answered"))
    said = [line.split()[0] for line in lines[number + 1 : number + 4]]
    assert said == ["asked:", "why:", "fix:"]
    assert ", 1 fail, " in lines[-1]


def test_without_a_good_request_what_needs_one_is_not_applicable(
    running: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["conformance", running, "--json"])
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    for name in ("invocations.answered", "concurrency.parallel", "ping.loading"):
        assert found[name]["outcome"] == "not applicable"
    assert any("--body FILE" in one["came"] for one in found.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:9/path"], "is no server's address"),
        ([str(PROJECT / "docs")], "has no program `serve`"),
        (["http://127.0.0.1:9", "--env=A=B"], "runs already"),
        ([".", "--env=A"], "expected NAME=VALUE"),
        ([".", "--body=no-such-file"], "No such file"),
        ([".", "--multi-model=no-such-folder"], "no folder"),
        ([".", "--model=no-such-archive"], "no folder and no archive"),
    ],
)
def test_what_cannot_be_run(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_server_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagemaker_emulator.conformance.subject.PATIENT_S", 0.2)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert main(["conformance", url]) == 2
    assert "does not answer: GET /ping: no connection" in capsys.readouterr().err


def test_a_container_that_never_gets_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serve").write_text("#!/bin/sh\necho no weights\nexit 3\n")
    (tmp_path / "serve").chmod(0o755)
    assert main(["conformance", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["checks"]
    failed = [one for one in found if one["outcome"] == "fail"]
    assert [one["check"] for one in failed] == ["start.ready"]
    assert "exit code 3" in failed[0]["came"]
    assert "no weights" in failed[0]["came"]


@pytest.mark.slow
def test_this_project_keeps_the_contract(
    models: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"modelname": "bert_base", "payload": {"text": "The [MASK] is blue."}}
    # Four of them are in flight at SIGTERM, and have 19 s: on a slow machine too.
    bodies = {"body": text, "slow-body": {"requests": [text] * 80}}
    for name, value in bodies.items():
        (tmp_path / name).write_text(json.dumps(value))
    code = main(
        [
            *("conformance", str(PROJECT), "--env", f"PYTHON={sys.executable}", "--json"),
            *(f"--{name}={tmp_path / name}" for name in bodies),
            *(f"--stream-body={tmp_path / 'slow-body'}", "--stream-accept=application/jsonlines"),
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0, [one for one in found["checks"] if one["outcome"] == "fail"]
    passed = {one["check"] for one in found["checks"] if one["outcome"] == "pass"}
    wanted = {"ping.loading", "streaming.unbuffered", "stop.drain"}
    assert not [one for one in found["checks"] if one["check"] in wanted - passed]
