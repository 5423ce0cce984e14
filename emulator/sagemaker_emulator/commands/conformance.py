"""`sagemaker-emulator conformance`: Check a container against SageMaker's contract."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sagemaker_emulator.archive import work_folder
from sagemaker_emulator.commands.options import (
    add_container,
    count,
    model_folder,
    refuse_wrong,
    variables,
)
from sagemaker_emulator.conformance.exchange import Request, Settings
from sagemaker_emulator.conformance.report import FAIL, Result, as_json, summary
from sagemaker_emulator.conformance.run import Examination
from sagemaker_emulator.host.limits import Limits


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_container(parser)
    requests = parser.add_argument_group("requests to /invocations")
    requests.add_argument(
        "--body",
        type=Path,
        metavar="FILE",
        help="one that is answered well; without it much is not applicable",
    )
    requests.add_argument("--content-type", default="application/json", help="(application/json)")
    requests.add_argument("--accept", default="", help="the type of the answers")
    requests.add_argument(
        "--stream-body", type=Path, metavar="FILE", help="one with a streamed answer"
    )
    requests.add_argument("--stream-accept", default="", help="the type of that answer")
    requests.add_argument(
        "--slow-body", type=Path, metavar="FILE", help="one that takes some seconds"
    )
    requests.add_argument(
        "--parallel", type=count, default=8, metavar="N", help="at the same time (8)"
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON, at the end")


def run(options: argparse.Namespace) -> int:
    """Examine a container; return 1 where a check fails."""
    refuse_wrong(options)
    with work_folder() as work:
        settings = read(options, work)
        if not options.json:
            sys.stdout.write(f"{options.what} as a container of Amazon SageMaker\n\n")
        results = Examination(
            options.what, settings, (lambda _: None) if options.json else show
        ).run()
    counts = summary(results)
    if options.json:
        sys.stdout.write(f"{as_json(options.what, results)}\n")
    else:
        words = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        sys.stdout.write(f"\n{words}\n")
    return int(counts[FAIL] > 0)


def show(result: Result) -> None:
    sys.stdout.write(f"{result.lines()}\n")
    sys.stdout.flush()


def read(options: argparse.Namespace, work: Path) -> Settings:
    """Return what the command line says; archives are unpacked into `work`."""
    kind, accept = options.content_type, options.accept
    return Settings(
        model=model_folder(options.model, work),
        models=options.multi_model,
        environment=variables(options.env),
        request=request(options.body, kind, accept),
        stream=request(options.stream_body, kind, options.stream_accept or accept),
        slow=request(options.slow_body, kind, accept),
        parallel=options.parallel,
        limits=Limits(
            start_s=options.start_timeout, answer_s=options.timeout, stop_s=options.stop_timeout
        ),
    )


def request(file: Path | None, kind: str, accept: str) -> Request | None:
    return Request(file.read_bytes(), kind, accept) if file else None
