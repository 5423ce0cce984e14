"""`dispatcher new-model NAME --from model.onnx`: write a model's folder and its test."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clients.errors import ClientDisabled, InferenceError
from clients.families.base.dispatch_toml import FILE
from clients.model_files.model_folders import NAME, NAMED
from clients.tensors import signature
from clients.tensors.client import TensorResult
from clients.testing import answer, clients_in
from clients.text.tokenizer import Tokenizer, TokenizerNotReadable, load_tokenizer
from clients.triton.server import Signature
from container.model_check.findings import Findings
from container.model_check.model import check_loading
from container.trouble import Trouble
from tool.engines.offline import Offline
from tool.placing import beside, put
from tool.progress import announce
from tool.scaffold import texts
from tool.scaffold.families import plans
from tool.scaffold.folder import write_files
from tool.scaffold.hub import HubFolder, find_folder
from tool.scaffold.options import (
    KINDS,
    PICTURE,
    SOUND,
    TABLE,
    TENSORS,
    TEXT,
    add_source,
    file_name,
    next_steps,
    refuse_to_overwrite,
)
from tool.scaffold.pictures import with_uint8
from tool.scaffold.plan import CHECK, FamilyPlan
from tool.scaffold.source import ModelSource, labels_in, open_model

TOKENIZER = "tokenizer"
# Of a tokenizer, among the files of an exported model.
PARTS = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "config.json")
VOCABULARIES = ("vocab.*", "merges.txt", "*.model")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name that callers use")
    add_source(parser)


def run(options: argparse.Namespace) -> int:
    if not NAME.fullmatch(options.name):
        raise Trouble(f"the name is {options.name!r}; {NAMED}")
    root: Path = options.into
    test = Path("code", "tests", f"test_{file_name(options.name)}.py")
    refuse_to_overwrite(root, Path(options.name), test)
    hub = find_folder(str(options.source), options.onnx)
    options.family = options.family or hub.family
    options.tokenizer = options.tokenizer or hub.tokenizer
    with beside(root) as place, TemporaryDirectory(prefix="dispatcher-") as scratch:
        model = options.source
        if hub.config or options.onnx:
            model = hub.model(options, Path(scratch))
        with announce(f"opening {model}"):
            source = open_model(model)
        if options.labels:
            source = replace(source, given=labels_in(options.labels))
        plan, notes = lay_out(options, source, hub, place)
        if hub.config and plan.family != TENSORS:
            with announce("comparing its example with transformers"):
                notes += filter(None, [hub.compare(place, options.name)])
        put(place, root, (Path(options.name), test))
    say(options, plan, notes)
    return 0


def lay_out(
    options: argparse.Namespace, source: ModelSource, hub: HubFolder, place: Path
) -> tuple[FamilyPlan, list[str]]:
    """Write the folder of the first plan with which the model is loaded and answers its example.

    Return it, and lines about what was done for it. `place` is empty.
    """
    notes: list[str] = []
    folder = place / options.name
    source.copy_to(folder / "1")
    if options.uint8:
        source = with_uint8(source, folder / "1" / "model.onnx", options.mean, options.std)
    elif options.mean or options.std:
        raise Trouble("--mean and --std go with --uint8; else write them into dispatch.toml")
    with announce(f"running {source.file}, to see what it answers"):
        found = plans(source, options.family)
    if found[0].tokens:
        tokenizer = copy_tokenizer(options.tokenizer, source, folder / TOKENIZER)
        more = list(texts.longest(source, tokenizer))
        found = [plan.and_lines(*more) if plan.tokens else plan for plan in found]
    found = [hub.complete(plan) for plan in found]
    reasons: list[str] = []
    for plan in found:
        if source.given and plan.labels != source.given:
            reasons.append(f"{options.labels} has {len(source.given)} lines")
            continue
        if plan.family == TENSORS and reasons:
            shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
            notes = [f"not {found[0].family}, although {found[0].why}: {reasons[0]}"]
        with announce("running it alone and in batches"):
            write_files(place, options.name, source, plan)
            payload = zeros(source) if plan.family == TENSORS else None
            reason, unasked = refusal(place, options.name), fault(place, options.name, payload)
        if plan.family == TENSORS and unasked and not reason:
            notes.append(f"loaded, but not asked: it fails on zeros of the least size ({unasked})")
        elif not reason:
            reason = unasked
        if not reason:
            return plan, notes
        reasons.append(reason)
    other = "" if plan.family == TENSORS else f"; `--family {TENSORS}` serves any model"
    raise Trouble(
        f"{source.file} is taken for {found[0].family}, because {found[0].why}; but "
        f"{reasons[0]}{other}"
    )


def copy_tokenizer(given: Path | None, source: ModelSource, folder: Path) -> Tokenizer:
    """Copy the tokenizer of a model that takes tokens, and read it as the server does."""
    if given is None:
        raise Trouble(
            f"{source.file} takes tokens: name the folder of its tokenizer, --tokenizer FOLDER, as "
            '`AutoTokenizer.from_pretrained("the model\'s name").save_pretrained("tokenizer")` of '
            f"transformers writes it, or write `--family {TENSORS}`"
        )
    folder.mkdir()
    for path in (one for part in (*PARTS, *VOCABULARIES) for one in given.glob(part)):
        shutil.copyfile(path, folder / path.name)
    try:
        return load_tokenizer(folder)
    except (TokenizerNotReadable, OSError) as error:
        raise Trouble(f"the tokenizer of {given} cannot be served: {error}") from error


def refusal(place: Path, name: str) -> str:
    """Return why a server would not load a model, as `check` finds it; empty if it would."""
    findings = Findings(place)
    check_loading(name, place / name, findings)
    return next((one.message for one in findings.found if one.level == "error"), "")


def zeros(source: ModelSource) -> Mapping[str, Any]:
    """Return a body of tensors that hold nothing, of the least size."""
    inputs = signature.zeros(Signature(0, source.inputs))
    for name, array in inputs.items():
        if array.ndim == source.batched:  # Triton has a dimension for what has none
            inputs[name] = array[..., None]
    return {"inputs": TensorResult("", "", inputs).body()["outputs"]}


def fault(place: Path, name: str, payload: Mapping[str, Any] | None) -> str:
    """Return why a model does not answer a payload, or its own example; empty if it does."""
    file = place / name / FILE
    try:
        (client,) = clients_in(file)
        answer(client, payload, Offline(place))
    except InferenceError as error:
        # The hint about a file's mistake is for those who run a server.
        said = error.message if isinstance(error, ClientDisabled) else str(error)
        return said.replace(f"{file}: ", "").replace(f"{place}/", "")
    return ""


def say(options: argparse.Namespace, plan: FamilyPlan, notes: list[str]) -> None:
    """Print what was written, what the author should look at, and how to go on."""
    root, folder = options.into, options.into / options.name
    test = Path("code", "tests", f"test_{file_name(options.name)}.py")
    sys.stdout.write(f"family: {plan.family}, because {plan.why}\n")
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    sys.stdout.writelines(f"wrote {path}\n" for path in (*files, root / test))
    sys.stdout.writelines(f"{line}\n" for line in notes)
    for path in (folder / FILE, root / test):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            _, mark, what = line.partition(CHECK)
            if mark:
                sys.stdout.write(f"check {path}:{number}: {what}\n")
    ask = ASK[KINDS[plan.family]].format(name=options.name)
    sys.stdout.write(next_steps(root, test, ask))


ASK = {
    PICTURE: "invoke {name} --img PICTURE.jpg",
    TEXT: "invoke {name} --example",
    SOUND: "invoke {name} --img SOUND.wav --field audio",
    TABLE: "invoke {name} --example",
    TENSORS: "invoke {name} --json '{{\"inputs\": […]}}'",
}
