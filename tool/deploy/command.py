"""`dispatcher deploy`: an endpoint of Amazon SageMaker, from an image and an archive."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tool.checks.check import folder_of
from tool.deploy.apply import Deployment
from tool.deploy.ask import Question, ask_all, question_in, questions_in
from tool.deploy.emit import FORMS, emit
from tool.deploy.plan import METRICS, Scaling, Variant, Wanted, plan
from tool.deploy.price import price_line
from tool.deploy.resources.aws import OWNER, Aws
from tool.deploy.resources.kind import Resource
from tool.deploy.source import ECR, archive_in, archive_of, image_of, place_of
from tool.deploy.wait import log_lines
from tool.emulate.contract import FIRST_VARIANT, variants_of
from tool.emulate.places import bucket_and_key
from tool.trouble import Trouble

WORDS = ("create", "update", "status", "delete")
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,53}")  # a model's name has 9 letters more
ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/\S+")
INSTANCE = "ml.m5.large"
MOST_SERVERLESS, GB = 6, 1024
INTERRUPTED = 130
ROLE_FIX = (
    "give --role ARN of a role that SageMaker may assume and that may read the image and the "
    "archive; docs/sagemaker.md has the two commands that make one"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "dispatcher deploy [create|update|status|delete] NAME [options]"
    add = parser.add_argument
    add("words", nargs="+", metavar="NAME", help="of the endpoint, after what to do (create)")
    add("--region", default="", help="(default: that of the AWS CLI's configuration)")
    add(
        "--bucket",
        default="",
        metavar="S3",
        help="s3://BUCKET/PREFIX for the archive "
        "(default: the bucket of SageMaker's SDK, sagemaker-REGION-ACCOUNT)",
    )
    add("--yes", action="store_true", help="delete without a question")
    what = parser.add_argument_group("what is served")
    add = what.add_argument
    add(
        "--image",
        default="",
        help="an address in ECR; an image on this machine, or IMAGE@sha256:… of another registry, "
        "is pushed there",
    )
    add("--repository", default="", help="an existing one in ECR for the push (default: its own)")
    add(
        "--variant",
        action="append",
        nargs=3,
        default=[],
        metavar=("NAME", "WEIGHT", "IMAGE"),
        help=f"a further production variant; {FIRST_VARIANT} has the --image, and weight 1",
    )
    add("--model", type=Path, metavar="PATH", help="a model repository, or a model.tar.gz")
    add(
        "--multi-model",
        default="",
        metavar="S3",
        help="s3://BUCKET/PREFIX/ with a NAME.tar.gz for each model",
    )
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    add("--role", default="", metavar="ARN", help="the role that the containers run under")
    add("--tag", action="append", default=[], metavar="KEY=VALUE", help="on all that is made")
    where = parser.add_argument_group("where it runs")
    add = where.add_argument
    add(
        "--instance",
        action="append",
        default=[],
        metavar="TYPE",
        help=f"(default: {INSTANCE}); several are an instance pool, the first preferred",
    )
    add("--count", type=at_least_one, default=1, metavar="N", help="instances (1)")
    add("--start-timeout", type=at_least_one, default=480, metavar="S", help="to the first ping")
    add("--volume", type=at_least_one, default=0, metavar="GB", help="for the unpacked models")
    add("--serverless", type=at_least_one, default=0, metavar="MB", help="1024, 2048, … or 6144")
    add("--max-concurrency", type=at_least_one, default=5, metavar="N", help="of --serverless (5)")
    add("--async", dest="async_output", default="", metavar="S3", help="s3://… for answers")
    add("--async-failure", default="", metavar="S3", help="s3://… for failures")
    add("--autoscale", nargs=2, type=int, metavar=("MIN", "MAX"), help="instances, by one of:")
    for metric, meaning in (
        ("invocations", "requests a minute for an instance"),
        ("concurrency", "requests at the same time for an instance"),
        ("backlog", "waiting asynchronous requests for an instance"),
    ):
        add(f"--{metric}", type=at_least_one, default=0, metavar="N", help=meaning)
    safe = parser.add_argument_group("updates: new instances, and back where an alarm goes off")
    add = safe.add_argument
    add("--alarm", action="append", default=[], metavar="NAME", help="of CloudWatch's; repeatable")
    add("--rollback-errors", type=int, default=5, metavar="N", help="5xx in a minute; 0: none (5)")
    add("--canary", type=int, default=0, metavar="PERCENT", help="of the capacity first, up to 50")
    add("--bake", type=int, default=300, metavar="S", help="watch the alarms so long (300)")
    after = parser.add_argument_group("before and after")
    add = after.add_argument
    add("--dry-run", action="store_true", help="print the plan, and what would change")
    add("--emit", nargs=2, metavar=("FORM", "FILE"), help=f"write the plan: {', '.join(FORMS)}")
    add(
        "--ask",
        action="append",
        default=[],
        metavar="FILE",
        help="JSON to send in place of the models' examples; TARGET=FILE with --multi-model",
    )
    add("--prices", type=Path, metavar="FILE", help="JSON, as tool/deploy/prices.json")
    add("--no-ask", action="store_true", help="do not ask the models")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number above 0")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Do what was asked; return the exit code."""
    words = options.words
    word, name = words if len(words) == 2 and words[0] in WORDS else ("create", words[-1])
    if len(words) > 1 + (words[0] in WORDS) or name in WORDS:
        raise Trouble(f"{' '.join(words)!r}; expected [create|update|status|delete] NAME")
    if not NAME.fullmatch(name):
        raise Trouble(f"the name {name!r}: expected at most 54 letters, digits and '-'")
    try:
        return {"status": status, "delete": delete}.get(word, deploy)(name, word, options)
    except KeyboardInterrupt:
        sys.stderr.write(
            "\ninterrupted: the same command goes on from here; `dispatcher deploy delete "
            f"{name}{f' --bucket {options.bucket}' * bool(options.bucket)}` removes what is there\n"
        )
        return INTERRUPTED


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_if(text: str) -> None:
    if text:
        say(text)


