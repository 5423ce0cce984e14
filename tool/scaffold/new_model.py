"""`dispatcher new-model NAME --from model.onnx`: write a model's folder and its test."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from clients.errors import InferenceError
from clients.plugins.dispatch_toml import FILE
from clients.repository.model_folders import NAME, NAMED
from clients.testing import OnnxModels, answer, clients_in
from clients.text.tokenizer import load_tokenizer
from dispatcher.settings import PROJECT
from tool.placing import beside, put
from tool.scaffold import texts
from tool.scaffold.families import plans
from tool.scaffold.folder import written
from tool.scaffold.options import TENSORS, add_source, file_name, refuse_to_overwrite
from tool.scaffold.plan import CHECK, Plan
from tool.scaffold.source import Source, labels_in, opened
from tool.tokenizer.command import make
from tool.tokenizer.options import wanted
from tool.trouble import Trouble

TOKENIZER = "tokenizer"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name that callers use")
    add_source(parser, required=True)


def run(options: argparse.Namespace) -> int:
    """Write the files; return the exit code."""
    if not NAME.fullmatch(options.name):
        raise Trouble(f"the name is {options.name!r}; {NAMED}")
    root: Path = options.into
    test = Path("code", "tests", f"test_{file_name(options.name)}.py")
    refuse_to_overwrite(root, Path(options.name), test)
    source = source_of(options)
    with beside(root) as place:
        plan, notes = laid_out(options, source, place)
        put(place, root, (Path(options.name), test))
    say(options, plan, notes)
    return 0


def source_of(options: argparse.Namespace) -> Source:
    """Return the model that the options name, with the labels that they name.

    Raises:
        Trouble: one of them cannot be read.

    """
    source = opened(options.source)
    return replace(source, given=labels_in(options.labels)) if options.labels else source


def laid_out(options: argparse.Namespace, source: Source, place: Path) -> tuple[Plan, list[str]]:
    """Write the folder of the first plan with which the model answers its example.

    Args:
        options: of the command.
        source: the model.
        place: the empty folder in which the model's folder is written.

    Returns:
        the plan, and lines about what was done for it.

    Raises:
        Trouble: there is none; the text is why the likeliest one fails.

    """
    notes: list[str] = []
    found = plans(source, options.family)
    folder = place / options.name
    source.copy_to(folder / "1")
    if found[0].tokens:
        notes.append(tokenizer_for(options, source, folder / TOKENIZER))
        tokenizer = load_tokenizer(folder / TOKENIZER)
        more = list(texts.longest(source, tokenizer))
        found = [plan.and_lines(*more) for plan in found]
    reasons = []
    for plan in found:
        if source.given and plan.labels and plan.labels != source.given:
            reason = f"{plan.why}, but {options.labels} has {len(source.given)} lines"
        else:
            written(place, options.name, source, plan)
            reason = "" if plan.family == TENSORS else fault(place, options.name)
        if not reason:
            return plan, notes
        reasons.append(reason)
    raise Trouble(
        f"{source.file} is taken for {found[0].family}, because {found[0].why}; but {reasons[0]}"
    )


def tokenizer_for(options: argparse.Namespace, source: Source, folder: Path) -> str:
    """Make the tokenizer of a model that takes tokens; return a line about it.

    Raises:
        Trouble: there is none, or it cannot be read.

    """
    given = options.tokenizer or [source.vocabulary()]
    if given[0] is None:
        raise Trouble(
            f"{source.file} takes tokens, and no tokenizer is beside it: name its files, "
            "--tokenizer FILE (a folder, tokenizer.json, vocab.txt, vocab.json with merges.txt, or "
            "a model of sentencepiece)"
        )
    line = make(given, folder, wanted(options))
    return line.replace(str(folder), f"{options.into / options.name / TOKENIZER}")


def fault(place: Path, name: str) -> str:
    """Return why a model does not answer its example; empty if it does."""
    file = place / name / FILE
    try:
        (client,) = clients_in(file)
        answer(client, None, OnnxModels(place))
    except InferenceError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return f"{error.message}{hint}".replace(f"{file}: ", "").replace(f"{place}/", "")
    return ""


def say(options: argparse.Namespace, plan: Plan, notes: list[str]) -> None:
    """Print what was written, what the author should look at, and how to go on."""
    root, folder = options.into, options.into / options.name
    test = root / "code" / "tests" / f"test_{file_name(options.name)}.py"
    sys.stdout.write(f"family: {plan.family}, because {plan.why}\n")
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    sys.stdout.writelines(f"wrote {path}\n" for path in (*files, test))
    sys.stdout.writelines(f"{line}\n" for line in notes)
    for path in (folder / FILE, test):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            _, mark, what = line.partition(CHECK)
            if mark:
                sys.stdout.write(f"check {path}:{number}: {what}\n")
    sys.stdout.write(
        NEXT.format(
            python=shlex.quote(sys.executable),
            root=shlex.quote(str(root)),
            test=shlex.quote(str(test)),
            ask=ASK[plan.family].format(name=options.name),
            serve="./serve" if Path.cwd() == PROJECT else shlex.quote(str(PROJECT / "serve")),
        )
    )


ASK = {
    **dict.fromkeys(
        ("classification", "detection", "picture-file"), "invoke {name} --img PICTURE.jpg"
    ),
    **dict.fromkeys(("embedding", "text-classification"), 'invoke {name} --text "some words"'),
    "fill-mask": 'invoke {name} --text "a sentence with a mask"',
    TENSORS: "invoke {name} --json '{{\"inputs\": […]}}'",
}
NEXT = """
  test it    {python} {test}
  check it   dispatcher check {root}
  try it     dispatcher dev {root}
  serve it   MODEL_DIR={root} {serve}
  ask it     dispatcher {ask}
"""
