"""Ask the models of a new endpoint once each, with their examples."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.tensors.client import examples_of
from tool.deploy.resources.aws import Aws, Refused
from tool.emulate.places import bucket_and_key
from tool.offline import composed, load_offline, settings_here
from tool.trouble import Trouble

CLIENTS = Path("code", "clients")
POLL_S = 2.0
ASYNC_S = 900.0
MOST_SHOWN = 100
NOT_FOUND = 404


@dataclass(frozen=True)
class Question:
    """A request of a model.

    Args:
        name: of the model.
        body: JSON.
        target: the archive on a multi-model endpoint.
        variant: that is asked, where there are several.
        may_be_absent: it is this project's own, which another image need not have.

    """

    name: str
    body: bytes
    target: str = ""
    variant: str = ""
    may_be_absent: bool = False


def questions_in(folder: Path | None) -> list[Question]:
    """Return a question for each model with an example.

    Args:
        folder: of the endpoint's models; None for those of the image.

    """
    settings = settings_here(**({"MODEL_DIR": str(folder)} if folder else {}))
    clients = [folder / CLIENTS] if folder and (folder / CLIENTS).is_dir() else []
    with composed(settings, folder, folder) as repository:
        registry = load_offline(repository, [*settings.clients_path, *clients])
        mine = {path.name for path in repository.iterdir()}
        return [
            Question(
                name,
                json.dumps({"modelname": name, "payload": examples[0]}).encode(),
                may_be_absent=folder is None,
            )
            for name, client in sorted(registry.clients.items())
            if (examples := examples_of(client)) and client.served_by in mine
        ]


def question_in(text: str, *, multi_model: bool) -> Question:
    """Read --ask: a JSON file; on a multi-model endpoint TARGET=FILE.

    Raises:
        Trouble: it is not that, or there is no such file.

    """
    target, equals, file = text.partition("=") if multi_model else ("", "=", text)
    if not equals:
        raise Trouble(f"--ask is {text!r}; expected TARGET=FILE, such as resnet.tar.gz=cat.json")
    try:
        body = Path(file).read_bytes()
        json.loads(body)
    except (OSError, ValueError) as error:
        raise Trouble(f"--ask {text}: {error}; expected a file with a request in JSON") from error
    return Question(target or file, body, target)


def ask_all(
    aws: Aws,
    endpoint: str,
    questions: Sequence[Question],
    output: str,
    say: Callable[[str], None],
) -> bool:
    """Ask, and say what came; return whether all was well.

    Args:
        aws: is asked.
        endpoint: that is in service.
        questions: are asked one after the other.
        output: where an asynchronous endpoint writes; empty for others.
        say: takes lines for the user.

    """
    well = True
    for question in questions:
        name = f"{question.name}{f' ({question.variant})' * bool(question.variant)}"
        begin = time.monotonic()
        try:
            answer = (asked_later if output else asked)(aws, endpoint, question)
        except Refused as error:
            if question.may_be_absent and error.status == NOT_FOUND:
                say(f"? {name}: not in this image")
                continue
            well = False
            say(f"! {name}: {error}")
            continue
        short = " ".join(answer.decode(errors="replace").split())[:MOST_SHOWN]
        say(f"> {name}: {short} ({time.monotonic() - begin:.1f} s)")
    return well


def asked(aws: Aws, endpoint: str, question: Question) -> bytes:
    members = {"TargetModel": question.target, "TargetVariant": question.variant}
    how = {key: value for key, value in members.items() if value}
    answer = aws.call(
        "sagemaker-runtime",
        "invoke_endpoint",
        EndpointName=endpoint,
        ContentType="application/json",
        Body=question.body,
        **how,
    )
    return bytes(answer["Body"].read())


def asked_later(aws: Aws, endpoint: str, question: Question) -> bytes:
    """Ask an asynchronous endpoint; its answer is read from S3, and removed there.

    Raises:
        Refused: the model fails, or does not answer in time.

    """
    answer = aws.call(
        "sagemaker-runtime",
        "invoke_endpoint_async",
        EndpointName=endpoint,
        ContentType="application/json",
        Body=question.body,
        InferenceId=str(uuid.uuid4()),
    )
    until = time.monotonic() + ASYNC_S
    places = {key: answer[key] for key in ("OutputLocation", "FailureLocation") if answer.get(key)}
    while time.monotonic() < until:
        for key, content in there(aws, places):
            if key == "FailureLocation":
                raise Refused("ModelError", content.decode(errors="replace"))
            return content
        time.sleep(POLL_S)
    raise Refused("Timeout", f"no answer within {ASYNC_S:.0f} s in {places['OutputLocation']}")


def there(aws: Aws, places: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the objects that are there, and remove them."""
    for key, address in places.items():
        bucket, name = bucket_and_key(address)
        try:
            content = aws.call("s3", "get_object", Bucket=bucket, Key=name)["Body"].read()
        except Refused as error:
            if error.code in {"NoSuchKey", "404", "AccessDenied"}:
                continue
            raise
        aws.call("s3", "delete_object", Bucket=bucket, Key=name)
        yield key, content