def deploy(name: str, word: str, options: argparse.Namespace) -> int:
    """Create or update an endpoint; or only show or write the plan."""
    emitting = options.emit
    if emitting and emitting[0] not in FORMS:
        raise Trouble(f"--emit is {emitting[0]!r}; expected {', '.join(FORMS)}")
    if emitting and not Path(emitting[1]).name:
        raise Trouble(f"the file of --emit is {emitting[1]!r}; expected a name such as mine.json")
    consistent(options)
    aws = Aws(options.region)
    with ExitStack() as stack:
        archive = None
        if options.model:
            archive = stack.enter_context(archive_of(options.model, say))
        wanted = wanted_by(name, options, None if emitting else aws, archive)
        resources = plan(wanted)
        if emitting:
            source = Path(options.model) if options.model and options.model.is_file() else None
            resources = [named_source(one, source) for one in resources]
            for file in emit(emitting[0], Path(emitting[1]), name, resources, wanted.all_tags):
                say(f"wrote {file}")
            return 0
        places = (place_of(aws, options.bucket),) if archive else ()
        deployment = Deployment(aws, name, say, wanted.all_tags, places)
        costs = price_line(wanted, options.prices)
        if options.dry_run:
            for what, one in deployment.steps(resources):
                say(f"{what} {one.kind} {one.name}")
            say_if(costs)
            return 0
        questions = questions_of(options, archive)  # what is wrong with --ask is known before
        if options.variant and not options.async_output:
            names = [one.name for one in wanted.variants]
            questions = [replace(one, variant=name) for one in questions for name in names]
        deployment.apply(resources, update=word == "update")
    say_if(costs)
    well = ask_all(aws, name, questions, options.async_output, say)
    return 0 if well else 1


def named_source(one: Resource, source: Path | None) -> Resource:
    """Return an archive with a file that stays, for those who upload it themselves."""
    if one.kind != "archive":
        return one
    return Resource(one.kind, one.name, one.properties, source or Path("model.tar.gz"))


def consistent(options: argparse.Namespace) -> None:
    """Raise Trouble where options are missing, or do not go together."""
    instances = bool(options.instance or options.volume or options.autoscale)
    metrics = [one for one in (*METRICS, "backlog") if getattr(options, one)]
    for wrong, text in (
        (not options.image, "say what is served by --image, an address in ECR or a local image"),
        (not ROLE.fullmatch(options.role), f"--role is {options.role!r}; {ROLE_FIX}"),
        (options.model and options.multi_model, "--model and --multi-model exclude each other"),
        (
            options.serverless
            and (instances or options.multi_model or options.async_output or options.variant),
            "--serverless has no instances to choose or scale, multi-model, --async or --variant",
        ),
        (
            options.serverless % GB or options.serverless > MOST_SERVERLESS * GB,
            f"--serverless is {options.serverless}; expected 1024, 2048, … or 6144 (MB)",
        ),
        (len(options.instance) > 5, "an instance pool has at most 5 --instance"),
        (
            bool(options.autoscale) != (len(metrics) == 1) or len(metrics) > 1,
            "--autoscale MIN MAX goes with one of --invocations, --concurrency and --backlog",
        ),
        (
            bool(options.backlog) and not options.async_output,
            "--backlog is for --async endpoints",
        ),
        (
            bool(options.autoscale)
            and not (0 if options.backlog else 1) <= options.autoscale[0] <= options.autoscale[1],
            "--autoscale has MIN above 0 and MAX not below it; MIN is 0 only with --backlog",
        ),
        (not 0 <= options.canary <= 50, "--canary is a percentage up to 50"),
        (not 0 <= options.bake <= 3600, "--bake is up to 3600 s"),
    ):
        if wrong:
            raise Trouble(text)
    for place in (options.multi_model, options.async_output, options.async_failure):
        if place:
            bucket_and_key(place)


