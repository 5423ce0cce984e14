"""`dispatcher replay`: asks a server what was captured, and compares answer by answer."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError

from clients.errors import InferenceError
from container.trouble import Trouble
from dispatcher.log_lines import HIDDEN
from tool.commands.invoke import add_endpoint_key, call
from tool.progress import announce
from tool.replay.asking import ask, in_order
from tool.replay.captured import CapturedLine, CapturedRequests
from tool.replay.comparing import ReplayedRequest, judge
from tool.replay.page import write_page
from tool.replay.report import ReplayReport, as_junit, as_text

OPTIONS = (
    ("--model", "NAME", "", "replay the requests to this model alone"),
    ("--as", "NAME", "", "ask this model in the place of the captured one"),
    ("--version", "N", "", "ask this version of the model"),
    ("--rate", "N", "max", "1x sends as it came, 2x twice as fast, max as fast as is answered"),
    ("--concurrency", "N", 0, "requests at a time (default: 4; at a rate at most 64)"),
    ("--max-different", "SHARE", 0.0, "of a model's answers that may differ (default: 0)"),
    ("--max-errors", "SHARE", 0.0, "of its requests that may fail (default: 0)"),
    ("--max-slower", "FACTOR", math.inf, "of its p99, above that captured (default: any)"),
    ("--html", "FILE", "", "write the worst ten differences as a page"),
    ("--junit", "FILE", "", "write the result as JUnit's XML"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Send captured requests to a server, another version or another model, and compare its "
        "answers with those captured, each by the measure of its model's family. The exit code is "
        "1 where a limit is passed."
    )
    parser.add_argument("place", metavar="FOLDER", help="what CAPTURE_TO names: a folder, or s3://")
    parser.add_argument(
        "--against", dest="url", required=True, metavar="URL", help="the server that is asked"
    )
    for name, metavar, default, what in OPTIONS:
        kind = type(default)
        parser.add_argument(name, metavar=metavar, type=kind, default=default, help=what)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_endpoint_key(parser)


def run(options: argparse.Namespace) -> int:
    """Replay, and print the report; return 1 where a limit is passed, else 0."""
    limits = {name: getattr(options, f"max_{name}") for name in ("different", "errors", "slower")}
    captured = CapturedRequests(options.place, options.model)
    report = ReplayReport(limits, captured.skipped)
    try:
        with announce(f"replaying {options.place} against {options.url}"):
            replay(options, captured, report)
    except InferenceError as error:  # of S3
        raise Trouble(f"{error.message}; {error.hint}") from error
    found = report.describe()
    if not found["models"]:
        reasons = "; ".join(f"{count} {why}" for why, count in captured.skipped.items())
        of = f" of {options.model!r}" if options.model else ""
        raise Trouble(f"{options.place} has no request{of} to replay: {reasons or 'it is empty'}")
    # (First what is there even where one of the files cannot be written.)
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n" if options.json else as_text(found))
    if options.html:
        page = write_page(report, captured, options.url)
        Path(options.html).write_text(page, encoding="utf-8", errors="replace")
    if options.junit:
        Path(options.junit).write_bytes(as_junit(found))
    return 1 if any(one["passed"] for one in found["models"].values()) else 0


def replay(options: argparse.Namespace, captured: CapturedRequests, report: ReplayReport) -> None:
    """Send what was captured, and count what is answered."""
    if not (match := re.fullmatch(r"max|(\d+(?:\.\d+)?)x?", options.rate)):
        raise Trouble(f"--rate is {options.rate!r}; expected max, or such as 1x or 2.5x")
    pace = float(match[1] or 0)
    with suppress(HTTPError):  # which is an answer
        call(options, "/ping", None)

    def compare(line: CapturedLine) -> ReplayedRequest | str:
        try:
            body, expected = (captured.restore(line, part) for part in (line.sent, line.answered))
            found = judge(line, expected, ask(options, line, body))
            return replace(found, words=HIDDEN.sub("?", found.words))
        except (LookupError, OSError, RecursionError, ValueError, InferenceError):
            return "have headers, or files beside their lines, that cannot be read"

    threads = max(1, options.concurrency or (64 if pace else 4))
    for one in in_order(captured, compare, threads, pace):
        if isinstance(one, str):
            captured.skipped[one] += 1
        else:
            report.add(one)
