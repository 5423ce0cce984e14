"""Emitted files, read by the CDK itself and by Terraform's own parser and provider."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tests.tool.conftest import python_with
from tests.tool.deploy.test_emit import OPTIONS, emitted

pytestmark = pytest.mark.slow

CDK = "aws-cdk-lib==2.275.0"
PARSER = "tfparse==0.6.22"
PROVIDER = "cdktf-cdktf-provider-aws==21.22.1"  # made from the schema of the AWS provider 6.25.0
OF_TERRAFORM = {"depends_on", "lifecycle"}  # of each resource


def test_the_cdk_makes_the_same_template(tmp_path: Path) -> None:
    if not shutil.which("node"):
        pytest.skip("the CDK needs Node.js")
    python = python_with(tmp_path / "cdk", CDK)
    _, app = emitted(tmp_path, "cdk", *OPTIONS["variants"])
    subprocess.run(
        [python, app],
        env={**os.environ, "CDK_OUTDIR": str(tmp_path / "out")},
        check=True,
        capture_output=True,
        timeout=120,
    )
    made = json.loads((tmp_path / "out" / "mine.template.json").read_text())
    template = json.loads((tmp_path / "app.template.json").read_text())
    for document in (made, template):
        for one in document["Resources"].values():  # the CDK sorts them
            one["Properties"].get("Tags", []).sort(key=itemgetter("Key"))
    assert made["Resources"] == template["Resources"]
    assert set(made["Resources"]) >= {"Model", "Model2", "Alarm3", "Endpoint", "Policy3"}


def test_terraform_s_syntax_is_read_as_it_was_meant(tmp_path: Path) -> None:
    python = python_with(tmp_path / "parser", PARSER)
    (tmp_path / "plan").mkdir()
    _, file = emitted(tmp_path / "plan", "terraform", *OPTIONS["variants"])
    program = f"import json, tfparse; print(json.dumps(tfparse.load_from_path('{file.parent}')))"
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, timeout=60)
    found = json.loads(done.stdout)
    for kind, labelled in json.loads(file.read_text())["resource"].items():
        read = {one["__tfmeta"]["path"]: one for one in found[kind]}
        assert read.keys() == {f"{kind}.{label}" for label in labelled}
        for label, body in labelled.items():
            assert read[f"{kind}.{label}"].keys() >= body.keys()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The package with all resources of the provider; it is read, not run."""
    folder = tmp_path_factory.mktemp("provider")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary=:all:", "--dest", folder, PROVIDER),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    if done.returncode:
        pytest.skip(f"{PROVIDER} cannot be had here: {done.stderr[-300:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as found:
        yield found


@cache
def classes(provider: zipfile.ZipFile, kind: str) -> dict[str, dict[str, tuple[str, bool]]]:
    """Return the blocks of a resource: by name their arguments, with type and necessity."""
    module = f"cdktf_cdktf_provider_aws/{kind.removeprefix('aws_')}/__init__.py"
    found = {}
    for one in ast.parse(provider.read(module)).body:
        if isinstance(one, ast.ClassDef):
            init = next(
                (
                    part
                    for part in one.body
                    if isinstance(part, ast.FunctionDef) and part.name == "__init__"
                ),
                None,
            )
            if init:
                takes = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
                found[one.name] = {
                    argument.arg: (ast.unparse(argument.annotation or argument), default is None)
                    for argument, default in takes
                }
    return found


def faults(
    blocks: Mapping[str, Mapping[str, tuple[str, bool]]], name: str, body: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what the provider would refuse in a block."""
    arguments = blocks[name]
    for key, (_, needed) in arguments.items():
        if needed and key not in body:
            yield f"{name} lacks {key}"
    for key, value in body.items():
        if key not in arguments:
            yield f"{name} has no {key}"
            continue
        kind = arguments[key][0]
        inner = next((one for one in blocks if f"'{one}'" in kind), "")
        if inner:
            several = "typing.Sequence" in kind
            for part in value if isinstance(value, list) else [value]:
                yield from faults(blocks, inner, part)
            if isinstance(value, list) and len(value) > 1 and not several:
                yield f"{name} has one {key} at most"
        elif any(
            isinstance(value, type_) is not (word in kind)
            for type_, word in ((list, "typing.Sequence"), (Mapping, "typing.Mapping"))
        ):
            yield f"{name}: {key} is {value!r}, not {kind}"


def resources(folder: Path, *options: str) -> Iterator[tuple[str, dict[str, Any]]]:
    code, file = emitted(folder, "terraform", *options)
    assert code == 0
    for kind, labelled in json.loads(file.read_text())["resource"].items():
        for body in labelled.values():
            yield kind, {key: value for key, value in body.items() if key not in OF_TERRAFORM}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "pool"])
def test_the_provider_knows_each_argument(
    name: str, provider: zipfile.ZipFile, tmp_path: Path
) -> None:
    (tmp_path / "model.tar.gz").touch()
    for kind, body in resources(tmp_path, *OPTIONS[name]):
        main = "".join(word.title() for word in kind.removeprefix("aws_").split("_"))
        assert list(faults(classes(provider, kind), main, body)) == []


def test_the_provider_s_arguments_are_really_compared(
    provider: zipfile.ZipFile, tmp_path: Path
) -> None:
    kind = "aws_sagemaker_endpoint_configuration"
    (body,) = [one for name, one in resources(tmp_path, *OPTIONS["serverless"]) if name == kind]
    (variant,) = body["production_variants"]
    variant["serverless_config"]["concurrency"] = variant["serverless_config"].pop(
        "max_concurrency"
    )
    main = "SagemakerEndpointConfiguration"
    assert list(faults(classes(provider, kind), main, body)) == [
        f"{main}ProductionVariantsServerlessConfig lacks max_concurrency",
        f"{main}ProductionVariantsServerlessConfig has no concurrency",
    ]