def wanted_by(
    name: str, options: argparse.Namespace, aws: Aws | None, archive: Path | None
) -> Wanted:
    """Return the endpoint as the options describe it; without `aws` nothing is looked up."""
    variants, made = [], dict[tuple[str, str], Resource]()
    for variant, weight, given in variants_of(options.image, options.variant):
        image, pushed = image_in(aws, name, given, options.repository)
        variants.append(Variant(variant, weight, image))
        made |= {(one.kind, one.name): one for one in pushed}
    data = options.multi_model
    if archive:
        uploaded = archive_in(place_of(aws, options.bucket), name, archive)
        made[uploaded.kind, uploaded.name] = uploaded
        data = uploaded.name
    environment = pairs("--env", options.env)
    if options.serverless:
        environment = {"SERVERLESS": "true", **environment}
    scaling = None
    if options.autoscale:
        metric = next(one for one in (*METRICS, "backlog") if getattr(options, one))
        least, most = options.autoscale
        scaling = Scaling(least, most, metric, getattr(options, metric))
    serverless = (options.serverless, options.max_concurrency) if options.serverless else None
    return Wanted(
        name,
        options.role,
        tuple(variants),
        tuple(made.values()),
        data,
        multi_model=bool(options.multi_model),
        environment=environment,
        instances=() if serverless else tuple(options.instance or [INSTANCE]),
        count=options.count,
        start_s=options.start_timeout,
        volume_gb=options.volume,
        serverless=serverless,
        async_output=options.async_output,
        async_failure=options.async_failure,
        scaling=scaling,
        alarms=tuple(options.alarm),
        errors=options.rollback_errors,
        canary=options.canary,
        bake_s=options.bake,
        tags=pairs("--tag", options.tag),
    )


def image_in(
    aws: Aws | None, name: str, image: str, repository: str
) -> tuple[str, tuple[Resource, ...]]:
    """Return an image's address in ECR, and what has to be made for it; as `image_of`."""
    if aws:
        return image_of(aws, name, image, repository)
    if ECR.fullmatch(image):
        return image, ()
    raise Trouble(f"the image is {image!r}; --emit needs an address in ECR: push it first")


def pairs(option: str, given: list[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals or name == OWNER:
            raise Trouble(f"{option} is {one!r}; expected NAME=VALUE")
        found[name] = value
    return found


def questions_of(options: argparse.Namespace, archive: Path | None) -> list[Question]:
    """Return what the models are asked."""
    if options.no_ask:
        return []
    if options.ask or options.multi_model:
        multi_model = bool(options.multi_model)
        return [question_in(one, multi_model=multi_model) for one in options.ask]
    if archive is None:
        return questions_in(None)
    with folder_of(archive) as findings:
        return questions_in(findings.root)


def status(name: str, word: str, options: argparse.Namespace) -> int:  # noqa: ARG001
    """Show the endpoint and all that is its own; return 1 where it does not serve."""
    aws = Aws(options.region)
    deployment = Deployment(aws, name, say, places=places_of(aws, options.bucket))
    found = deployment.kind("endpoint").found(name)
    for one in reversed(deployment.owned()):
        say(f"{one.kind} {one.name}")
    if found is None:
        say(f"there is no endpoint {name}")
        return 1
    state = found.properties["EndpointStatus"]
    reason = found.properties.get("FailureReason", "")
    say(f"{name}: {state}{f', {reason}' * bool(reason)}")
    if state == "InService":
        return 0
    for line in log_lines(aws, name):
        say(f"  | {line}")
    return 1


def places_of(aws: Aws, bucket: str) -> tuple[str, ...]:
    return tuple({place_of(aws, ""), place_of(aws, bucket)})


def delete(name: str, word: str, options: argparse.Namespace) -> int:  # noqa: ARG001
    """Remove all that has the endpoint's tag, after a list and a question."""
    aws = Aws(options.region)
    deployment = Deployment(aws, name, say, places=places_of(aws, options.bucket))
    owned = deployment.owned()
    if not owned:
        say(f"there is nothing with the tag {OWNER}={name} in {aws.region}")
        return 0
    for one in owned:
        say(f"{one.kind} {one.name}")
    if not options.yes and not agreed(f"delete these {len(owned)}? [y/N] "):
        say("nothing was deleted")
        return 1
    for one in owned:
        deployment.remove(one)
    return 0


def agreed(question: str) -> bool:
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
