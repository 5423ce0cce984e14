"""`sagemaker-emulator emulate`: Run a container as Amazon SageMaker does, and answer boto3."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import threading
from contextlib import ExitStack

from sagemaker_emulator.archive import work_folder
from sagemaker_emulator.commands.options import (
    add_container,
    model_folder,
    refuse_wrong,
    seconds,
    variables,
)
from sagemaker_emulator.emulate.contract import REGION
from sagemaker_emulator.emulate.endpoint import Endpoint, failure_reason
from sagemaker_emulator.emulate.multi_model import Models
from sagemaker_emulator.emulate.service import Service, make_web_server
from sagemaker_emulator.host.containers import Container, Image, Remote, Start, container_of
from sagemaker_emulator.host.health import FAILED, Health, hint_for
from sagemaker_emulator.host.limits import MB, VARIANT, Limits
from sagemaker_emulator.trouble import Trouble

PORT = 8090
SERVERLESS_BODY = 4 * MB
MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
LOG = logging.getLogger("sagemaker_emulator")
say = LOG.info


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_container(parser)
    add = parser.add_argument
    add("--port", type=int, default=PORT, help=f"where boto3 is answered (default: {PORT})")
    add("--host", default="127.0.0.1", help="on which address (default: 127.0.0.1)")
    add("--serverless", action="store_true", help="requests have at most 4 MB")
    add("--ping-every", type=seconds, default=Limits.ping_every_s, help="seconds (5)")


def run(options: argparse.Namespace) -> int:
    """Start the container, answer until Ctrl-C or a failure, stop it; return the exit code."""
    if options.multi_model and options.model:
        raise Trouble("--multi-model does not go with --model; leave one out")
    refuse_wrong(options)
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOG.handlers, LOG.propagate = [terminal], False
    LOG.setLevel(logging.INFO)
    with ExitStack() as stack:
        return serve(options, stack)


def serve(options: argparse.Namespace, stack: ExitStack) -> int:
    """Answer boto3 until Ctrl-C, or until the container has failed."""
    # A port that is taken is known before a long start.
    listening = stack.enter_context(listen(options.host, options.port))
    endpoint = begin(options, stack)
    web = make_web_server(Service(endpoint).app(), listening)
    threading.Thread(target=web.serve_forever, args=(0.1,), daemon=True).start()
    stack.callback(web.shutdown)
    wait_until_in_service(endpoint.health)
    host, port = listening.getsockname()[:2]
    url = f"http://{host}:{port}"
    say(
        f'InService: boto3.client("sagemaker-runtime", endpoint_url="{url}", '
        f'region_name="{REGION}").invoke_endpoint(EndpointName=…); or '
        f"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME={url} AWS_REGION={REGION}"
    )
    endpoint.health.thread.join()
    raise Trouble(f"{VARIANT}: {endpoint.health.reason}")


def begin(options: argparse.Namespace, stack: ExitStack) -> Endpoint:
    """Start the container, which is stopped with the stack, and ping it."""
    limits = Limits(
        start_s=options.start_timeout,
        ping_every_s=options.ping_every,
        answer_s=options.timeout,
        stop_s=options.stop_timeout,
        max_body=SERVERLESS_BODY if options.serverless else Limits.max_body,
    )
    folder = stack.enter_context(work_folder())
    model, models = model_folder(options.model, folder), None
    environment = variables(options.env)
    if options.multi_model:
        models = folder / "models"
        models.mkdir()
        environment.setdefault(MULTI_MODEL, "true")
    how = Start(
        VARIANT, lambda line: say(f"{VARIANT} | {line}"), environment, model, models, limits.stop_s
    )
    container = container_of(options.what, how)
    stack.callback(stop, container)
    verb = "pinging" if isinstance(container, Remote) else "starting"
    say(f"{VARIANT}: {verb} {options.what}")
    container.start()
    health = Health(container, ("/ping", "/models") if models else ("/ping",), limits)
    stack.callback(health.done.set)
    endpoint = Endpoint(container, health, limits)
    if models:
        endpoint.models = Models(options.multi_model, models, container, limits)
        stack.callback(endpoint.models.close)
    health.thread.start()
    return endpoint


def stop(container: Container) -> None:
    """Stop a container, and say how it went."""
    if isinstance(container, Image) and not container.ended():
        say(f"{VARIANT}: stopping")
    if how := container.stop():
        say(f"{VARIANT}: {how}")


def wait_until_in_service(health: Health) -> None:
    """Wait for the first good ping; raise Trouble where there is none."""
    health.changed.wait()
    if health.state == FAILED:
        reasons = (failure_reason(health), hint_for(health.reason))
        raise Trouble("; ".join(filter(None, reasons)))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise Trouble where there can be none."""
    try:
        return socket.create_server((host, port), backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:  # the last of a name such as `a..b`
        raise Trouble(
            f"port {port} of {host}: {error}; name another one with --port, or --host"
        ) from error
