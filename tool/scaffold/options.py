"""What `new-client` and `new-model` are called with; imports no large library."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from container.trouble import Trouble

PICTURE, TEXT, SOUND, TABLE, TENSORS = "picture", "text", "sound", "table", "tensors"
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("picture-embedding", "detection", "segmentation"), PICTURE),
    **dict.fromkeys(("picture-to-picture", "ctc", "classification", "ocr"), PICTURE),
    **dict.fromkeys(("fill-mask", "embedding", "text-classification"), TEXT),
    **dict.fromkeys(("token-classification", "question-answering"), TEXT),
    "zero-shot-classification": TEXT,
    SOUND: SOUND,
    TABLE: TABLE,
    TENSORS: TENSORS,
}
"""What callers send to a model of each family; models of pictures are tried in this order."""

NEXT = """
  test it    {python} {test}
  check it   {dispatcher} check {root}
  try it     {dispatcher} dev {root}
  serve it   {dispatcher} serve {root}
  ask it     {dispatcher} {ask}
"""


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options for a model's file, and for what it may leave open."""
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        required=True,
        metavar="FILE",
        help="the model: a file of ONNX, an exported folder with one, a folder in the layout of "
        "the Hugging Face hub, or hf:ORG/NAME on the hub itself",
    )
    parser.add_argument(
        "--onnx",
        default="",
        metavar="NAME",
        help="which file of such a folder, such as model_quantized.onnx (default: model.onnx)",
    )
    parser.add_argument(
        "--family",
        default="",
        choices=tuple(KINDS),
        metavar="FAMILY",
        help=f"what serves it (default: what its file shows): {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="the names of the classes, one in each line (default: those in the file)",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="the tokenizer, as transformers saves it; a model of texts needs one",
    )
    parser.add_argument(
        "--uint8",
        action="store_true",
        help="let a model of pictures take them as bytes, a quarter of what floats are; its graph "
        "makes 0 to 1 of them",
    )
    for name, what in (("mean", "then takes off"), ("std", "divides by in the end")):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            type=float,
            default=(),
            metavar="NUMBER",
            help=f"with --uint8: what the graph {what}, for each channel",
        )
    add_into(parser)


def add_into(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder of models and clients, laid out as SageMaker's /opt/ml/model (default: here)",
    )


def refuse_to_overwrite(root: Path, *paths: Path) -> None:
    """Raise Trouble where one of the paths exists."""
    if there := [path for path in paths if (root / path).exists()]:
        raise Trouble(
            f"{root / there[0]} is there already; remove it, or choose another name or folder"
        )


def next_steps(root: Path, test: Path, ask: str) -> str:
    """Return how to go on with what was written below `root`, in lines for a shell."""
    beside = Path(sys.executable).with_name("dispatcher")
    is_found = shutil.which("dispatcher") or not beside.exists()
    return NEXT.format(
        python=shlex.quote(sys.executable),
        dispatcher="dispatcher" if is_found else shlex.quote(str(beside)),
        root=shlex.quote(str(root)),
        test=shlex.quote(str(root / test)),
        ask=ask,
    )


def class_name(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+", name)
    kind = "".join(word[:1].upper() + word[1:] for word in words)
    return kind if kind[:1].isalpha() else f"Model{kind}"


def file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name).lower()
