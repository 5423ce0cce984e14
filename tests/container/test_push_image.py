"""The push script, with a `docker` and an `aws` that note what they are asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.programs import write_program

REGISTRY = "123456789012.registry.example"
DOCKER = 'echo "docker $*" >> "$NOTES"; [ "$1" != login ] || cat >> "$NOTES"'
AWS = """
echo "aws $*" >> "$NOTES"
case "$2" in
  get-login-password) echo secret ;;
  describe-repositories) [ -z "$ABSENT" ] || exit 254; echo REGISTRY/$4 ;;
  create-repository) echo REGISTRY/$4 ;;
esac
""".replace("REGISTRY", REGISTRY)


def push(folder: Path, *arguments: str, absent: bool = False) -> tuple[int, str, list[str]]:
    """Return the exit code, what it printed, and what the two programs were asked."""
    write_program(folder / "docker", DOCKER)
    write_program(folder / "aws", AWS)
    notes = folder / "notes"
    done = subprocess.run(
        [PROJECT / "container" / "image" / "push-image", *arguments],
        env={
            "PATH": f"{folder}:/usr/bin:/bin",
            "NOTES": str(notes),
            "ABSENT": "yes" if absent else "",
        },
        check=False,
        capture_output=True,
        text=True,
    )
    asked = notes.read_text().splitlines() if notes.exists() else []
    return done.returncode, done.stdout.strip(), asked


@pytest.mark.parametrize("absent", [False, True])
def test_to_amazon_ecr_as_the_cli_is_configured(tmp_path: Path, absent: bool) -> None:
    code, printed, notes = push(tmp_path, "triton-dispatcher:gpu", absent=absent)
    target = f"{REGISTRY}/triton-dispatcher:gpu"
    assert (code, printed) == (0, target)
    assert f"docker login --username AWS --password-stdin {REGISTRY}" in notes
    assert "secret" in notes, "the password goes in by standard input, not by the command line"
    assert notes[-2:] == [f"docker tag triton-dispatcher:gpu {target}", f"docker push {target}"]
    assert any("create-repository" in note for note in notes) is absent


@pytest.mark.parametrize(
    ("target", "pushed"),
    [
        ("localhost:5000/some/where", "localhost:5000/some/where:latest"),
        ("registry.example/x:1.2", "registry.example/x:1.2"),
    ],
)
def test_to_any_registry(tmp_path: Path, target: str, pushed: str) -> None:
    code, _, notes = push(tmp_path)
    assert (code, notes) == (2, []), "without an image it says how it is used"
    code, printed, notes = push(tmp_path, "triton-dispatcher", target)
    assert (code, printed) == (0, pushed)
    assert notes[-1] == f"docker push {pushed}"
    assert not [note for note in notes if note.startswith("aws")]
