"""Clients that generators make of /openapi.json: imported, type-checked, and asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PICTURES, Endpoint
from tests.support.front import front
from tests.support.packages import modules_with, python_with

PYTHON = ("openapi-python-client==0.29.1", "mypy==2.4.1", "ruff==0.17.6")
TYPES, FETCH = "openapi-typescript@7.13.0", "openapi-fetch@0.17.0"
HEY_API = "@hey-api/openapi-ts@0.95.0"
TYPESCRIPT = "5.9.3"  # the last whose compiler is a module of JavaScript, which generators load
COFFEE = PICTURES / "coffee.png"
PROGRAM = """
import base64, io, json, sys
from pathlib import Path
from made import Client, models as m
from made.api.default import infer_resnet, infer_yolov5, list_models
from made.types import File

client, content = Client(base_url=sys.argv[1]), Path(sys.argv[2]).read_bytes()
picture, two = base64.b64encode(content).decode(), m.InferResnetParameters(top_k=2)

def ask(img: str) -> m.InferResnetResponse | m.ErrorBody | None:
    body = m.InferResnetRequest(m.InferResnetPicturePayload(img), parameters=two)
    return infer_resnet.sync(client=client, body=body)

texts, refused, models = ask(picture), ask("no picture"), list_models.sync(client=client)
raw = infer_yolov5.sync(
    client=client, body=File(io.BytesIO(content)), format_=m.InferYolov5Format.OBJECTS
)
assert isinstance(texts, m.InferResnetResponse)
assert isinstance(raw, m.InferYolov5Response)
assert isinstance(refused, m.ErrorBody)
assert isinstance(models, m.ModelList)
cup = raw.result[0]
assert isinstance(cup, m.InferYolov5FoundObject)
print(json.dumps({
    "texts": texts.result,
    "cup": [cup.label, cup.box.x1],
    "error": [refused.error.code, refused.error.hint],
    "models": [one.model_name for one in models.models],
}))

def mistakes() -> None:  # each is one to mypy, or its comment is
    m.InferResnetParameters(top_k="2")  # type: ignore[arg-type]
    m.InferResnetRequest(two)  # type: ignore[arg-type]
    two.colour  # type: ignore[attr-defined]
"""


def run(*command: object, cwd: Path) -> str:
    words = [str(one) for one in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def check_answers(text: str) -> None:
    """See what README shows of the same picture."""
    seen: dict[str, Any] = json.loads(text)
    assert [one.split(":", 1)[1] for one in seen["texts"]] == ["967:espresso", "968:cup"]
    assert seen["cup"] == ["cup", pytest.approx(170.3, abs=1)]
    assert seen["error"][0] == "bad_payload"
    assert "base64 of a" in seen["error"][1]
    assert {"resnet", "yolov5", "bert_base"} <= {*seen["models"]}


def make_python_client(site: Endpoint, folder: Path, *programs: str) -> Path:
    """Generate the package `made`, and check all types; return the interpreter for it."""
    python = python_with(*PYTHON)
    address = f"http://127.0.0.1:{site.port}/openapi.json"
    options = ("--output-path", "made", "--meta", "none")
    run(python, "-m", "openapi_python_client", "generate", "--url", address, *options, cwd=folder)
    kept = ("--cache-dir", python.parents[1] / "mypy")  # else it reads all packages each time
    command = [python, "-m", "mypy", *kept, "--strict", "made", *programs]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    *lines, _ = done.stdout.splitlines()
    own = "made/client.py"  # the generator's, whatever the document says
    assert not [one for one in lines if not one.startswith(own)], done.stdout[-3000:]
    return python


@pytest.mark.slow
def test_a_python_client_is_generated_and_asked(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    python = make_python_client(endpoint, tmp_path, "program.py")
    address = f"http://127.0.0.1:{endpoint.port}"
    check_answers(run(python, "program.py", address, COFFEE, cwd=tmp_path))


@pytest.mark.slow
def test_a_python_client_is_generated_whatever_models_are_called(tmp_path: Path) -> None:
    """Such as one whose name, parameter and label want to be HTML."""
    with front(tmp_path, "tests.support.browsing:build()") as site:
        python = make_python_client(site, tmp_path)
    paths = (tmp_path / "made" / "api" / "default").glob("[a-z]*.py")
    modules = [f"import made.api.default.{path.stem}" for path in paths]
    assert "import made.api.default.infer_img_src_x_onerror_alert_1" in modules
    run(python, "-c", "\n".join(modules), cwd=tmp_path)


@pytest.mark.slow
def test_typescript_clients_are_generated_and_asked(endpoint: Endpoint, tmp_path: Path) -> None:
    own = modules_with(TYPES, typescript=TYPESCRIPT) / "node_modules"
    (tmp_path / "node_modules").mkdir()
    fetch = modules_with(FETCH) / "node_modules" / "openapi-fetch"
    (tmp_path / "node_modules" / "openapi-fetch").symlink_to(fetch)
    address = f"http://127.0.0.1:{endpoint.port}"
    maker = own / "openapi-typescript" / "bin" / "cli.js"
    run("node", maker, f"{address}/openapi.json", "-o", "api.d.ts", cwd=tmp_path)
    (tmp_path / "program.mts").write_text(Path(__file__).with_suffix(".mts").read_text())
    compiler = ("node", own / "typescript" / "bin" / "tsc", "--strict", "--target", "es2022")
    run(*compiler, "--module", "nodenext", "program.mts", cwd=tmp_path)
    check_answers(run("node", "program.mjs", address, COFFEE, cwd=tmp_path))
    # Another generator, of functions.
    maker = modules_with(HEY_API, typescript=TYPESCRIPT) / "node_modules" / "@hey-api"
    made = ("openapi-ts/bin/run.js", "-i", f"{address}/openapi.json", "-o", "hey", "--no-log-file")
    run("node", maker / made[0], *made[1:], cwd=tmp_path)
    bundler = ("--module", "esnext", "--moduleResolution", "bundler", "--noEmit", "hey/index.ts")
    run(*compiler, *bundler, cwd=tmp_path)
    assert "export const inferResnet " in (tmp_path / "hey" / "sdk.gen.ts").read_text()
