"""`sagemaker-emulator emulate`: Run a container as Amazon SageMaker does, and answer boto3."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import threading
from contextlib import ExitStack
from functools import partial

from sagemaker_emulator.commands.lines import Lines
from sagemaker_emulator.commands.options import (
    add_container,
    count,
    model_folder,
    refuse_wrong,
    seconds,
    variables,
    work_folder,
)
from sagemaker_emulator.emulate.asynchronous import AsyncCalls
from sagemaker_emulator.emulate.contract import FIRST_VARIANT, REGION, variants_of
from sagemaker_emulator.emulate.endpoint import Endpoint, Variant
from sagemaker_emulator.emulate.multi_model import Models
from sagemaker_emulator.emulate.places import place_of, s3_client
from sagemaker_emulator.emulate.service import Service, failure_reason, server
from sagemaker_emulator.emulate.transform import LINE, MULTI, NONE, SINGLE, Job, inputs, transform
from sagemaker_emulator.host.containers import Container, Image, Remote, Start, container_of
from sagemaker_emulator.host.health import FAILED, Health, hint_for
from sagemaker_emulator.host.limits import MB, Limits
from sagemaker_emulator.trouble import Trouble

PORT = 8090
SERVERLESS_BODY = 4 * MB
MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
SECOND_S = 1.0
SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_container(parser)
    add = parser.add_argument
    add("--port", type=int, default=PORT, help=f"where boto3 is answered (default: {PORT})")
    add("--host", default="127.0.0.1", help="on which address (default: 127.0.0.1)")
    add("--serverless", action="store_true", help="requests have at most 4 MB")
    add(
        "--variant",
        nargs=3,
        action="append",
        default=[],
        metavar=("NAME", "WEIGHT", "IMAGE|URL|."),
        help=f"a further production variant; the first is {FIRST_VARIANT}, with weight 1",
    )
    add(
        "--memory",
        type=size,
        default=0,
        metavar="SIZE",
        help="room for loaded models, by the size of their files, such as 500m or 4g",
    )
    add("--ping-every", type=seconds, default=Limits.ping_every_s, help="seconds (5)")
    asynchronous = parser.add_argument_group("asynchronous calls")
    asynchronous.add_argument("--async-output", metavar="S3", help="s3://BUCKET/PREFIX for answers")
    asynchronous.add_argument("--async-failure", default="", metavar="S3", help="for failures")
    asynchronous.add_argument(
        "--async-concurrency", type=count, default=4, metavar="N", help="at the same time (4)"
    )
    asynchronous.add_argument(
        "--s3-endpoint-url",
        default="",
        metavar="URL",
        help="another S3 server than AWS's (default: AWS_ENDPOINT_URL_S3)",
    )
    batch = parser.add_argument_group("batch transform")
    batch.add_argument(
        "--transform",
        nargs=2,
        metavar=("INPUT", "OUTPUT"),
        help="send a folder or s3://… and end, instead of answering boto3",
    )
    batch.add_argument("--strategy", choices=(SINGLE, MULTI), default="")
    batch.add_argument("--split-type", choices=(NONE, LINE), default=NONE)
    batch.add_argument("--assemble-with", choices=(NONE, LINE), default=NONE)
    batch.add_argument("--content-type", default="", help="of the requests")
    batch.add_argument("--accept", default="", help="the type of the answers")
    batch.add_argument("--max-payload-mb", type=count, default=0, metavar="N", help="(6)")
    batch.add_argument("--max-concurrent", type=count, default=0, metavar="N", help="(1)")


def size(text: str) -> int:
    """Read 4g as bytes."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.lower())
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected one such as 500m or 4g")
    return int(match[1]) * SIZES[match[2]]


def run(options: argparse.Namespace) -> int:
    """Start all, answer until Ctrl-C or a failure, stop all; return the exit code."""
    if options.multi_model and (options.transform or options.model):
        raise Trouble("--multi-model goes with neither --transform nor --model; leave one out")
    refuse_wrong(options)
    with ExitStack() as stack:
        running = Running(options, stack)
        if options.transform:
            return running.transform()
        return running.serve()


class Running:
    """An endpoint as it runs; what `stack` holds is stopped at the end, the last first.

    Args:
        options: of the command line.
        stack: takes what is to be undone.

    """

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options, self.stack = options, stack
        self.limits = Limits(
            start_s=options.start_timeout,
            ping_every_s=options.ping_every,
            answer_s=options.timeout,
            stop_s=options.stop_timeout,
            max_body=SERVERLESS_BODY if options.serverless else Limits.max_body,
        )
        self.job = Job(
            strategy=options.strategy,
            max_payload_mb=options.max_payload_mb,
            at_once=options.max_concurrent,
            split=options.split_type,
            assemble=options.assemble_with,
            content_type=options.content_type,
            accept=options.accept,
        )
        self.endpoint = Endpoint([], self.limits)
        self.say = Lines(sys.stdout)
        if not options.transform:  # a port that is taken is known before a long start
            self.listening = stack.enter_context(listen(options.host, options.port))
        self.folder = work_folder(stack)
        self.model = model_folder(options.model, self.folder)
        self.environment = self.variables()
        # What is wrong with S3 or the input is known before a long start, too.
        self.async_calls = self.asynchronous()
        self.places = [place_of(one, options.s3_endpoint_url) for one in options.transform or ()]
        if self.places:
            inputs(self.places[0])
        for name, weight, what in variants_of(self.options.what, self.options.variant):
            self.endpoint.variants.append(self.variant(name, weight, what))

    def variables(self) -> dict[str, str]:
        """Return the environment of the containers."""
        found = self.job.environment() if self.options.transform else {}
        if self.options.multi_model:
            found[MULTI_MODEL] = "true"
        return found | variables(self.options.env)

    def variant(self, name: str, weight: float, what: str) -> Variant:
        """Start a container; it is stopped at the end."""
        models = self.folder / "models" / name if self.options.multi_model else None
        if models:
            models.mkdir(parents=True)
        log, stop_s = partial(self.say.about, f"{name} |"), self.limits.stop_s
        how = Start(name, log, self.environment, self.model, models, stop_s)
        container = container_of(what, how)
        self.stack.callback(self.stop, name, container)
        say = partial(self.say.about, f"{name}:")
        say(f"{'pinging' if isinstance(container, Remote) else 'starting'} {what}")
        container.start()
        paths = ("/ping", "/models") if models else ("/ping",)
        health = Health(container, paths, say, self.limits)
        self.stack.callback(health.stop)
        found = Variant(name, weight, container, health)
        if models:
            found.models = Models(
                self.options.multi_model, models, container, self.limits, self.options.memory, say
            )
            self.stack.callback(found.models.close)
        health.start()
        return found

    def stop(self, name: str, container: Container) -> None:
        """Stop a container, and say how it went."""
        say = partial(self.say.about, f"{name}:")
        if isinstance(container, Image) and not container.ended():
            say("stopping")
        if how := container.stop():
            say(how)

    def until_in_service(self) -> None:
        """Wait for all containers.

        Raises:
            Trouble: one has failed.
            OSError: nobody reads the output, or it cannot be written.

        """
        for variant in self.endpoint.variants:
            while not variant.health.changed.wait(SECOND_S):
                self.refresh()
            self.look(variant)
        self.refresh()

    def refresh(self) -> None:
        """Raise the OSError after which nothing can be shown."""
        if self.say.gone:
            raise self.say.gone

    def look(self, variant: Variant) -> None:
        """Raise Trouble where a container has failed."""
        health = variant.health
        if health.state == FAILED:
            reason = health.reason
            hint = hint_for(reason)
            text = f"{failure_reason(variant)}{f'; {hint}' * bool(hint)}"
            raise Trouble(text if not health.was_in_service else f"{variant.name}: {reason}")

    def asynchronous(self) -> AsyncCalls | None:
        """Return what takes asynchronous calls, where there is a place for their answers."""
        options = self.options
        if not options.async_output:
            return None
        calls = AsyncCalls(
            self.endpoint,
            s3_client(options.s3_endpoint_url),
            options.async_output,
            options.async_failure,
            options.async_concurrency,
            self.say,
        )
        self.stack.callback(calls.close)
        return calls

    def serve(self) -> int:
        """Answer boto3 until Ctrl-C, or until a container has failed."""
        service = Service(self.endpoint, self.async_calls, self.say)
        web = server(service.app(), self.listening)
        thread = threading.Thread(target=web.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        self.stack.callback(web.shutdown)
        self.until_in_service()
        host, port = self.listening.getsockname()[:2]
        url = f"http://{host}:{port}"
        self.say(
            f'InService: boto3.client("sagemaker-runtime", endpoint_url="{url}", '
            f'region_name="{REGION}").invoke_endpoint(EndpointName=…); or '
            f"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME={url} AWS_REGION={REGION}"
        )
        while True:
            for variant in self.endpoint.variants:
                variant.health.done.wait(SECOND_S / len(self.endpoint.variants))
                self.look(variant)
            self.refresh()

    def transform(self) -> int:
        """Run a batch transform job; return 1 where a file failed."""
        source, target = self.places
        self.until_in_service()
        code = min(1, transform(self.job, source, target, self.endpoint, self.say))
        self.refresh()
        return code


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        Trouble: the port is taken, or the address is not this machine's.

    """
    try:
        return socket.create_server((host, port), backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:  # the last of a name such as `a..b`
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise Trouble(
            f"port {port} of {host}: {why}; name another one with --port, or --host"
        ) from error
